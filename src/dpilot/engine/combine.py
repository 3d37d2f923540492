"""Several uses of one parameter, counted once with their full gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpilot.engine import precision
from dpilot.engine.layers.base import Dense, Use
from dpilot.engine.layers.embedding import Lookups
from dpilot.engine.layers.linear import Product, merge

MEMORY = 1 << 24
"""Numbers materialised at a time when uses of different kinds must be added before their norm is known."""


def combine(uses: Sequence[Use]) -> tuple[Tensor, tuple[Use, ...]]:
    """Squared norms of the sum of all uses, and the uses to sum with.

    Uses of one kind merge exactly (more tokens, more rows, added values). Uses of different kinds are materialised and
    added, a few samples at a time; their sum is still formed use by use, so the rounding of those products is added to
    the norm: (|g| + c u S)^2 with S the sum of the magnitudes.
    """
    merged = uses if len(uses) == 1 else merge_alike(uses)
    if len(merged) == 1:
        squares, use = merged[0].measure()
        return squares, (use,)
    apart = [use.merged() if isinstance(use, Lookups) else use for use in merged]
    return materialise(apart), tuple(apart)


def merge_alike(uses: Sequence[Use]) -> list[Use]:
    """Merge dense uses with each other, products with each other, look-ups with each other."""
    dense = [u for u in uses if isinstance(u, Dense)]
    lookups = [u for u in uses if isinstance(u, Lookups)]
    products: dict[Any, list[Product]] = {}
    for u in uses:
        if isinstance(u, Product):
            products.setdefault((u.swapped, u.grade), []).append(u)
    rest = [u for u in uses if not isinstance(u, (Dense, Lookups, Product))]
    merged: list[Use] = list(rest)
    if dense:
        values: Any = sum(u.values for u in dense)
        merged.append(Dense(values))
    if lookups:
        merged.append(one_lookup(lookups))
    merged.extend(p[0] if len(p) == 1 else merge(p) for p in products.values())
    return merged


def one_lookup(uses: Sequence[Lookups]) -> Lookups:
    """Look-ups in the same table, one after the other."""
    if len(uses) == 1:
        return uses[0]
    tokens, owners, rows = (torch.cat([getattr(u, f) for u in uses]) for f in ("tokens", "owners", "rows"))
    return Lookups(tokens, owners, rows, uses[0].batch_size, uses[0].vocabulary)


def materialise(uses: Sequence[Use]) -> Tensor:
    """Squared norms of summed gradients, a few samples at a time."""
    scales = torch.stack([u.magnitude() for u in uses]).sum(0)
    n = scales.shape[0]
    one = uses[0].gradients(0, 1).numel()
    step = max(1, MEMORY // one)
    norms = [precision.lengths(gradients(uses, at, min(at + step, n)).flatten(1)) for at in range(0, n, step)]
    grade = max((getattr(u, "grade", precision.FULL) for u in uses), key=lambda g: g.shave)
    tokens = max(MEASURED_TOKENS, *(u.inputs.shape[1] for u in uses if isinstance(u, Product)), 0)
    slack = precision.product_slack(tokens, scales.dtype, grade) * scales
    return torch.square(torch.cat(norms) + slack)


def gradients(uses: Sequence[Use], start: int, stop: int) -> Tensor:
    """Summed gradients of samples start .. stop; look-ups are added in place, without a table of their own."""
    ordered = sorted(uses, key=lambda use: 0 if isinstance(use, Product) else 2 if isinstance(use, Lookups) else 1)
    first = ordered[0].gradients(start, stop)
    whole = first if isinstance(ordered[0], Product) else first.clone(memory_format=torch.contiguous_format)
    for use in ordered[1:]:
        if isinstance(use, Lookups):
            use.add_to(whole, start)
        else:
            whole += use.gradients(start, stop)
    return whole


MEASURED_TOKENS = 1024
"""Tokens assumed at least for the rounding of products whose uses are mixed."""
