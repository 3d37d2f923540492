"""Private linear models that ask for no bounds: scikit-learn estimators on private statistics and full-batch steps."""

from dpilot.linear.estimators import LinearRegression
from dpilot.linear.fitting import PrivacyWarning

__all__ = ["LinearRegression", "PrivacyWarning"]
