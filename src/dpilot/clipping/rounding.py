"""Float safety, in one place: how norms are read, and how weights and extras are sealed under the bound.

Rules compute in float64 and answer in the dtype of the norms. Rounding an answer to float32 can lift (w n)^2 + |x|^2
above bound^2 by a few parts in 10^7, which no price covers. ``seal`` checks each row as it will be returned, and makes
it shorter by one fixed tiny factor where it does not clearly fit. It corrects rounding and nothing else: a rule whose
formula is wrong by more still breaks the contract, and its tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from dpilot.clipping.base import State, check_own

# working precision -> (how much room a row must leave in the square, how much shorter a row becomes that does not).
# float64: a float32 answer overshoots by at most 6 * 2^-24 in the square, counting the rounding of the bound itself to
# float32; shortening by 2^-21 takes 16 * 2^-24 away. float32 alone (a device without float64) needs more of both.
# Tested by tests/contracts/test_clipping.py::test_joint_norm_never_exceeds_bound_in_other_forms.
_ROOM: Final = {torch.float64: (2.0**-32, 2.0**-21), torch.float32: (2.0**-18, 2.0**-17)}


@dataclass(frozen=True, slots=True)
class Seen:
    """Norms as a rule may use them: working precision, null records (not finite, or negative) read as 0."""

    norms: Tensor  # (n,) or (n, groups)
    valid: Tensor  # the same shape, bool
    state: State  # on the device of the norms
    dtype: torch.dtype  # of the answer

    def seal(self, weights: Tensor, extras: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights and extras as they leave the rule: null records at 0, and every row inside the bound.

        Guarantee:
            If the exact formula satisfies (w n)^2 + |x|^2 <= bound^2, so does what is returned, evaluated in float64,
            also against the bound rounded to float32.

        Edge cases:
            weight below the smallest normal float     0: a subnormal weight is too coarse to bound w n
            weights (n, groups), extras (n, k)         one row is one record, its groups count together
            weights (n, groups), extras (n, groups, k) each group has its own bound
        """
        n, work = self.norms, self.norms.dtype
        x = weights.new_zeros((*weights.shape, 0), dtype=self.dtype) if extras is None else extras.to(self.dtype)
        together = weights.ndim == x.ndim  # of a record's groups
        w = weights.to(self.dtype)
        w = torch.where(w >= torch.finfo(self.dtype).tiny, w, 0.0).clamp_max(torch.finfo(self.dtype).max)
        squares = (w.to(work) * n).square()
        joint = squares.sum(-1) if together else squares
        if x.shape[-1]:
            joint = joint + x.to(work).square().sum(-1)
        keep = self._factor(joint, self.valid.all(-1) if together else self.valid)
        return w * (keep.unsqueeze(-1) if together else keep), x * keep.unsqueeze(-1) if x.shape[-1] else x

    def _factor(self, joint: Tensor, valid: Tensor) -> Tensor:
        """1 for a row that clearly fits, a little less for one that may not, 0 for a null record."""
        room, shorter = _ROOM[joint.dtype]
        bound = torch.minimum(self.state.bound, self.state.bound.float())
        tight = ~(joint <= bound.square() * (1.0 - room))
        return ((1.0 - shorter * tight.to(joint.dtype)) * valid).to(self.dtype)


def see(rule: Any, norms: Tensor, state: State) -> Seen:
    """Norms (n,) or (n, groups) made ready for a rule; a null record is one whose norm is not finite."""
    check_own(rule, state)
    norms = norms.detach()
    state = state.to(norms.device)
    valid = (norms >= 0) & (norms < torch.inf)  # False for nan
    work = torch.promote_types(norms.dtype, state.threshold.dtype)
    clean = torch.where(valid, norms.to(work), 0.0)
    return Seen(clean, valid, state, torch.promote_types(norms.dtype, torch.float32))


def clip_factor(norms: Tensor, threshold: Tensor) -> Tensor:
    """min(1, C / n), without dividing by 0."""
    return threshold / torch.maximum(norms, threshold)
