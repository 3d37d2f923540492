"""scikit-learn's own checks, for every estimator."""

from __future__ import annotations

import pytest
from sklearn.base import is_regressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpilot.linear import AutoRegressor, LinearRegression, LogisticRegression, PrivateStandardScaler
from tests.thin import thin_mark

NULL_RECORDS = {"check_supervised_y_no_nan": "a record with a target that is not finite is the null record: silent"}
ESTIMATORS = [AutoRegressor(), LinearRegression(), LogisticRegression(classes="public"), PrivateStandardScaler()]
CHECKS = parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=lambda estimator: NULL_RECORDS if is_regressor(estimator) else {}
)


@pytest.mark.filterwarnings("ignore")
@thin_mark(CHECKS, 2)
def test_the_scikit_learn_contract_holds(estimator, check):
    check(estimator)
