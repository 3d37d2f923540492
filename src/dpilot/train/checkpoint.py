"""Checkpoints of a run: tensors and JSON in one file, replaced whole, between logical steps only.

    run.json                  written once: plan, options, where the run was paid
    checkpoint.safetensors    model, optimizer, clip state, average, records; JSON in its header
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
from dpilot.errors import InvalidInput
from dpilot.noise import KeyedNoise
from dpilot.records import StepRecord
from dpilot.sampling import PoissonSampler
from dpilot.train import files
from dpilot.train.course import Course
from dpilot.train.options import Options
from dpilot.train.packing import Tensors, pack, restored, stored, unpack
from dpilot.train.plan import Plan
from dpilot.train.seal import check, content, seal
from dpilot.train.secret import Secret, SecretFile

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

    def to_json(self) -> str:
        plain = {**asdict(self), "plan": self.plan.to_dict(), "options": self.options.to_dict()}
        return json.dumps({"format": FORMAT, **plain}, indent=1, allow_nan=False)

    def sealed(self, key: bytes) -> Manifest:
        """The same manifest with the seal of all that it says."""
        said = replace(self, seal="").to_json()
        return replace(self, seal=seal(key, "run", [said.encode()]))

    def check_seal(self, folder: Path, key: bytes) -> None:
        """Refuse a manifest that says something else than when it was written."""
        check(folder / MANIFEST, self.seal, self.sealed(key).seal)

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


class Keeper:
    """Writes the checkpoints of one run: public first, secret after, so that the secret never runs ahead."""

    def __init__(self, folder: Path, manifest: Manifest, secret: SecretFile, key: bytes) -> None:
        self.folder = folder
        self.manifest = manifest.sealed(key)
        self.secret = secret
        self.key = key

    def due(self, course: Course) -> bool:
        """Whether the step just taken is one to store after."""
        return course.taken % self.manifest.every == 0 or course.taken == self.manifest.plan.steps

    def keep(self, course: Course, sampler: PoissonSampler, noise: KeyedNoise) -> None:
        """Store the run as it stands. After the last step no secret is needed, so none is kept."""
        files.write(self.folder / CHECKPOINT, _content(course, self.key))
        if course.taken == self.manifest.plan.steps:
            self.secret.delete()
        else:
            self.secret.write(Secret(self.manifest.run, course.taken, noise.state, sampler.state, self.key))


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as it was read: how many steps were taken, and what is to be put back."""

    taken: int
    tensors: Tensors
    header: dict[str, Any]
    seal: str

    @classmethod
    def read(cls, folder: Path) -> Stored:
        """The checkpoint of a run folder; data only."""
        tensors, header = _read(folder / CHECKPOINT)
        found = str(header.pop("seal", ""))
        return cls(tensors["records.threshold"].numel(), tensors, header, found)

    def check_seal(self, folder: Path, key: bytes) -> None:
        """Refuse a checkpoint that is not the one the run wrote."""
        check(folder / CHECKPOINT, self.seal, _sealed(self.tensors, json.dumps(self.header), key))

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a model of other names or shapes."""
        ours = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        theirs = {name: tuple(t.shape) for name, t in self._weights().items()}
        if ours != theirs:
            differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
            raise InvalidInput(
                f"the model is not the stored one: {differing[:5]} differ. Build it as for the first run."
            )

    def put_into(self, course: Course) -> None:
        """Make a new course of the same plan, options and model stand where the stored one stood."""
        setting, device = course.setting, next(course.setting.model.parameters()).device
        setting.model.load_state_dict(self._weights())
        setting.optimizer.load_state_dict(unpack(self.header["optimizer"], self.tensors))
        course.state = State.from_dict(self.header["clipping"]).to(device)
        course.rates = list(self.header["rates"])
        course.averaged = self.header["averaged"]
        course.mean = {name: t.to(device) for name, t in unpack(self.header["mean"], self.tensors).items()}
        numbers = (self.tensors[f"records.{name}"].tolist() for name in ("threshold", "bound", "measuring"))
        course.records = [StepRecord(step, *each) for step, each in enumerate(zip(*numbers, strict=True))]

    def _weights(self) -> Tensors:
        named = ((name, t) for name, t in self.tensors.items() if name.startswith("model."))
        return {name.removeprefix("model."): t for name, t in named}


def _content(course: Course, key: bytes) -> bytes:
    tensors: Tensors = {}
    for name, tensor in course.setting.model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise InvalidInput(f"the model's state {name!r} is a {type(tensor).__name__}: expected tensors, as stored.")
        pack(tensor, f"model.{name}", tensors)
    header = {
        "format": FORMAT,
        "optimizer": pack(course.setting.optimizer.state_dict(), "optimizer", tensors),
        "mean": pack(course.mean, "mean", tensors),
        "averaged": course.averaged,
        "rates": course.rates,
        "clipping": course.state.to_dict(),
    }
    columns = zip(*((r.threshold, r.bound, r.measuring) for r in course.records), strict=True)
    threshold, bound, measuring = columns if course.records else ((), (), ())
    tensors["records.threshold"] = torch.tensor(threshold, dtype=torch.float64)
    tensors["records.bound"] = torch.tensor(bound, dtype=torch.float64)
    tensors["records.measuring"] = torch.tensor(measuring, dtype=torch.bool)
    header["seal"] = _sealed(tensors, json.dumps(header, allow_nan=False), key)
    return save(
        stored(tensors), metadata={"dpilot": json.dumps(header)}
    )  # one entry: several have no order of their own


def _sealed(tensors: Tensors, header: str, key: bytes) -> str:
    return seal(key, "checkpoint", [header.encode(), *content(tensors)])


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
    return restored(tensors), header
