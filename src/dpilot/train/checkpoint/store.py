"""Checkpoints of a run: tensors and JSON in one file, replaced whole, between logical steps only.

    run.json                  written once: plan, options, where the run was paid
    checkpoint.safetensors    model, optimizer, clip state, average, records; JSON in its header
    checkpoint-...            rows of each rank, where the model lies in pieces (``pieces``)
    (elsewhere) secret        the keys, written after the checkpoint of the same step

Everything in the folder was declared or released. Nothing is executed when it is read. Both files are sealed under a
key of the secret: what was altered is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dpilot.clipping import State
from dpilot.engine.check import is_distributed
from dpilot.errors import InvalidInput
from dpilot.noise import KeyedNoise
from dpilot.records import StepRecord, ValidationRecord, step_columns, steps_from_columns
from dpilot.sampling import PoissonSampler
from dpilot.train.checkpoint import files, pieces
from dpilot.train.checkpoint.secret import Secret, SecretFile, check_hash, keyed_hash, tensor_bytes
from dpilot.train.options import Options
from dpilot.train.plan import Plan
from dpilot.train.step import TrainingState

FORMAT: Final = 2
MANIFEST: Final = "run.json"
CHECKPOINT: Final = "checkpoint.safetensors"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run folder says once and for all: the recipe, and where it was paid and keeps its secret."""

    run: str
    plan: Plan
    options: Options
    ledger: str | None  # None: the folder's own
    seq: int
    stage: int
    head: str
    secret: str
    stamp: str
    every: int
    example: bool  # whether the form of the records was given, and is to be given again
    seal: str = ""
    units: bool = False  # whether ids said which rows are one unit's, and are to be given again
    validation: bool = False  # whether there were public records to validate on, which are to be given again

    def to_json(self) -> str:
        plain = {**asdict(self), "plan": self.plan.to_dict(), "options": self.options.to_dict()}
        for name in ("units", "validation"):
            if not plain[name]:  # as stored by those who knew of none
                del plain[name]
        return json.dumps({"format": FORMAT, **plain}, indent=1, allow_nan=False)

    def with_seal(self, key: bytes) -> Manifest:
        """The same manifest with the seal of all that it says."""
        said = replace(self, seal="").to_json()
        return replace(self, seal=keyed_hash(key, "run", [said.encode()]))

    def check_seal(self, folder: Path, key: bytes) -> None:
        """Refuse a manifest that says something else than when it was written."""
        check_hash(folder / MANIFEST, self.seal, self.with_seal(key).seal)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a run folder; data only."""
        try:
            data = json.loads((folder / MANIFEST).read_text())
        except (OSError, json.JSONDecodeError) as problem:
            raise InvalidInput(f"{folder} holds no run to resume ({problem}): expected {MANIFEST}.") from None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise InvalidInput(f"{folder / MANIFEST} is not of format {FORMAT}: a newer dpilot may have written it.")
        data["plan"], data["options"] = Plan.from_dict(data["plan"]), Options.from_dict(data["options"])
        return cls(**data)


class CheckpointWriter:
    """Writes the checkpoints of one run: public first, secret after, so that the secret never runs ahead."""

    def __init__(self, folder: Path, manifest: Manifest, secret: SecretFile, key: bytes) -> None:
        self.folder = folder
        self.manifest = manifest.with_seal(key)
        self.secret = secret
        self.key = key

    def due(self, state: TrainingState) -> bool:
        """Whether the step just taken is one to store after."""
        return state.steps_taken % self.manifest.every == 0 or state.steps_taken == self.manifest.plan.steps

    def write(self, state: TrainingState, sampler: PoissonSampler, noise: KeyedNoise) -> None:
        """Store the run as it stands. After the last step no secret is needed, so none is kept."""
        write_public(self.folder, state, self.key)
        if state.steps_taken == self.manifest.plan.steps:
            self.secret.delete()
        else:
            self.secret.write(Secret(self.manifest.run, state.steps_taken, noise.state, sampler.state, self.key))


def write_public(folder: Path, state: TrainingState, key: bytes) -> None:
    """Write the public half of a checkpoint. The secret may lag behind it, never run ahead.

    Edge cases:
        a model in pieces    every rank calls it, for its own; rank 0 alone writes
    """
    tensors, header = _pack_state(state)
    shards = state.context.sums.shards
    if shards is not None:
        header["pieces"] = pieces.store(folder, state.steps_taken, pieces.take_out(tensors), shards.ranks)
        if not shards.ranks.leads:
            return
    header["seal"] = _checkpoint_hash(tensors, json.dumps(header, allow_nan=False), key)
    said = {"dpilot": json.dumps(header)}  # one entry: several have no order of their own
    files.write(folder / CHECKPOINT, save(to_storable(tensors), metadata=said))
    if shards is not None:
        pieces.remove_others(folder, header["pieces"])


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A checkpoint as it was read: how many steps were taken, and what is to be put back."""

    steps_taken: int
    tensors: Tensors
    header: dict[str, Any]
    seal: str
    folder: Path

    @classmethod
    def read(cls, folder: Path) -> StoredRun:
        """The checkpoint of a run folder; data only."""
        tensors, header = _read(folder / CHECKPOINT)
        found = str(header.pop("seal", ""))
        return cls(tensors["records.threshold"].numel(), tensors, header, found, folder)

    def check_seal(self, folder: Path, key: bytes) -> None:
        """Refuse a checkpoint that is not the one the run wrote."""
        check_hash(folder / CHECKPOINT, self.seal, _checkpoint_hash(self.tensors, json.dumps(self.header), key))

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a model of other names or shapes, and one in pieces where the stored one was whole, or was not."""
        ours = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        lying = self.header.get("pieces", {}).get("shapes", {})
        theirs = {name: tuple(t.shape) for name, t in self._weights().items()}
        theirs |= {name.removeprefix("model."): tuple(s) for name, s in lying.items() if name.startswith("model.")}
        if bool(lying) != any(is_distributed(type(p)) for p in model.parameters()):
            found, remedy = ("in pieces", "it too") if lying else ("whole", "no part of it")
            raise InvalidInput(f"the stored model was {found}: expected the same of this one. fully_shard {remedy}.")
        if ours != theirs:
            differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
            raise InvalidInput(
                f"the model is not the stored one: {differing[:5]} differ. Build it as for the first run."
            )

    def restore_into(self, state: TrainingState) -> None:
        """Bring a new run of the same plan, options and model to where the stored one stood."""
        context, device, tensors = state.context, next(state.context.model.parameters()).device, self.tensors
        if context.sums.shards is not None:
            tensors = {**tensors, **pieces.read(self.folder, self.header["pieces"], context.sums.shards)}
        context.model.load_state_dict(_named(tensors, "model."))
        context.optimizer.load_state_dict(unpack(self.header["optimizer"], tensors))
        state.state = State.from_dict(self.header["clipping"]).to(device)
        state.rates = list(self.header["rates"])
        state.averaged = self.header["averaged"]
        state.mean = {name: t.to(device) for name, t in unpack(self.header["mean"], tensors).items()}
        state.records = list(self.records())
        state.validation = [ValidationRecord(**each) for each in self.header.get("validation", ())]

    def records(self) -> tuple[StepRecord, ...]:
        """The steps that were taken."""
        return steps_from_columns({name: t.numpy() for name, t in _named(self.tensors, "records.").items()})

    def _weights(self) -> Tensors:
        return _named(self.tensors, "model.")


def _named(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _pack_state(state: TrainingState) -> tuple[Tensors, dict[str, Any]]:
    tensors: Tensors = {}
    for name, tensor in state.context.model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise InvalidInput(f"the model's state {name!r} is a {type(tensor).__name__}: expected tensors, as stored.")
        pack(tensor, f"model.{name}", tensors)
    header = {
        "format": FORMAT,
        "optimizer": pack(state.context.optimizer.state_dict(), "optimizer", tensors),
        "mean": pack(state.mean, "mean", tensors),
        "averaged": state.averaged,
        "rates": state.rates,
        "clipping": state.state.to_dict(),
        **({"validation": [asdict(each) for each in state.validation]} if state.validation else {}),
    }
    for name, column in step_columns(state.records).items():
        pack(torch.from_numpy(column), f"records.{name}", tensors)
    return tensors, header


def _checkpoint_hash(tensors: Tensors, header: str, key: bytes) -> str:
    return keyed_hash(key, "checkpoint", [header.encode(), *tensor_bytes(tensors)])


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("dpilot", "null"))
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise InvalidInput(
            f"{path} cannot be read ({problem}): nothing was released before the first checkpoint, and what was "
            "reserved stays spent. Start a new run."
        ) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidInput(f"{path} is not a checkpoint of format {FORMAT}: a newer dpilot may have written it.")
    return from_storable(tensors), header


Tensors = dict[str, Tensor]
_AS_REAL: Final = ".view_as_real"


def pack(tree: Any, prefix: str, tensors: Tensors) -> Any:
    """The tree as plain data; each tensor goes to ``tensors`` under a name that begins with ``prefix``.

    >>> import torch
    >>> held = {}
    >>> plain = pack({0: {"step": torch.tensor(3.0), "betas": (0.9, 0.999)}}, "optimizer", held)
    >>> list(held), unpack(plain, held)
    (['optimizer.0.step'], {0: {'step': tensor(3.), 'betas': (0.9, 0.999)}})
    """
    if isinstance(tree, Tensor):
        plain = not is_distributed(type(tree))
        tensors[prefix] = tree.detach().cpu().clone(memory_format=torch.contiguous_format) if plain else tree.detach()
        return {"tensor": prefix}
    if isinstance(tree, dict):
        return {"dict": [[key, pack(value, f"{prefix}.{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [pack(value, f"{prefix}.{place}", tensors) for place, value in enumerate(tree)]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise InvalidInput(f"{prefix} is a {type(tree).__name__}: expected tensors and plain data, as these can be stored.")


def unpack(plain: Any, tensors: Tensors) -> Any:
    """The inverse of pack."""
    if not isinstance(plain, dict) or len(plain) != 1:
        raise InvalidInput("a stored state cannot be understood: another dpilot may have written it.")
    ((kind, content),) = plain.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: unpack(value, tensors) for key, value in content}
        case "list":
            return [unpack(value, tensors) for value in content]
        case "tuple":
            return tuple(unpack(value, tensors) for value in content)
        case "value":
            return content
    raise InvalidInput(f"a stored state holds a {kind!r}: another dpilot may have written it.")


def to_storable(tensors: Tensors) -> Tensors:
    """The tensors as safetensors can hold them, on the CPU: a complex one as its real view, under a name that says so.

    >>> import torch
    >>> held = to_storable({"w": torch.ones(2, dtype=torch.complex128)})
    >>> list(held), from_storable(held)["w"].dtype
    (['w.view_as_real'], torch.complex128)
    """
    return {f"{name}{_AS_REAL}" if t.is_complex() else name: _plain(t) for name, t in tensors.items()}


def from_storable(tensors: Tensors) -> Tensors:
    """The inverse of to_storable. Complex numbers are copied: in a mapped file they may be misaligned and crash."""
    return {
        name.removesuffix(_AS_REAL): torch.view_as_complex(t.clone()) if name.endswith(_AS_REAL) else t
        for name, t in tensors.items()
    }


def _plain(tensor: Tensor) -> Tensor:
    found = tensor.detach().cpu()
    return (torch.view_as_real(found.resolve_conj()) if found.is_complex() else found).contiguous().clone()
