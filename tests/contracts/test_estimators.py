"""scikit-learn's own checks, for every estimator."""

from __future__ import annotations

import pytest
from sklearn.base import is_regressor
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

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


OTHER_LABELS = dict.fromkeys(
    (
        "check_classifiers_one_label", "check_classifiers_classes", "check_classifiers_train",
        "check_classifiers_regression_target", "check_supervised_y_no_nan", "check_decision_proba_consistency",
    ),
    "fits labels that were not declared, which make null records: docs/searches.md",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_with_a_list_of_classes_all_checks_hold_but_those_that_fit_other_labels():
    found = check_estimator(LogisticRegression(classes=[0, 1, 2]), on_fail=None)
    failed = {each["check_name"] for each in found if each["status"] == "failed"}
    assert failed == set(OTHER_LABELS)
