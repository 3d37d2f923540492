"""What a run released, as frozen values: tuner, diagnostics, report and command line see this and nothing else."""

from __future__ import annotations

import json
import platform
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

import dpilot
from dpilot._html import facts_table
from dpilot.errors import InvalidInput
from dpilot.noise import NOT_HARDENED

if TYPE_CHECKING:
    from dpilot.privacy.unit import PrivacyUnit

FORMAT: Final = 1
FIT: Final = "fit.json"
"""The file of a FitRecord in a run folder."""
RUN: Final = "record.json"
"""The file of a RunRecord."""
EXACT: Final = 4_000_000
"""Numbers in float32 in a record, up to which all their bits are kept."""
PUBLISHED_SIZE: Final = 'the number of records (size="public")'
"""What is not protected when the size was taken from the data."""
_PUBLISHED_UNITS: Final = 'the number of units (size="public")'
BY_PARTS: Final = (
    "the price of all of it was written down before it began. A record lies either in the part that trains or in the "
    "part that is held out, never in both, and pays for its own part only: the total is the larger of the two"
)
"""How the costs of a fit with held-out records add up, in words."""
RUNNING_TIME: Final = "running time and memory"
"""What no fit protects."""


def neighbours(unprotected: tuple[str, ...], unit: PrivacyUnit) -> str:
    """What two neighbouring data sets differ by, in words."""
    return unit.neighbours(is_size_published(unprotected))


def published_size(unit: PrivacyUnit) -> str:
    """What is not protected when the number of records, or of units, was taken from the data."""
    return PUBLISHED_SIZE if unit.is_record else _PUBLISHED_UNITS


def is_size_published(unprotected: tuple[str, ...]) -> bool:
    """Whether the number of records, or of units, was taken from the data."""
    return PUBLISHED_SIZE in unprotected or _PUBLISHED_UNITS in unprotected


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its number, the threshold and bound it used, whether it only measured, and what its rule released.

    ``released``: the noisy sum of the rule's extras (slack slots, bits, a histogram); of a layer-wise rule those of the
    layers one after another. ``thresholds`` and ``bounds``: those of each layer. ``memory``: what the rule remembered
    beside its threshold, such as the width of its bins. These are float32. ``length``: that of the noisy sum of the
    gradients; None where it was not kept. All of it is released or follows from it.
    """

    step: int
    threshold: float
    bound: float
    measuring: bool
    released: tuple[float, ...] = field(default=(), repr=False)
    thresholds: tuple[float, ...] = field(default=(), repr=False)
    bounds: tuple[float, ...] = field(default=(), repr=False)
    memory: tuple[float, ...] = field(default=(), repr=False)
    length: float | None = field(default=None, repr=False)


_MANY: Final = ("released", "thresholds", "bounds", "memory")  # several numbers a step, or none


def step_columns(steps: Sequence[StepRecord]) -> dict[str, NDArray[Any]]:
    """The steps as arrays: one number a step or, of what has several, all of them in float32 and how many a step has.

    The bounds of layers are left out where they are the thresholds.

    >>> made = step_columns([StepRecord(0, 1.0, 1.0, False, released=(0.5, 2.0)), StepRecord(1, 1.5, 1.5, False)])
    >>> made["threshold"].tolist(), made["released"].tolist(), made["released_count"].tolist()
    ([1.0, 1.5], [0.5, 2.0], [2, 0])
    """
    found: dict[str, NDArray[Any]] = {
        "threshold": np.array([each.threshold for each in steps], dtype=np.float64),
        "bound": np.array([each.bound for each in steps], dtype=np.float64),
        "measuring": np.array([each.measuring for each in steps], dtype=np.bool_),
        "length": np.array([each.length for each in steps], dtype=np.float64),  # None is not a number
    }
    for name in _MANY:
        rows = [getattr(each, name) for each in steps]
        found[name] = np.fromiter(chain.from_iterable(rows), dtype=np.float32)
        found[f"{name}_count"] = np.array([len(row) for row in rows], dtype=np.int32)
    if np.array_equal(found["bounds"], found["thresholds"]):  # as with most rules
        del found["bounds"], found["bounds_count"]
    return found


def steps_from_columns(columns: Mapping[str, NDArray[Any]]) -> tuple[StepRecord, ...]:
    """The inverse of step_columns; of steps that were stored before a column was known, it is empty."""
    if "thresholds" in columns and "bounds" not in columns:
        columns = {**columns, "bounds": columns["thresholds"], "bounds_count": columns["thresholds_count"]}
    plain = [columns[name].tolist() for name in ("threshold", "bound", "measuring")]
    many = [_rows(columns[name], columns[f"{name}_count"]) if name in columns else repeat(()) for name in _MANY]
    lengths = repeat(None) if "length" not in columns else (None if x != x else x for x in columns["length"].tolist())
    rows = zip(*plain, *many, lengths, strict=False)  # a repeat has no end
    return tuple(StepRecord(step, *row) for step, row in enumerate(rows))


def _rows(values: NDArray[Any], counts: NDArray[Any]) -> Iterator[tuple[float, ...]]:
    every = iter(values.tolist())
    return (tuple(islice(every, count)) for count in counts.tolist())


PUBLIC_VALIDATION: Final = "validated on records declared public: these figures are exact"
"""The stamp of a run whose record holds such figures."""


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """Mean loss and accuracy of the model after ``step`` steps, on records that the caller declared public.

    None: a loss that was not finite, and an accuracy where targets are not classes.
    """

    step: int
    loss: float | None
    accuracy: float | None
    kind: str = "public, exact"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The canaries of a run: their ``kind``, which took part, and the score of each, higher for those that seem to.

    Scores follow from what was released, and coins are about canaries alone: both may be shown.
    """

    kind: str
    included: tuple[bool, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: plan and options as plain data, cost, the stamps of its noise, its steps, validation and audit."""

    plan: dict[str, Any]
    epsilon: float
    delta: float
    steps: tuple[StepRecord, ...]
    stamps: tuple[str, ...]
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    validation: tuple[ValidationRecord, ...] = ()
    audit: AuditRecord | None = None

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What the guarantee does not cover, in words."""
        from dpilot.privacy.unit import PrivacyUnit  # above: it would load with every import of dpilot

        unit = PrivacyUnit.from_dict(self.plan.get("unit"))
        return (*[published_size(unit)] * bool(self.plan.get("public_size")), RUNNING_TIME)

    def to_fit(
        self,
        *,
        entries: Sequence[Mapping[str, Any]] = (),
        paid_in: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
    ) -> FitRecord:
        """The run as reports see it, with the entries of its ledger and what was released of it later.

        ``evaluation``: as ``Evaluation.to_dict`` has it; its price is added to that of the run.
        """
        from dpilot.privacy.unit import PrivacyUnit  # above: it would load with every import of dpilot

        paid = dict(paid_in or {})
        cost = {"epsilon": 0.0, "delta": 0.0, "metrics": (), **(evaluation or {})}
        metrics = tuple(map(_metric, cost["metrics"]))
        taken, planned = len(self.steps), self.plan.get("steps", len(self.steps))
        return FitRecord.of(
            epsilon=self.epsilon + cost["epsilon"],
            delta=self.delta + cost["delta"],
            accounting="; ".join(["all planned steps, together", *self.notes, *_EVALUATED[: bool(evaluation)]]),
            unprotected=self.unprotected,
            unit=PrivacyUnit.from_dict(self.plan.get("unit")),
            tuning="given",
            head=paid.pop("head", ""),
            paid_in=paid,
            data={"size": self.plan.get("size")},
            plan={**self.plan, **{name: value for name, value in self.options.items() if value is not None}},
            decisions=(
                "Model, loss, optimizer and plan were given by the caller.",
                f"{taken:,} of {planned:,} planned steps were taken; all planned ones are paid.",
            ),
            metrics=metrics or _validation_metrics(self.validation),
            thresholds=tuple(step.threshold for step in self.steps),
            ledger=(*map(dict, entries), *_evaluation_entry(entries, evaluation)),
            stamps=self.stamps,
            curves={
                "accuracy on public records against step": tuple(
                    (each.step, each.accuracy) for each in self.validation if each.accuracy is not None
                ),
                "loss on public records against step": tuple(
                    (each.step, each.loss) for each in self.validation if each.loss is not None
                ),
            },
            steps=self.steps,
            audit=self.audit,
        )

    def to_json(self, *, exact: int = EXACT) -> str:
        """One JSON document, with the version of its format; its steps are columns (see ``_plain_steps``).

        ``exact``: so many float32 numbers are kept bit for bit; where there are more, all are rounded.
        """
        return _dump(replace(self, steps=()), steps=_plain_steps(self.steps, self.plan, exact))

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """The inverse of to_json; data only. Steps that are written one by one, as they were, are read too."""
        data = _load(text)
        steps = _read_steps(data.pop("steps"))
        validation = tuple(ValidationRecord(**each) for each in data.pop("validation", ()))
        audit = _read_audit(data)
        stamps, notes = tuple(data.pop("stamps")), tuple(data.pop("notes"))
        return cls(steps=steps, stamps=stamps, notes=notes, validation=validation, audit=audit, **data)


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One released figure: its name, what it is of ("" for all), and its intervals, from noise and from sampling.

    ``exact`` says that it was computed without noise, on records that were declared public.
    """

    name: str
    of: str
    value: float
    noise: tuple[float, float]
    sampling: tuple[float, float]
    exact: bool = False


"""Writes the page of a record to a path; options are those of ``report.page.write``."""

Tuning = Literal["inside", "none", "given"]
"""Of the settings of a run: tried on the records and counted; from declared numbers alone; given by the caller."""


@dataclass(frozen=True, slots=True)
class Influence:
    """How far a released model moves as one column goes through its declared values, and where it is least and most."""

    column: str
    effect: float
    least: str
    most: str


@dataclass(frozen=True, slots=True)
class FitRecord:
    """A model fitted from start to end, as the report and the command line see it: declared and released values only.

    ``privacy``: epsilon, delta, unit (with its name and cap where it is not a record), and how the total was found.
    ``data``: what was declared of the records.
    ``plan``: the final run's plan. ``decisions``: one sentence for each choice that was made. ``thresholds``: the
    clipping threshold of each step. ``ledger``: its entries as plain data. ``curves``: named series of points, such as
    the fitted step size against epsilon. ``unprotected``: what the guarantee does not cover, in words. ``health``: the
    noisy shares of usable records, in all and by column. ``steps``: what every step released. ``trials``: the noisy
    scores of settings that were tried. ``influences``: what the released model does with its columns. ``audit``: the
    canaries of the run, coins and scores.
    """

    privacy: dict[str, Any]
    data: dict[str, Any]
    plan: dict[str, Any]
    decisions: tuple[str, ...]
    metrics: tuple[MetricRecord, ...]
    thresholds: tuple[float, ...]
    ledger: tuple[dict[str, Any], ...]
    stamps: tuple[str, ...]
    unprotected: tuple[str, ...]
    curves: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    health: dict[str, Any] | None = None
    steps: tuple[StepRecord, ...] = ()
    trials: tuple[MetricRecord, ...] = ()
    influences: tuple[Influence, ...] = ()
    audit: AuditRecord | None = None

    @classmethod
    def of(
        cls,
        *,
        epsilon: float,
        delta: float,
        accounting: str,
        unprotected: tuple[str, ...],
        unit: PrivacyUnit,
        tuning: Tuning,
        paid_in: Mapping[str, Any] | None = None,
        head: str = "",
        **rest: Any,
    ) -> FitRecord:
        """The record of a fit that cost (epsilon, delta) in all for each ``unit``.

        ``paid_in``: of its ledger, as ``describe_ledger`` has it; ``head``: that of the ledger. ``rest``: other
        fields, empty where left out.
        """
        names = ("dpilot", "torch", "numpy")
        privacy = {
            "epsilon": epsilon,
            "delta": delta,
            "unit": neighbours(unprotected, unit),
            **(
                {}
                if unit.is_record
                else {"unit_name": unit.name, "rows_per_unit": unit.rows, "missing_unit": unit.missing}
            ),
            "accounting": accounting,
            "tuning": tuning,
            **({"head": head} if head else {}),
            **({"ledger": dict(paid_in)} if paid_in else {}),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
        }
        empty: dict[str, Any] = {
            "data": {}, "plan": {}, "decisions": (), "metrics": (), "thresholds": (), "ledger": (), "stamps": (),
        }  # fmt: skip
        return cls(**{**empty, **rest, "privacy": privacy, "unprotected": unprotected})

    def write_report(self, path: str | Path, **options: Any) -> Path:
        """Write the report, one HTML page, to ``path`` and return it; it costs nothing.

        ``options``: ``title``, ``about`` (a mapping, or the path of a toml file) and ``baseline``: see docs/report.md.
        """
        return dpilot._write_report(self, path, **options)

    def summary_table(self, title: str) -> str:
        """The total, what is left and the first figures, as a small HTML table for notebooks."""
        privacy, ledger = self.privacy, self.privacy.get("ledger")
        facts: dict[str, object] = {
            "epsilon, tuning included" if privacy.get("tuning") != "given" else "epsilon": f"{privacy['epsilon']:.4g}",
            "delta": f"{privacy['delta']:.3g}",
            "unit": privacy["unit"],
        }
        if ledger and not ledger["own"]:
            facts["left in the ledger"] = f"epsilon {ledger['left']['epsilon']:.4g} of {ledger['total']['epsilon']:g}"
        for each in [each for each in self.metrics if each.of == ""][:5]:
            low, high = each.sampling
            facts[each.name] = f"{each.value:.4g} ({low:.4g} to {high:.4g})"
        notes = [stamp for stamp in self.stamps if stamp != NOT_HARDENED]
        return facts_table(title, {**facts, **({"stamps": "; ".join(notes)} if notes else {})})

    def save(self, folder: str | Path) -> Path:
        """Write the record alone to ``folder``, with a statement where it lists its costs.

        ``dpilot report``, ``compare``, ``forecast`` and ``card`` read it, ``dpilot verify`` checks it.
        """
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        file = where / FIT
        if file.exists() and file.read_text(encoding="utf-8") != self.to_json():
            raise InvalidInput(f"{where} holds another fit: expected an empty folder or this fit's own.")
        file.write_text(self.to_json(), encoding="utf-8")
        dpilot._state_record(file, self)
        return where

    def to_json(self) -> str:
        """One JSON document, with the version of its format; its steps are columns, as those of a RunRecord."""
        return _dump(replace(self, steps=()), steps=_plain_steps(self.steps, self.plan) if self.steps else [])

    @classmethod
    def from_json(cls, text: str) -> FitRecord:
        """The inverse of to_json; data only."""
        data = _load(text)
        metrics, trials = (tuple(map(_metric, data.pop(name, ()))) for name in ("metrics", "trials"))
        influences = tuple(Influence(**each) for each in data.pop("influences", ()))
        steps = _read_steps(data.pop("steps", []))
        curves = {name: tuple((x, y) for x, y in points) for name, points in data.pop("curves").items()}
        lists: dict[str, Any] = {
            name: tuple(data.pop(name)) for name in ("decisions", "thresholds", "ledger", "stamps", "unprotected")
        }
        more: dict[str, Any] = {"influences": influences, "steps": steps, "audit": _read_audit(data)}
        return cls(metrics=metrics, trials=trials, curves=curves, **more, **lists, **data)


_EVALUATED: Final = ("the figures, a release of their own, added to it",)


def _metric(plain: Mapping[str, Any]) -> MetricRecord:
    return MetricRecord(**{**plain, "noise": tuple(plain["noise"]), "sampling": tuple(plain["sampling"])})


def _evaluation_entry(
    entries: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """The price of figures that stand in another ledger than the run's."""
    if evaluation and not any(entry.get("purpose") == "evaluation" for entry in entries):
        cost = {name: evaluation[name] for name in ("epsilon", "delta")}
        stage = {name: evaluation[name] for name in ("part", "split", "event") if name in evaluation}
        yield {"purpose": "evaluation", "part": None, **stage, "cost": cost, "state": "committed"}


def _validation_metrics(validation: Sequence[ValidationRecord]) -> tuple[MetricRecord, ...]:
    """The last accuracy on public records as an exact figure."""
    found = [each.accuracy for each in validation if each.accuracy is not None]
    return tuple(MetricRecord("accuracy", "", each, (each, each), (each, each), True) for each in found[-1:])


def _read_audit(data: dict[str, Any]) -> AuditRecord | None:
    found = data.pop("audit", None)
    return found and AuditRecord(found["kind"], tuple(found["included"]), tuple(found["scores"]))


def _read_steps(found: Any) -> tuple[StepRecord, ...]:
    if isinstance(found, list):
        return tuple(StepRecord(**step) for step in found)
    columns = {name: _column(plain) for name, plain in found.items() if isinstance(plain, list) or "float32" in plain}
    for name, plain in found.items():
        if name not in columns:
            columns[name] = _off_grid(plain, columns[f"{name}_count"], columns["bound"])
    return steps_from_columns(columns)


def _column(plain: list[Any] | Mapping[str, str]) -> NDArray[Any]:
    if isinstance(plain, list):
        return np.array(plain, dtype=np.float64 if None in plain else None)
    return _unpack(plain["float32"], "<f4")


def _dump(record: RunRecord | FitRecord, **more: Any) -> str:
    return json.dumps({"format": FORMAT, **asdict(record), **more}, indent=1, allow_nan=False)


_MOST: Final = 18e6  # characters that those of a larger one take
_FINEST: Final = -5  # such numbers are rounded to 2^-5 of the noise's deviation at least
_COARSEST: Final = 8


def _plain_steps(steps: Sequence[StepRecord], plan: Mapping[str, Any], exact: int = EXACT) -> dict[str, Any]:
    """The columns as JSON. Bits of noise cannot be compressed: beyond ``exact`` numbers are rounded until they fit.

    Noisy sums are rounded to a grid of 2^level times the deviation of their noise, sigma times the step's bound, which
    moves a number by half of that at most; what follows from them, to 8 - level bits of mantissa, at least 8.
    """
    columns = step_columns(steps)
    numbers = {name: column for name, column in columns.items() if column.dtype == np.float32}
    plain = {name: _list(column) for name, column in columns.items() if name not in numbers}
    size = sum(column.size for column in numbers.values())
    if size <= exact:
        return {**plain, **{name: {"float32": _pack(column)} for name, column in numbers.items()}}
    first = _FINEST + int(max(0.0, 7.5 - 6 * _MOST / max(size, 1)))  # a level takes about a bit a number off
    for level in count(first):
        grid = {name: _on_grid(name, columns, level, plan.get("noise_multiplier")) for name in numbers}
        if level > _COARSEST or sum(len(each["int32"]) for each in grid.values()) <= _MOST:
            break
    return {**plain, **grid}


def _on_grid(name: str, columns: Mapping[str, NDArray[Any]], level: int, noise: Any) -> dict[str, Any]:
    """A column as whole numbers, each less that of the step before: those of one coordinate are near one another."""
    column, counts = columns[name], columns[f"{name}_count"]
    lag = max(1, int(counts.max(initial=0)))
    unit = 2.0**level * noise if name == "released" and isinstance(noise, int | float) else 0.0
    with np.errstate(all="ignore"):
        places = np.rint(column / (unit * np.repeat(columns["bound"], counts)))
    if unit and bool((np.abs(places) < 2**31).all()):
        whole = places.astype(np.int32)
    else:  # bits of a float, which are in its order
        unit, whole = 0.0, _round_mantissas(column, max(8, 8 - level)).view(np.int32)
    steps = np.concatenate([whole[:lag], whole[lag:] - whole[:-lag]])
    return {"int32": _pack((steps << 1) ^ (steps >> 31)), "lag": lag, "unit": unit}  # small ones have small bits


def _off_grid(plain: Mapping[str, Any], counts: NDArray[Any], bounds: NDArray[Any]) -> NDArray[Any]:
    """The inverse of ``_on_grid``."""
    coded, lag = _unpack(plain["int32"], "<u4"), plain["lag"]
    found = (coded >> 1).view(np.int32) ^ -(coded & 1).view(np.int32)
    rows = np.concatenate([found, np.zeros(-len(found) % lag, np.int32)]).reshape(-1, lag)
    whole = rows.cumsum(axis=0, dtype=np.int32).reshape(-1)[: len(found)]
    if not plain["unit"]:
        return whole.view(np.float32)
    return np.asarray(whole * (plain["unit"] * np.repeat(bounds, counts)), dtype=np.float32)


def _round_mantissas(column: NDArray[Any], bits: int) -> NDArray[Any]:
    """The nearest float32 with so many bits of mantissa, and zeros behind them; what is not finite stays."""
    unit = np.uint32(1 << (23 - bits))
    raised = (column.view(np.uint32) + unit // np.uint32(2)) & ~(unit - np.uint32(1))
    return np.where(np.isfinite(column) & np.isfinite(raised.view(np.float32)), raised.view(np.float32), column)


def _list(column: NDArray[Any]) -> list[Any]:
    return [None if number != number else number for number in column.tolist()]


def _pack(column: NDArray[Any]) -> str:
    """Base64 of zlib of all first bytes of four, then all second ones: what is alike lies together."""
    planes = column.astype(column.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, 4).T
    coder = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_RLE)  # noise repeats nothing: runs alone are looked for
    return b64encode(coder.compress(planes.tobytes()) + coder.flush()).decode()


def _unpack(text: str, kind: str) -> NDArray[Any]:
    planes = np.frombuffer(zlib.decompress(b64decode(text)), dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(-1)


def _load(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise InvalidInput(f"the record is not of format {FORMAT}: a newer dpilot may have written it.")
    return data
