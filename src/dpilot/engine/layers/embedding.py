"""Look-ups: F.embedding, table[ids], bags of look-ups, and tables that are multiplied with as well (tied weights)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.base import NoRule, accumulator
from dpilot.engine.layers.base import MakeUse, Operation, Scope, Use, detach_unseen, rule
from dpilot.engine.layers.linear import GramParts, Product
from dpilot.numerics import precision
from dpilot.numerics.grid import Grid


@dataclass(frozen=True, slots=True)
class Lookups:
    """g_i = sum over the tokens of sample i of one_hot(token) e^T: rows (N, *row) for token ids and owners (N,).

    Norm: rows of the same sample and token are added first, so that a repeated word counts once with its full gradient,
    and are summed as they were measured. What is left over of the rows then is zero: their number stays the same, so
    that nobody has to wait for a count.
    ``even`` says that every sample has as many rows as any, those of one sample together and in the samples' order.
    """

    tokens: Tensor
    owners: Tensor
    rows: Tensor
    batch_size: int
    vocabulary: int
    even: bool = False

    def measure(self) -> tuple[Tensor, Use]:
        merged = self.merge()
        each = merged._flat().square().sum(1)
        if self.even:
            return each.view(self.batch_size, self.times).sum(1), merged
        wide = each.double() if each.device.type != "mps" else each  # one after the other: float32 would lean
        squares = wide.new_zeros(self.batch_size).index_add_(0, merged.owners, wide)
        return squares.to(each.dtype), merged

    def _flat(self) -> Tensor:
        """Rows as (N, numbers); those of a table of one dimension are one number."""
        return self.rows[:, None] if self.rows.dim() == 1 else self.rows.flatten(1)

    @property
    def times(self) -> int:
        """How many rows each sample has, where all have as many."""
        return self.rows.shape[0] // self.batch_size

    def merge(self) -> Lookups:
        """The same with every token of a sample once."""
        if self.even:
            tokens, rows = sum_equal_keys(self.tokens.view(self.batch_size, self.times), self.rows)
            return replace(self, tokens=tokens, rows=rows)
        keys, rows = sum_equal_keys((self.owners * self.vocabulary + self.tokens)[None], self.rows)
        return replace(self, tokens=keys % self.vocabulary, owners=keys // self.vocabulary, rows=rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        rows = self.rows * weights[self.owners].view(-1, *[1] * (self.rows.dim() - 1))
        return rows.new_zeros(self.vocabulary, *rows.shape[1:]).index_add_(0, self.tokens, rows)

    def sum_on_grid(self, weights: Tensor, grid: Grid) -> Tensor:
        """The sum of what each sample adds to each row of the table, rounded to the grid, of merged look-ups."""
        rows = self.rows * (weights[self.owners].double() / grid.size).view(-1, *[1] * (self.rows.dim() - 1))
        whole = rows.new_zeros(self.vocabulary, *rows.shape[1:])
        return whole.index_add_(0, self.tokens, rows.round_()).mul_(grid.size)

    def gradients(self, start: int, stop: int) -> Tensor:
        whole = self.rows.new_zeros(stop - start, self.vocabulary, *self.rows.shape[1:])
        self.add_to(whole, start)
        return whole

    def add_to(self, whole: Tensor, start: int) -> None:
        """Add the gradients of samples from ``start`` on to (samples, vocabulary, *row) in place."""
        few = whole.shape[0]
        rows, owners, tokens = self.rows, self.owners - start, self.tokens
        theirs = (owners >= 0) & (owners < few)
        if self.even:  # nobody has to look which rows are theirs
            mine = slice(start * self.times, (start + few) * self.times)
            rows, owners, tokens = rows[mine], owners[mine], tokens[mine]
        elif rows.is_cuda:  # counting the chosen ones would make the processor wait
            owners, rows = owners.clamp(0, few - 1), torch.where(theirs.view(-1, *[1] * (rows.dim() - 1)), rows, 0.0)
        else:
            rows, owners, tokens = rows[theirs], owners[theirs], tokens[theirs]
        whole.view(-1, *rows.shape[1:]).index_add_(0, owners * self.vocabulary + tokens, rows)

    def magnitude(self) -> Tensor:
        lengths = precision.lengths(self._flat())
        return torch.zeros(self.batch_size, dtype=lengths.dtype, device=lengths.device).index_add_(
            0, self.owners, lengths
        )

    def keep(self, finite: Tensor) -> Lookups:
        mine = finite[self.owners].view(-1, *[1] * (self.rows.dim() - 1))
        return replace(self, rows=torch.where(mine, self.rows, 0.0))


def sum_equal_keys(keys: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Keys (groups, S) once each, with the sums of their rows (groups S, *row); left over are keys 0 with zeros."""
    groups, size = keys.shape
    ordered, order = torch.sort(keys, dim=1)
    fresh = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))[:, :size]
    place = torch.cumsum(fresh, 1)  # equal keys are added in one place
    first = torch.arange(groups, device=keys.device)[:, None] * size
    found = torch.zeros_like(rows).index_add_(0, (first + place).flatten(), rows[(first + order).flatten()])
    return torch.zeros_like(ordered).scatter_(1, place, ordered).flatten(), found


def lookup_use(weight: Tensor, n: int, padding: int | None) -> MakeUse:
    """The use a table leaves from (ids,) and the gradient of the looked-up rows."""

    def make(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        ids = saved[0].reshape(-1)
        rows = e.to(accumulator(e)).reshape(-1, *weight.shape[1:])
        whose = sample_of(saved[0], n)
        if padding is not None:
            rows = torch.where((ids == padding).view(-1, *[1] * (rows.dim() - 1)), 0.0, rows)
        return Lookups(ids, whose, rows, n, weight.shape[0], even=True)

    return make


def sample_of(ids: Tensor, n: int) -> Tensor:
    """Which sample each id belongs to, flattened; samples are first."""
    return torch.arange(n, device=ids.device).repeat_interleave(ids.numel() // n)


def lookup(scope: Scope, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
    """Rows of a trained table, with the use recorded."""
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    out = F.embedding(ids, detach_unseen(weight)) if weight.dim() == 2 else detach_unseen(weight)[ids]
    return scope.tap(out, (ids,), [(weight, lookup_use(weight, scope.batch_size, padding))])


@rule("embedding")
def _embedding(
    scope: Scope, _: Operation, input: Tensor, weight: Tensor, padding_idx: int | None = None,
    max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    del norm_type, sparse
    refuse_mixing(max_norm, scale_grad_by_freq)
    return lookup(scope, input, weight, padding_idx)


@rule("__getitem__")
def _getitem(scope: Scope, _: Operation, weight: Tensor, ids: Any) -> Any:
    return look_up(scope, weight, ids)


@rule("index_select")
def _index_select(scope: Scope, _: Operation, weight: Tensor, dim: int, index: Tensor) -> Any:
    return look_up(scope, weight, index) if dim == 0 else NotImplemented


def look_up(scope: Scope, weight: Tensor, ids: Any) -> Any:
    """table[ids] where a plain look-up is what it is."""
    if not scope.is_weight(weight) or not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return lookup(scope, ids.remainder(weight.shape[0]), weight, None)


@rule("embedding_bag")
def _bag(
    scope: Scope, _: Operation, input: Tensor, weight: Tensor, offsets: Tensor | None = None,
    max_norm: float | None = None, norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    del norm_type, sparse, include_last_offset
    refuse_mixing(max_norm, scale_grad_by_freq)
    if per_sample_weights is not None and scope.is_weight(per_sample_weights):
        raise NoRule('embedding_bag with trained per_sample_weights has no rule. Use engine="loop".')
    if offsets is not None:
        remedy = "Give ids as (n, length) rows, with padding_idx for shorter ones."
        raise NoRule(f"embedding_bag with offsets: flat ids cannot be told apart by sample. {remedy}")
    scope.require_rows(input)
    if input.shape[0] != scope.batch_size:
        raise NoRule(f"embedding_bag makes {input.shape[0]} bags of {scope.batch_size} samples. Use one bag a sample.")
    rows = lookup(scope, input, weight, padding_idx)
    present = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % len(weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return reduce_bags(rows, present.unsqueeze(-1), mode)


def reduce_bags(rows: Tensor, present: Tensor, mode: str) -> Tensor:
    """Sum, mean or maximum over the rows (n, length, d) of each bag, padding left out; an empty bag gives zeros."""
    if mode == "max":
        best = torch.where(present, rows, -torch.inf).amax(1) if rows.shape[1] else rows.sum(1)
        return torch.where(torch.isneginf(best), 0.0, best)
    total = torch.where(present, rows, 0.0).sum(1)
    return total if mode == "sum" else total / present.sum(1).clamp_min(1)


def refuse_mixing(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Options of look-ups that let one sample change another's gradient."""
    if max_norm is not None:
        raise NoRule("an embedding with max_norm rewrites its weights from the batch's ids. Use max_norm=None.")
    if scale_grad_by_freq:
        raise NoRule("an embedding with scale_grad_by_freq divides by counts over the batch. Use False.")


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
    if pair is None or not pair[0].defers_finish:
        return None
    multiplied, looked_up = pair[0], pair[1].merge()
    parts = multiplied.gram_parts()
    length, (d, p) = looked_up.magnitude(), (multiplied.inputs.shape[2], multiplied.errors.shape[2])
    unit = precision.gram_slack(d, looked_up.times, length.dtype)
    hidden = (2 * parts.scale + length) * length * unit  # the small number last: it must not hide an overflow
    vanished = (
        looked_up.times * precision.underflow_length(d, length.dtype)
        + precision.underflow_length(p, length.dtype) * length
    )
    joint = replace(
        parts,
        squares=parts.squares + 2 * across(multiplied, looked_up) + squares_of(looked_up) + hidden,
        vanished=parts.vanished + vanished,
        tokens=parts.tokens + looked_up.times,
    )
    return joint, (multiplied, looked_up)


def squares_of(merged: Lookups) -> Tensor:
    """|L|^2 of each sample, of look-ups that have every token once."""
    return precision.norms(merged.rows.view(merged.batch_size, merged.times * merged.rows.shape[1])).square()


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
