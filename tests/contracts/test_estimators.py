"""scikit-learn's own checks, for every estimator."""

from __future__ import annotations

import pytest
from sklearn.base import is_regressor
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from dpilot import AutoClassifier
from dpilot.linear import AutoRegressor, LinearRegression, LogisticRegression, PrivateStandardScaler
from dpilot.tune import PrivateSearchCV
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


OTHER_LABELS = {
    "check_classifiers_one_label", "check_classifiers_classes", "check_classifiers_train",
    "check_classifiers_regression_target", "check_supervised_y_no_nan", "check_decision_proba_consistency",
}  # fmt: skip
"""Fit labels that were not declared, which make null records: docs/searches.md."""
TWO_FITS = {"check_fit_idempotent", "check_supervised_y_2d", "check_classifier_data_not_an_array"}
"""Compare two fits: a search holds other records out in each, whatever its seed."""
CLASSES, GRID, TWO = [0, 1, 2], {"fit_intercept": [True, False]}, {"mode": "composed", "trials": 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (LogisticRegression(classes=CLASSES), OTHER_LABELS),
        (AutoClassifier(classes=CLASSES), OTHER_LABELS),
        (PrivateSearchCV(LogisticRegression(classes=CLASSES), GRID, **TWO), OTHER_LABELS | TWO_FITS),
        (PrivateSearchCV(LinearRegression(), GRID, target_bounds=(-9, 9), **TWO), {*NULL_RECORDS, *TWO_FITS}),
    ],
    ids=["LogisticRegression", "AutoClassifier", "a search of classifiers", "a search of regressors"],
)
def test_with_a_list_of_classes_all_checks_hold_but_those_that_fit_other_labels(estimator, expected):
    found = check_estimator(estimator, on_fail=None)
    assert {each["check_name"] for each in found if each["status"] == "failed"} <= expected
