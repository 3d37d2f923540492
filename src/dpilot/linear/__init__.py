"""Private linear models that ask for no bounds: scikit-learn estimators on private statistics and full-batch steps."""

from dpilot.errors import PrivacyWarning
from dpilot.linear.auto_regressor import AutoRegressor, RegressionScore
from dpilot.linear.classifier import LogisticRegression
from dpilot.linear.estimators import LinearRegression
from dpilot.linear.pipeline import PipelineFinding, check_pipeline
from dpilot.linear.scaler import PrivateStandardScaler

__all__ = [
    "AutoRegressor",
    "LinearRegression",
    "LogisticRegression",
    "PipelineFinding",
    "PrivacyWarning",
    "PrivateStandardScaler",
    "RegressionScore",
    "check_pipeline",
]
