"""A figure over two settings, such as accuracy over threshold and batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.diagnose.stamp import NOT_PRIVATE, new_figure, require_public, save_figure
from dpilot.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """``values[i, j]``: the mean of a figure where one setting is ``rows[i]`` and the other ``columns[j]``.

    ``spread``: the standard deviation over repeats, 0 where there is one.
    """

    names: tuple[str, str]
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    values: Floats = field(repr=False)
    spread: Floats = field(repr=False)
    stamp: str = NOT_PRIVATE

    @property
    def best(self) -> dict[str, Any]:
        """The settings of the largest mean."""
        row, column = np.unravel_index(int(np.nanargmax(self.values)), self.values.shape)
        return {self.names[0]: self.rows[row], self.names[1]: self.columns[column]}

    def frame(self) -> pd.DataFrame:
        """The means: one row a value of the first setting, one column a value of the second."""
        import pandas as pd

        index, columns = (pd.Index(v, name=n) for v, n in zip((self.rows, self.columns), self.names, strict=True))
        made = pd.DataFrame(self.values, index=index, columns=columns)
        made.attrs["stamp"] = self.stamp
        return made

    def plot(self, path: str | Path, *, title: str = "", form: str = ".3g") -> Path:
        """The map, each mean written in its cell, the best one framed."""
        figure = new_figure(max(5.0, 2 + 0.9 * len(self.columns)), 2 + 0.5 * len(self.rows), title)
        axes = figure.subplots()
        figure.colorbar(axes.imshow(self.values, aspect="auto", cmap="viridis"), ax=axes)
        middle = np.nanmean([np.nanmin(self.values), np.nanmax(self.values)])
        for (i, j), value in np.ndenumerate(self.values):
            axes.text(j, i, format(value, form), ha="center", va="center", color="w" if value < middle else "k")
        i, j = self.rows.index(self.best[self.names[0]]), self.columns.index(self.best[self.names[1]])
        axes.add_patch(_frame_patch(i, j))
        axes.set_yticks(range(len(self.rows)), [f"{each:g}" for each in self.rows])
        axes.set_xticks(range(len(self.columns)), [f"{each:g}" for each in self.columns])
        axes.set(ylabel=self.names[0], xlabel=self.names[1])
        return save_figure(figure, path)


def heat_map(measure: Callable[..., float], *, public: bool, repeats: int = 1, **settings: Sequence[Any]) -> HeatMap:
    """``measure(first=.., second=..)`` for all pairs of two settings; with ``repeats``, also ``seed=0``, ``1``, ...

    ``measure`` may train and score on public records without noise, which is why ``public=True`` is asked for.

    Example:
        >>> heat_map(lambda lr, threshold: lr - threshold, public=True, lr=[0.1, 1.0], threshold=[1.0, 4.0]).best
        {'lr': 1.0, 'threshold': 1.0}
    """
    require_public(public)
    if len(settings) != 2 or not all(len(each) for each in settings.values()):
        raise InvalidInput(
            f"settings are {sorted(settings)}: expected two, each with values, such as threshold=[0.1, 1], lr=[0.5, 2]."
        )
    (first, rows), (second, columns) = settings.items()
    seeds = [{}] if _validate.count(repeats=repeats) == 1 else [{"seed": each} for each in range(repeats)]
    found = np.array(
        [[[measure(**{first: a, second: b}, **seed) for seed in seeds] for b in columns] for a in rows],
        dtype=np.float64,
    )
    return HeatMap((first, second), tuple(rows), tuple(columns), found.mean(-1), found.std(-1))


def _frame_patch(row: int, column: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="red", linewidth=2)
