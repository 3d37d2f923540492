"""What every engine hands back: norms, and weighted sums of the per-sample gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor, nn

from dpilot._validate import refuse
from dpilot.errors import UnsupportedModel
from dpilot.numerics.grid import Grid

LossFunction = Callable[..., Tensor]


class SumWith(Protocol):
    """Sums of gradients, each times its weight, by parameter; on a ``grid``, each record's is rounded to it first."""

    def __call__(self, weights: Mapping[str, Tensor], grid: Grid | None = None, /) -> dict[str, Tensor]: ...


class NoRule(UnsupportedModel):
    """This engine cannot differentiate an operation sample by sample; another engine may."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a model from being trained privately, and what to do about it."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.remedy}"


@dataclass(frozen=True, slots=True)
class PerSample:
    """The gradients g_1 .. g_n of one chunk of samples, known by their norms and their weighted sums.

    Guarantee:
        ``norms[i]`` is at least the Euclidean norm of what ``weighted_sum`` adds for sample i at weight 1, float
        rounding included (docs/engine.md says how tightly). So a weight w <= C / norms[i] adds at most C.

    Edge cases:
        a gradient that is not finite   its norm is not finite either, and the sample adds exact zeros
        an empty batch                  norms of shape (0,), sums of zeros
        a parameter the loss ignores    zeros
    """

    norms: Tensor
    engine: str
    reason: str
    squares: Mapping[str, Tensor] = field(repr=False)
    sum_with: SumWith = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the model's order; a tied parameter has its first name only."""
        return tuple(self.squares)

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Norms of parts of the gradient, (n, groups); not finite in every group for a null sample."""
        self._check_groups(groups)
        null = ~torch.isfinite(self.norms)
        parts = [inflate(add_squares({name: self.squares[name] for name in group})) for group in groups]
        return torch.where(null[:, None], torch.inf, torch.stack(parts, dim=1))

    def weighted_sum(
        self, weights: Tensor, groups: Sequence[Sequence[str]] | None = None, *,
        names: Collection[str] | None = None, grid: Grid | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Sum over i of w_i g_i, by parameter name; of some parameters, ``names``, alone where not all are wanted.

        ``weights`` is (n,), or (n, groups) with one column for each group of parameter names; without ``groups`` the
        columns are the parameters in the order of ``names``. On a ``grid`` each w_i g_i is rounded by itself and added
        exactly, in float64.
        """
        wanted = self.squares if names is None else names
        n = self.norms.shape[0]
        if weights.shape[:1] != (n,) or weights.dim() > 2:
            refuse("weights.shape", tuple(weights.shape), f"({n},) or ({n}, groups)")
        finite = torch.isfinite(self.norms)
        weights = torch.where(finite if weights.dim() == 1 else finite[:, None], weights.detach().to(self.norms), 0.0)
        if weights.dim() == 1:
            return self.sum_with(dict.fromkeys(wanted, weights), grid)
        groups = [[name] for name in self.squares] if groups is None else groups
        self._check_groups(groups)
        if weights.shape[1] != len(groups):
            refuse("weights.shape", tuple(weights.shape), f"({n}, {len(groups)}), one column a group")
        columns = zip(groups, weights.unbind(1), strict=True)
        return self.sum_with({name: column for group, column in columns for name in group if name in wanted}, grid)

    def _check_groups(self, groups: Sequence[Sequence[str]]) -> None:
        named = [name for group in groups for name in group]
        if sorted(named) != sorted(self.squares) or not all(groups):
            refuse("groups", [list(g) for g in groups], f"every name of {list(self.squares)} in exactly one group")


def select_rows(gradients: PerSample, places: Tensor) -> PerSample:
    """The gradients of the samples in some rows; the others have weight 0, and so add exact zeros."""
    rows = gradients.norms.shape[0]

    def sum_with(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        shared = {id(w): w.new_zeros(rows).index_copy(0, places, w) for w in weights.values()}
        return gradients.sum_with({name: shared[id(w)] for name, w in weights.items()}, grid)

    squares = {name: square[places] for name, square in gradients.squares.items()}
    return replace(gradients, norms=gradients.norms[places], squares=squares, sum_with=sum_with)


SHAVE = 64
"""Norms are handed out times 1 + SHAVE u, u the unit roundoff: room for the rounding of squares, sums and root."""


def inflate(squares: Tensor) -> Tensor:
    """The norm from its square, rounded up: sqrt(s) (1 + SHAVE u)."""
    return squares.sqrt() * (1 + SHAVE * torch.finfo(squares.dtype).eps / 2)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a step would move, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def accumulator(tensor: Tensor) -> torch.dtype:
    """Where sums live: float64 for float64, float32 for everything else, complex for complex numbers."""
    if tensor.is_complex():
        return torch.complex128 if tensor.dtype == torch.complex128 else torch.complex64
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def measure(tensor: Tensor) -> torch.dtype:
    """Where norms live: the same, real."""
    return accumulator(tensor).to_real()


def make_handle(
    engine: str,
    reason: str,
    squares: Mapping[str, Tensor],
    sum_with: SumWith,
    whole: Tensor | None = None,
) -> PerSample:
    """A PerSample whose norms come from one squared norm a parameter; ``whole`` is their sum, if it is known."""
    return PerSample(inflate(add_squares(squares) if whole is None else whole), engine, reason, squares, sum_with)


def refill_squares(squares: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Squared norms of parameters of m numbers with what may have vanished in them: n^2 + 2 m tiny.

    The square of a number below the root of the smallest normal float, or of a norm below it, may be zero. Squares of
    float32 beside those of float64 get the room for their own rounding here: ``inflate`` sees the latter's only.
    """
    mine = [squares[name] for name in parameters]
    if len({s.dtype for s in mine}) > 1:
        room = 1 + SHAVE * torch.finfo(torch.float32).eps
        mine = [s if s.dtype == torch.float64 else s.double() * room for s in mine]
    together = torch.stack(mine)
    least = tuple(2 * p.numel() * torch.finfo(squares[name].dtype).tiny for name, p in parameters.items())
    filled = together.add_(constants(least, together.device, together.dtype))
    return dict(zip(parameters, filled.unbind(0), strict=True))


@cache
def constants(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A column of numbers on the device, kept: copying them there each time would make the processor wait."""
    return torch.tensor(values, device=device, dtype=dtype)[:, None]


def add_squares(squares: Mapping[str, Tensor]) -> Tensor:
    """Squared norms of the whole gradient, (n,); in float64, as many small ones could be lost beside a large one."""
    together = torch.stack(list(squares.values()))
    wide = torch.float64 if together.device.type != "mps" else together.dtype
    return together.sum(0, dtype=wide).to(together.dtype)


def empty(parameters: Mapping[str, nn.Parameter], engine: str, reason: str) -> PerSample:
    """The handle of a batch without samples."""
    squares = {name: p.detach().new_zeros(0, dtype=measure(p)) for name, p in parameters.items()}

    def zeros(wanted: Mapping[str, Tensor], _: Grid | None = None) -> dict[str, Tensor]:
        return zero_gradients({name: parameters[name] for name in wanted})

    return make_handle(engine, reason, squares, zeros)


def zero_gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Gradients of zeros, in the dtype that sums live in."""
    return {name: torch.zeros_like(p, dtype=accumulator(p), requires_grad=False) for name, p in parameters.items()}


def zero_null_rows(rows: Tensor, finite: Tensor) -> Tensor:
    """Zero the rows of null samples; where, not a product: 0 * nan is nan."""
    return torch.where(finite.view(-1, *[1] * (rows.dim() - 1)), rows, 0.0)


@contextmanager
def no_batching_warnings() -> Iterator[None]:
    """Silence that one warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield
