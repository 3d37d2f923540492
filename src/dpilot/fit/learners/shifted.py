"""A predictor whose log odds are moved by released numbers: the threshold of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpilot._arrays import Floats
from dpilot.fit.learners.base import Predictor

__all__ = ["OFFSETS", "ShiftedPredictor", "shift"]

OFFSETS = "offsets"


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedPredictor:
    """``predictor`` with ``offsets``, one a class, added to its outputs; saved as the predictor it is of."""

    predictor: Predictor
    offsets: tuple[float, ...]

    @property
    def kind(self) -> str:
        return self.predictor.kind

    def outputs(self, rows: Any) -> Floats:
        return np.asarray(self.predictor.outputs(rows) + np.asarray(self.offsets))

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        plain, tensors = self.predictor.state()
        return {**plain, OFFSETS: list(self.offsets)}, tensors


def shift(predictor: Predictor, offsets: Any) -> Predictor:
    """The same predictor, or where there are ``offsets`` one with outputs moved by them."""
    return predictor if offsets is None else ShiftedPredictor(predictor, tuple(map(float, offsets)))
