"""Research looks at data that may be seen: exact gradients, without noise, of public or synthetic records only.

Every function asks for ``public=True``, and what it returns, its pictures, the record and the ledger of a run that was
looked at say "not private". Promises to refuse data that are not said to be public. May import: train and below.
What a private run released is in ``run.steps()``, and free.
"""

from dpilot.diagnose.gradients import GradientDiagnosis, gradients
from dpilot.diagnose.heat_map import HeatMap, heat_map
from dpilot.diagnose.run import RunDiagnosis, run
from dpilot.diagnose.stamp import NOT_PRIVATE

__all__ = ["NOT_PRIVATE", "GradientDiagnosis", "HeatMap", "RunDiagnosis", "gradients", "heat_map", "run"]
