"""The parameters that all private estimators share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.cells import Cells
from dpilot.data.units import group_rows
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, fresh_key
from dpilot.linear.fitting import problem_of
from dpilot.linear.problem import LinearProblem
from dpilot.linear.rows import MemoryRows, finite_rows
from dpilot.privacy.unit import ROWS_PER_UNIT, PrivacyUnit
from dpilot.records import FitRecord, Influence

__all__ = ["PrivateEstimator"]

_SHOWN: Final = 100  # columns, in a record


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The budget of an estimator, whom it protects, where it pays, and the noise of tests: scikit-learn's parameters.

    ``unit`` names the column of ids of units (persons, devices) that are protected with all their rows, None for each
    row by itself; ``size`` is then the number of units. See ``PrivacyUnit``. Each estimator adds parameters of its own.
    As scikit-learn asks, nothing is checked before ``fit``.
    """

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    size: str | int = "public"
    unit: str | None = None
    rows_per_unit: Any = ROWS_PER_UNIT
    missing_unit: str = "null"
    ledger: Any = None
    allow_large_delta: bool = False
    random_state: Any = None

    def record(self) -> FitRecord:
        """The fit as reports see it: declared and released values only."""
        check_is_fitted(self)
        privacy = self.privacy_
        plain = {name: value for name, value in self.get_params().items() if isinstance(value, str | int | float)}
        apart = (
            "epsilon",
            "delta",
            "unit",
            "rows_per_unit",
            "missing_unit",
            "allow_large_delta",
            "random_state",
            "size",
        )
        return FitRecord.of(
            epsilon=privacy.spent.epsilon,
            delta=privacy.spent.delta,
            accounting="scaling, choice of the method and fit, together, priced before a record was read",
            unprotected=privacy.unprotected,
            unit=privacy.unit,
            tuning="inside",
            paid_in=privacy.paid_in,
            data={"size": plain.get("size"), "features": self.n_features_in_},
            plan={
                "model": type(self).__name__,
                **{name: value for name, value in plain.items() if name not in apart},
                "choice": getattr(self, "choice_", None),
            },
            decisions=("Columns are scaled by what was bought or declared, inside the total.",),
            ledger=tuple(entry.as_dict() for entry in privacy.entries),
            stamps=(privacy.noise,),
            influences=self._influences(),
        )

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the report of the fit, one HTML page; it costs nothing. ``options``: see ``FitRecord.write_report``."""
        return self.record().write_report(path, **options)

    def _influences(self) -> tuple[Influence, ...]:
        """The coefficients over the released intervals of their columns, the largest first."""
        if not hasattr(self, "coef_"):
            return ()
        count = self.n_features_in_
        names = getattr(self, "feature_names_in_", [f"column {place}" for place in range(count)])
        reach = np.reshape(self.coef_, (-1, count)) * (self.upper_ - self.lower_)
        moves = reach[np.argmax(np.abs(reach), axis=0), np.arange(count)]
        found = []
        for name, move, low, high in zip(names, moves, self.lower_, self.upper_, strict=True):
            ends = f"{low:.4g}", f"{high:.4g}"
            found.append(Influence(str(name), abs(float(move)), *(ends if move >= 0 else ends[::-1])))
        return tuple(sorted(found, key=lambda each: -each.effect)[:_SHOWN])

    def _html_repr(self) -> str:
        """What a notebook shows: scikit-learn's own, and after a fit what it cost and how good it is."""
        fitted = getattr(self, "privacy_", None) is not None
        return str(super()._html_repr()) + (self.record().summary_table(type(self).__name__) if fitted else "")

    def _problem(self, features: int, length: int, *, intercept: bool) -> tuple[LinearProblem, tuple[str, ...]]:
        """The problem that the parameters declare, and what they leave unprotected."""
        return problem_of(
            self.epsilon,
            self.delta,
            features=features,
            intercept=intercept,
            size=self.size,
            length=length,
            allow_large_delta=self.allow_large_delta,
            ledger=self.ledger,
        )

    def _unit(self, column: str | None = None, units: Any = None) -> PrivacyUnit:
        """The unit that the parameters declare; where they name none, that of ``column``, or of nameless ``units``."""
        if column is not None and self.unit not in (None, column):
            raise InvalidInput(f"unit is {column!r}, and the estimator's is {self.unit!r}: name it once.")
        name = column if self.unit is None else self.unit
        if name is None and units is not None:
            name = "unit"
        return PrivacyUnit.of(name, None if name is None else self._most_rows(), self.missing_unit)

    def _most_rows(self) -> int:
        """How many rows of a unit count at most."""
        return _validate.count(rows_per_unit=self.rows_per_unit)

    def _rows(self, table: Floats, ids: Cells | None, unit: PrivacyUnit) -> tuple[MemoryRows, int]:
        """The rows of a table in memory, and the number of units; of records, where there are no ``ids``."""
        if ids is None:
            return MemoryRows.of(table), len(table)
        if len(ids) != len(table):
            raise InvalidInput("X and units have inconsistent numbers of rows: expected one id for each row.")
        units = group_rows(ids, unit, key=self._unit_key(), usable=finite_rows(table))
        return MemoryRows.of(table, units), units.count

    def _unit_key(self) -> bytes:
        """The secret by which rows of a unit are chosen; a ``random_state`` fixes it as it fixes the noise."""
        if self.random_state is None:
            return fresh_key("units")
        made: bytes = check_random_state(self.random_state).bytes(KEY_BYTES)
        return made
