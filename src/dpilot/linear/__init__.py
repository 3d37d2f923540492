"""Private linear models that ask for no bounds: scikit-learn estimators on private statistics and full-batch steps.

Promises: each method, one a file, releases sums whose bound it states, under receipts of one commitment. May import:
data, metrics, statistics, private_sum and what is below; neither train nor transfer.
"""

import sys
from typing import Any

from dpilot.errors import PrivacyWarning
from dpilot.linear.classifier import LogisticRegression
from dpilot.linear.estimators import LinearRegression
from dpilot.linear.pipeline import PipelineFinding, check_pipeline
from dpilot.linear.scaler import PrivateStandardScaler

__all__ = [
    "LinearRegression",
    "LogisticRegression",
    "PipelineFinding",
    "PrivacyWarning",
    "PrivateStandardScaler",
    "check_pipeline",
]


def __getattr__(name: str) -> Any:
    if name == "AutoRegressor":  # lives in fit, above: the root knows where
        return sys.modules["dpilot"].AutoRegressor
    raise AttributeError(f"module 'dpilot.linear' has no attribute {name!r}")
