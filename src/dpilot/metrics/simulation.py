"""How far noise moves a figure, found by adding it again to what was released: post-processing that sees no record."""

from __future__ import annotations

import numpy as np

from dpilot._arrays import Floats

__all__ = ["standard_draws"]


def standard_draws(*shape: int) -> Floats:
    """Standard normal numbers, the same at every call: they hide nothing, and an interval shall not vary."""
    return np.random.default_rng(0).standard_normal(shape)
