"""Private linear models that ask for no bounds: scikit-learn estimators on private statistics and full-batch steps."""

from dpilot.errors import PrivacyWarning
from dpilot.linear.auto_regressor import AutoRegressor, Score
from dpilot.linear.classifier import LogisticRegression
from dpilot.linear.estimators import LinearRegression
from dpilot.linear.pipeline import Finding, check_pipeline
from dpilot.linear.scaler import PrivateStandardScaler

__all__ = [
    "AutoRegressor",
    "Finding",
    "LinearRegression",
    "LogisticRegression",
    "PrivacyWarning",
    "PrivateStandardScaler",
    "Score",
    "check_pipeline",
]
