"""What a fit of grids released: tables that are added up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoder
from dpilot.fit.grids.design import Cells, Design, TableRows, Term, Waves
from dpilot.fit.grids.levels import Levels, columns_of, dense_columns
from dpilot.fit.grids.training import contrasts
from dpilot.linear.model import LinearModel

__all__ = ["GridPredictor", "dense_rows"]

_ROWS: Final = 1 << 15  # predicted at a time


@dataclass(frozen=True, slots=True, eq=False)
class GridPredictor:
    """Tables of columns, pairs and triples, and waves, that add up to the outputs: all of it released.

    ``tables`` (cells, outputs) and ``beside`` (waves, texts and vectors; outputs) are in contrasts of the classes, or
    in units of ``spread`` about ``centre`` for a number. ``noise``: the standard deviation that privacy noise gives
    each entry of ``tables``.
    """

    levels: Levels
    design: Design
    dense: tuple[slice, ...]
    tables: Floats
    beside: Floats
    noise: Floats
    classes: int = 0  # none of a number
    centre: float = 0.0
    spread: float = 1.0
    interval: tuple[float, float] | None = None
    linear: LinearModel | None = None  # that the tables correct, where the target is a number
    kind: str = "grids"

    def outputs(self, rows: Any) -> Floats:
        """Logits, or the number, pulled into its declared bounds; nan in the row of a null record."""
        starts = range(0, max(len(rows), 1), _ROWS)
        return np.concatenate([self._outputs(np.asarray(rows[start : start + _ROWS])) for start in starts])

    def _outputs(self, rows: Any) -> Floats:
        features = np.asarray(rows, dtype=np.float32)
        known = np.isfinite(features).all(axis=1, keepdims=True)
        read = TableRows(self.levels.codes(features), np.ones(len(features)), dense_rows(features, self.dense))
        made = np.concatenate(
            [
                cells @ self.tables + (beside @ self.beside)[: cells.shape[0]]
                for _, cells, beside in read.blocks(self.design)
            ]
        )
        if self.classes:
            return np.where(known, made @ contrasts(self.classes).T, np.nan)
        values = self.centre + self.spread * made
        if self.linear is not None:
            values += self.linear.predict(features.astype(np.float64))[:, None]
        return np.where(known, values if self.interval is None else np.clip(values, *self.interval), np.nan)

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        design, terms = self.design, self.design.cells.terms
        plain = {
            "columns": [list(term.columns) for term in terms],
            "shapes": [list(term.shape) for term in terms],
            "additive": design.additive,
            "shares": [design.wave_share, design.dense_share],
            "classes": self.classes,
            "number": [self.centre, self.spread],
            "interval": None if self.interval is None else list(self.interval),
        }
        arrays = {
            "tables": self.tables,
            "beside": self.beside,
            "noise": self.noise,
            "lookups": np.concatenate([np.zeros(0, np.int32), *(each for term in terms for each in term.lookups)]),
            "marginals": self.levels.flat,
            "phases": np.zeros((0, 0)) if design.waves is None else design.waves.phases,
        }
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        if self.linear is not None:
            plain["linear"], more = self.linear.state()
            tensors |= {f"linear {name}": torch.from_numpy(array) for name, array in more.items()}
        return plain, tensors

    @classmethod
    def load(cls, plain: Mapping[str, Any], tensors: Mapping[str, Any], reader: Any) -> GridPredictor:
        """The predictor that ``state`` describes."""
        assert isinstance(reader, Encoder)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        columns, dense = columns_of(reader), dense_columns(reader)
        levels = Levels.of_flat(columns, arrays["marginals"])
        places = [tuple(map(int, each)) for each in plain["columns"]]
        lookups = iter(_cut(arrays["lookups"], [columns[place].levels for each in places for place in each]))
        terms = tuple(
            Term(each, tuple(next(lookups) for _ in each), tuple(map(int, shape)))
            for each, shape in zip(places, plain["shapes"], strict=True)
        )
        wave_share, dense_share = map(float, plain["shares"])
        waves = Waves(arrays["phases"]) if arrays["phases"].size else None
        width = sum(each.stop - each.start for each in dense)
        design = Design(Cells(terms), None, int(plain["additive"]), waves, wave_share, dense_share, width)
        interval = None if plain["interval"] is None else (float(plain["interval"][0]), float(plain["interval"][1]))
        centre, spread = map(float, plain["number"])
        linear = None
        if "linear" in plain:
            more = {name.removeprefix("linear "): array for name, array in arrays.items() if name.startswith("linear ")}
            linear = LinearModel.of_state(plain["linear"], more)
        return cls(
            levels, design, dense, arrays["tables"], arrays["beside"], arrays["noise"], int(plain["classes"]),
            centre, spread, interval, linear,
        )  # fmt: skip


def dense_rows(features: NDArray[Any], dense: tuple[slice, ...]) -> NDArray[np.float32] | None:
    """Texts and vectors side by side, each over the root of their number, so that all are no longer than 1."""
    if not dense:
        return None
    rows = np.concatenate([features[:, each] for each in dense], axis=1)
    return np.asarray(rows / math.sqrt(len(dense)), dtype=np.float32)


def _cut(whole: NDArray[Any], lengths: list[int]) -> list[NDArray[Any]]:
    return np.split(whole, np.cumsum(lengths)[:-1]) if lengths else []
