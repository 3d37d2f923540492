"""What a run released, as frozen values: tuner, diagnostics, report and command line see this and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dpilot.errors import InvalidInput

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its number, the threshold and bound it used, and whether it only measured. All public."""

    step: int
    threshold: float
    bound: float
    measuring: bool


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: plan and options as plain data, what it cost, the stamps of its noise, and its steps."""

    plan: dict[str, Any]
    epsilon: float
    delta: float
    steps: tuple[StepRecord, ...]
    stamps: tuple[str, ...]
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One JSON document, with the version of its format."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """The inverse of to_json; data only."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise InvalidInput(f"the record is not of format {FORMAT}: a newer dpilot may have written it.")
        steps = tuple(StepRecord(**step) for step in data.pop("steps"))
        return cls(steps=steps, stamps=tuple(data.pop("stamps")), notes=tuple(data.pop("notes")), **data)
