"""A cell of a grid: one run that is named by what decides it, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """What is run: data, model, method, epsilon, settings, seed. ``key`` is its name in the files of lines.

    >>> cell = Cell("mnist", "cnn-2", "slack", 3.0, {"lr": 0.1})
    >>> cell.of(lr=0.2).settings, cell.at(2).seed, cell.key == Cell("mnist", "cnn-2", "slack", 3, {"lr": 0.1}).key
    ({'lr': 0.2}, 2, True)
    """

    data: str
    model: str
    method: str
    epsilon: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def key(self) -> str:
        """The same text for the same cell, in whatever order its settings were written."""
        plain = {**asdict(self), "epsilon": float(self.epsilon), "settings": dict(self.settings)}
        return json.dumps(plain, sort_keys=True)

    def at(self, seed: int) -> Cell:
        return replace(self, seed=seed)

    def of(self, **settings: Any) -> Cell:
        """The cell with these settings in place of, or beside, its own."""
        return replace(self, settings={**self.settings, **settings})
