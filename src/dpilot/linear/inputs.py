"""From what scikit-learn users pass to a table of numbers: facts of the table raise, no value in it ever does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from dpilot.statistics.rows import Floats

__all__ = ["features", "features_and_target", "numbers"]

_LOOSE = {"dtype": None, "ensure_all_finite": False}


def numbers(values: NDArray[Any]) -> Floats:
    """Float64, where what is no number becomes nan: the null record.

    >>> numbers(np.array([1, "2.5", "two", None, {}], dtype=object)).tolist()
    [1.0, 2.5, nan, nan, nan]
    """
    if values.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float64)
    flat = [_number(value) for value in values.ravel().tolist()]
    return np.asarray(flat, dtype=np.float64).reshape(values.shape)


def features(estimator: Any, X: Any) -> Floats:
    """The features a fitted estimator predicts from."""
    return numbers(np.asarray(validate_data(estimator, X, reset=False, **_LOOSE)))


def features_and_target(estimator: Any, X: Any, y: Any) -> tuple[Floats, NDArray[Any]]:
    """Features as numbers and the target as it is, after checks of shapes, lengths and types."""
    X, y = validate_data(estimator, X, y, validate_separately=(_LOOSE, {**_LOOSE, "ensure_2d": False}))
    check_consistent_length(X, y)
    return numbers(np.asarray(X)), column_or_1d(np.asarray(y), warn=True)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan
