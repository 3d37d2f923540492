"""A fitted model: predictions lie in the released range, and no row changes another's."""

from __future__ import annotations

import numpy as np

from dpilot.linear.model import LinearModel
from dpilot.linear.standardise import Scaling


def model() -> LinearModel:
    scaling = Scaling(np.zeros(3), np.ones(3), np.full(3, -4.0), np.full(3, 4.0))
    return LinearModel.of(np.array([3.0, -1.0, 0.5]), scaling, intercept=True)


def test_predictions_are_pulled_into_the_range_of_the_target():
    assert model().predict(np.array([[4.0, 0.0], [-4.0, 0.0], [0.0, 0.0]])).tolist() == [4.0, -4.0, 0.5]


def test_features_are_pulled_into_their_intervals_and_missing_ones_are_the_centre():
    found = model().predict(np.array([[0.0, 1e9], [np.nan, -1.0]]))
    assert found.tolist() == [-3.5, 1.5]
