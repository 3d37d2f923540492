"""scikit-learn's own checks, for the classifier that tunes itself."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpilot.tune import AutoClassifier

NULL_RECORDS = {"check_supervised_y_no_nan": "a record with a target that is not finite is the null record: silent"}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([AutoClassifier(classes="public")], expected_failed_checks=lambda _: NULL_RECORDS)
def test_the_scikit_learn_contract_holds(estimator, check):
    check(estimator)
