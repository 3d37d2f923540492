"""Per-sample gradient norms and weighted sums of any model, at close to the price of plain training."""

from dpilot.engine.api import names, per_sample
from dpilot.engine.base import NoRule, PerSample, Problem
from dpilot.engine.check import check, replace_batch_norm
from dpilot.engine.made_up import refuse_mixing
from dpilot.engine.replay.graphed import Graphed
from dpilot.engine.self_check import self_check

__all__ = [
    "Graphed",
    "NoRule",
    "PerSample",
    "Problem",
    "check",
    "names",
    "per_sample",
    "refuse_mixing",
    "replace_batch_norm",
    "self_check",
]
