"""Verify a saved model: who claims what, whether its files are those, whether epsilon follows from the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpilot.audit.check import Check, all_held, plain_checks
from dpilot.errors import DpilotError, InvalidInput
from dpilot.privacy import accountant, events
from dpilot.privacy.events import Composed, Event
from dpilot.privacy.ledger import Ledger
from dpilot.train.checkpoint import statement as statements
from dpilot.train.payment import LEDGER

__all__ = ["Verification", "verify"]

_ROUNDING: Final = 1e-6  # relative: epsilons are saved as they are shown to a ledger


@dataclass(frozen=True, slots=True)
class Verification:
    """What a saved model states, the key that signed it, and what was checked."""

    statement: Mapping[str, Any]
    signer: str | None
    checks: tuple[Check, ...]

    @property
    def held(self) -> bool:
        return all_held(self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        named = ("epsilon", "delta", "unit", "tuning", "dataset", "stamps", "code")
        told = {name: self.statement[name] for name in named if name in self.statement}
        return {"verified": self.held, "signer": self.signer, **told, "checks": plain_checks(self.checks)}


def verify(
    model: str | Path, *, key: str | Path | None = None, ledger: str | Path | Ledger | None = None
) -> Verification:
    """Check a run folder, or a safetensors or ONNX file alone, against its own statement.

    Args:
        model: what ``save``, ``dpilot fit`` or a trainer wrote.
        key: the public key that must have signed it; without it any key is named, and none is asked for.
        ledger: the data set's ledger, whose chain must go on from the head that is stated.

    Guarantee:
        a byte that was changed in any covered file or in the statement, a file that is gone, a statement that differs
        from what was signed, a signature of another key, an epsilon below what the stated events cost, and noise of a
        seed are each found.
    """
    where = Path(model)
    if where.is_dir():
        stated, signature = statements.read_statement(where)
        checks = [_check_files(stated, where)]
    else:
        stated, signature, weights = statements.read_embedded(where)
        held = stated.get("weights") == weights
        checks = [Check("weights", held, "as stated" if held else "altered: not those of the statement")]
    signer, signed = _check_signature(stated, signature, None if key is None else Path(key))
    checks += [signed, _check_epsilon(stated), _check_noise(stated), _check_ledger(stated, where, ledger)]
    return Verification(stated, signer, tuple(checks))


def _check_files(stated: Mapping[str, Any], folder: Path) -> Check:
    wanted, found = stated.get("files"), statements.file_hashes(folder)
    if not isinstance(wanted, Mapping) or not wanted:  # such as that of the weights, which may be signed too
        return Check("files", False, "none is stated: this is not the statement of a folder")
    altered = sorted(name for name in wanted if name in found and found[name] != wanted[name])
    altered += [] if statements.is_as_written(folder) else [statements.STATEMENT]
    gone, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    problems = [f"{what}: {', '.join(names)}" for what, names in (("altered", altered), ("gone", gone)) if names]
    beside = f"; not covered: {', '.join(more)}" if more else ""
    return Check("files", not problems, ("; ".join(problems) or f"{len(wanted)} files as stated") + beside)


def _check_signature(
    stated: Mapping[str, Any], signature: Mapping[str, str] | None, key: Path | None
) -> tuple[str | None, Check]:
    if signature is None:
        return None, Check("signature", None if key is None else False, "unsigned")
    if not statements.is_signed_by(stated, signature):
        return None, Check("signature", False, "does not fit the statement: one of them was altered")
    signer = statements.fingerprint(signature["key"])
    if key is not None and statements.read_public_key(key) != signature["key"]:
        return signer, Check("signature", False, f"by another key, {signer}")
    return signer, Check("signature", True, f"by the key {signer}" + ("" if key else ", which was not compared: --key"))


def _check_epsilon(stated: Mapping[str, Any]) -> Check:
    """Compose the stated events anew; disjoint parts of one split compose in parallel, all else in sequence."""
    try:
        entries = [(each["split"], each["part"], events.from_dict(each["event"])) for each in stated["events"]]
        if not entries:
            raise InvalidInput("no event is stated")
        found = max(accountant.epsilon(event, stated["delta"], _way(event)) for event in _by_part(entries))
        held = found <= stated["epsilon"] * (1 + _ROUNDING)
    except (DpilotError, KeyError, TypeError, ValueError) as problem:
        return Check("epsilon", False, f"cannot be recomputed ({problem})")
    return Check(
        "epsilon",
        held,
        f"{found:.6g} from {len(entries)} events at delta {stated['delta']:g}, {stated['epsilon']:.6g} claimed",
    )


def _check_noise(stated: Mapping[str, Any]) -> Check:
    """Stamps say whether the noise was secret: epsilon holds of no other."""
    stamps = [str(each) for each in stated.get("stamps", ())]
    return Check("noise", bool(stamps) and not any("not private" in each for each in stamps), "; ".join(stamps))


def _by_part(entries: Sequence[tuple[str | None, str | None, Event]]) -> list[Event]:
    """What one record may meet, for each choice of a part in one split."""
    parts = {part for _, part, _ in entries if part is not None}
    if not parts or len({split for split, part, _ in entries if part is not None}) > 1:
        return [_compose([event for _, _, event in entries])]
    return [_compose([event for _, part, event in entries if part in (None, chosen)]) for chosen in sorted(parts)]


def _compose(found: Sequence[Event]) -> Event:
    """All of them; one alone as it is, as a selection has a tighter price by itself than by its Renyi curve."""
    return found[0] if len(found) == 1 else Composed(found)


def _way(event: Event) -> str:
    return "rdp" if events.selects(event) else "pld"


def _check_ledger(stated: Mapping[str, Any], where: Path, ledger: str | Path | Ledger | None) -> Check:
    """The ledger that was named, or the one in the folder, must be sound and go on from the stated head."""
    own = where / LEDGER
    if ledger is None and not own.is_file():
        return Check("ledger", None, "not at hand: name it by --ledger")
    try:
        book = ledger if isinstance(ledger, Ledger) else Ledger.read(own if ledger is None else ledger)
        head = book.verify(stated.get("ledger_head"))
    except (DpilotError, InvalidInput) as problem:
        return Check("ledger", False, str(problem))
    return Check("ledger", True, f"{head.partition(':')[0]} rows, nothing altered, of data set {book.dataset}")
