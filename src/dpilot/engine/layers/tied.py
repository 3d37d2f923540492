"""A table that is both looked up and multiplied with: language models whose output layer is their embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpilot.engine.layers.base import Use
from dpilot.engine.layers.embedding import Lookups
from dpilot.engine.layers.gram import GramParts
from dpilot.engine.layers.linear import Product
from dpilot.numerics import euclidean, precision

Pair = tuple[Product, Lookups]


def tied_parts(uses: Sequence[Use]) -> tuple[GramParts, Pair] | None:
    """The norm of a product P and look-ups L in one table, its gradient unformed, and what to sum; None for other uses.

    A look-up is a token like any: its input is the gradient r_s of its row, its error the unit vector of its id. So
    |P + L|^2 = |P|^2 + 2 sum_st e_t[id_s] <a_t, r_s> + |L|^2, and only the first is a Gram norm of wide errors.

    Guarantee:
        What rounding can hide of the last two terms is in the square: u_L (2 S_P S_L + S_L^2), S_L = sum_s |r_s|. It
        is no number wherever the inner product could overflow: then the sample is null.
    """
    pair = one_of_each(uses)
    parts = None if pair is None else pair[0].gram_parts()
    if pair is None or parts is None:
        return None
    multiplied, looked_up = pair[0], pair[1].merge()
    length, (d, p) = looked_up.magnitude(), (multiplied.inputs.shape[2], multiplied.errors.shape[2])
    unit = precision.gram_slack(d, looked_up.times, length.dtype)
    hidden = (2 * parts.scale + length) * length * unit  # the small number last: it must not hide an overflow
    vanished = looked_up.times * euclidean.root(d, length.dtype) + euclidean.root(p, length.dtype) * length
    joint = replace(
        parts,
        squares=parts.squares + 2 * across(multiplied, looked_up) + squares_of(looked_up) + hidden,
        vanished=parts.vanished + vanished,
        tokens=parts.tokens + looked_up.times,
    )
    return joint, (multiplied, looked_up)


def squares_of(merged: Lookups) -> Tensor:
    """|L|^2 of each sample, of look-ups that have every token once."""
    return euclidean.norms(merged.rows.view(merged.batch_size, merged.times * merged.rows.shape[1])).square()


def one_of_each(uses: Sequence[Use]) -> Pair | None:
    """The product and the look-ups, where these are all there is and lie in the samples' order."""
    products = [u for u in uses if isinstance(u, Product) and not u.swapped]
    lookups = [u for u in uses if isinstance(u, Lookups) and u.even and u.rows.dim() == 2]
    return (products[0], lookups[0]) if len(products) == len(lookups) == 1 and len(uses) == 2 else None


def across(multiplied: Product, looked_up: Lookups) -> Tensor:
    """The inner product <P, L> of each sample, (n,)."""
    n, a, e = looked_up.batch_size, multiplied.inputs, multiplied.errors
    ids, rows = looked_up.tokens.long().view(n, 1, looked_up.times), looked_up.rows.view(n, looked_up.times, a.shape[2])
    met, stretch = rows.new_zeros(n, a.shape[1], rows.shape[1]), precision.stretch_of(a.shape[2])
    with precision.use_full_precision():
        for start in range(0, a.shape[2], stretch):
            few = slice(start, start + stretch)
            met += torch.bmm(a[..., few].to(rows.dtype), rows[..., few].mT)
    return met.mul_(e.gather(2, ids.expand(-1, e.shape[1], -1))).sum(2).sum(1)
