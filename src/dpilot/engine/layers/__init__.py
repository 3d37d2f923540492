"""Layer rules, one family a file, registered by the name of the torch operation they stand for.

Promises: a use of a weight bounds the norm of every record's gradient, rounding included, and adds no more than that
norm to a sum. May import: base, batch and numerics; not who watches the pass.
"""

from dpilot.engine.layers import attention, broadcast, conv, embedding, linear, norm, recurrent
from dpilot.engine.layers.base import RULES

__all__ = ["RULES", "attention", "broadcast", "conv", "embedding", "linear", "norm", "recurrent"]
