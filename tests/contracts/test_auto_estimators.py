"""scikit-learn's own checks, for the classifier that tunes itself."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpilot.tune import AutoClassifier
from tests.thin import thin_mark


@pytest.mark.filterwarnings("ignore")
@thin_mark(parametrize_with_checks([AutoClassifier(classes="public")]), 2)
def test_the_scikit_learn_contract_holds(estimator, check):
    check(estimator)
