"""Per-sample gradient norms and weighted sums of any model, at close to the price of plain training.

``api`` is the front, ``single_backward`` the engine; rooms inside: ``trace`` (what ran in a pass, and where the records
lie), ``layers`` (norm and sum of one kind of use), ``isolate`` (one record at a time), ``replay`` (CUDA graphs).

Promises: a norm is never below that of what a record adds to a sum, and a record adds nothing to another's; a model of
which that is not known is computed record by record. May import: numerics; nothing of privacy or clipping.
"""

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
