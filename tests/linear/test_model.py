"""A fitted model: predictions lie in the released range, and no row changes another's."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot.linear.model import LinearModel
from dpilot.linear.standardise import Scaling
from dpilot.numerics.products import products


def model() -> LinearModel:
    scaling = Scaling(np.zeros(3), np.ones(3), np.full(3, -4.0), np.full(3, 4.0))
    return LinearModel.of(np.array([3.0, -1.0, 0.5]), scaling, intercept=True)


def test_predictions_are_pulled_into_the_range_of_the_target():
    assert model().predict(np.array([[4.0, 0.0], [-4.0, 0.0], [0.0, 0.0]])).tolist() == [4.0, -4.0, 0.5]


def test_features_are_pulled_into_their_intervals_and_missing_ones_are_the_centre():
    found = model().predict(np.array([[0.0, 1e9], [np.nan, -1.0]]))
    assert found.tolist() == [-3.5, 1.5]


@pytest.mark.parametrize("n", [1, 3, 16, 17, 100])
def test_every_product_is_taken_in_a_block_of_a_size_that_is_no_secret(n, monkeypatch):
    """Kernels for other shapes round otherwise: one row more must not change the shape of another's product."""
    shapes = []

    class Watched(np.ndarray):
        def __rmatmul__(self, rows):
            shapes.append(rows.shape)
            return np.asarray(rows) @ np.asarray(self)

        __array_priority__ = 1000
        __array_ufunc__ = None

    products(np.random.default_rng(0).normal(size=(n, 3)), np.ones(3).view(Watched))
    mine = list(shapes)
    shapes.clear()
    products(np.random.default_rng(0).normal(size=(n + 1, 3)), np.ones(3).view(Watched))
    assert shapes[: len(mine)] == mine
