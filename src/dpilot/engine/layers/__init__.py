"""Layer rules, one family a file, registered by the name of the torch operation they stand for."""

from dpilot.engine.layers import attention, broadcast, conv, embedding, linear, norm, recurrent
from dpilot.engine.layers.base import RULES

__all__ = ["RULES", "attention", "broadcast", "conv", "embedding", "linear", "norm", "recurrent"]
