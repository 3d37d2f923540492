"""Several uses of one parameter, counted once with their full gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpilot.engine.layers.base import Dense, Use
from dpilot.engine.layers.embedding import Lookups
from dpilot.engine.layers.formed import Formed
from dpilot.engine.layers.linear import Product, merge


def combine(uses: Sequence[Use]) -> tuple[Tensor, tuple[Use, ...]]:
    """Squared norms of the sum of all uses, and the uses to sum with.

    Uses of one kind merge exactly (more tokens, more rows, added values). Gradients of uses of different kinds are
    formed and added, a few samples at a time, to be measured and to be summed.
    """
    merged = uses if len(uses) == 1 else merge_alike(uses)
    if len(merged) == 1:
        squares, use = merged[0].measure()
        return squares, (use,)
    apart = tuple(use.merge() if isinstance(use, Lookups) else use for use in merged)
    formed = Formed.of(apart, apart[0].magnitude().shape[0])
    return formed.measure()[0], (formed,)


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
