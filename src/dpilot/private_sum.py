"""One private sum: clip each record's gradient, add up, and release gradients and extras in one call.

Networks (``train.step``), linear heads on cached features (``transfer.probe``) and the steps of linear models
(``linear.row_gradients``) differ in how they form norms and sums, and in their clipping rule. What is released, and why
it is private, is the same for all and is stated here, once::

    (w n)^2 + |x|^2 <= bound^2        for every record, where bound depends on the public state only

n is the norm of the record's gradient (or an upper bound of it), w the weight and x the extra coordinates that the rule
gives it; with several groups of parameters, (w n)^2 is summed over the groups. Then [sum w_i g_i | sum x_i] moves by at
most ``bound`` in L2 when one record is added or removed, and one Gaussian of standard deviation
``noise_multiplier * bound`` covers it, whatever the rule. ``tests/contracts`` runs every rule and every provider of
gradients through this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dpilot.mechanism import Draws, Noise, release

__all__ = ["Add", "Clip", "ClipState", "PerSampleGradients", "Summand", "clip_and_sum", "private_sum"]


class ClipState(Protocol):
    """The public state of a clipping rule: declared, or already released."""

    @property
    def bound(self) -> Any: ...


Clip = Callable[[Any, Any], tuple[Any, Any]]
"""norms (n,) or (n, groups) and a state -> weights of that shape, and extras (n, k), each row on its own."""


class Summand(Protocol):
    """A piece of a batch, which can be summed under a clipping rule."""

    def clip_and_sum(self, clip: Clip, state: Any) -> tuple[Any, Any]:
        """The sum of the records' gradients under the rule's weights, and the sum of its extras."""
        ...


class PerSampleGradients(Summand, Protocol):
    """The gradients of some records, one a record; most providers never form them.

    Guarantee:
        What a record adds to ``weighted_sum`` is its weight times a function of that record and public values alone,
        and no longer than its weight times its entry of ``norms``. A null record adds exactly nothing at weight 0.
    """

    @property
    def norms(self) -> Any:
        """At least the norm of each record's gradient: (n,), or (n, groups) with one for each group of parameters."""
        ...

    def weighted_sum(self, weights: Any) -> Any:
        """The sum of the gradients, each times its weight: an array, a tensor or a dict of tensors."""
        ...

    def clip_and_sum(self, clip: Clip, state: Any) -> tuple[Any, Any]:
        """The weighted sum under the rule's weights, and the sum of its extras.

        A provider may overwrite this with one pass over its records, or one kernel, that gives the same sums.
        """
        weights, extras = clip(self.norms, state)
        return self.weighted_sum(weights), extras.sum(0)


class Add(Protocol):
    """How sums of gradients are added; ``own``: whether ``total`` is memory of this sum, which may be overwritten."""

    def __call__(self, total: Any, more: Any, *, own: bool) -> Any: ...


def private_sum(
    gradients: Iterable[Summand],
    clip: Clip,
    state: ClipState,
    *,
    empty: Summand,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise,
    sample_rate: float = 1.0,
    add: Add | None = None,
    door: Callable[..., tuple[Any, Any]] = release,
) -> tuple[Any, Any]:
    """Clip, sum and release; the noisy sums of gradients and of extras.

    Args:
        gradients: The pieces of one batch. They are read one after another, each once.
        clip: The rule, which keeps the contract above for every record.
        state: The rule's state from before the step; it is used for every piece.
        empty: Gradients of no records, for a batch without any: its release is noise alone.
        noise_multiplier: Standard deviation of the noise over ``state.bound``.
        receipt: What pays for the release.
        noise: Where noise comes from.
        sample_rate: Probability with which the batch keeps each record.
        add: How two sums of gradients are added; the default is ``+``.
        door: What releases the sum: ``mechanism.release``, or that of several processes, of which one calls it.

    Guarantee:
        By the contract above, one Gaussian of ``noise_multiplier``, sampled at ``sample_rate``, drawn from ``receipt``.
    """
    bound = float(state.bound)  # read while nothing of this step is under way: later, the processor would wait for it
    total = clip_and_sum(gradients, clip, state, add=add)
    return door(
        empty.clip_and_sum(clip, state) if total is None else total,
        bound=bound,
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        receipt=receipt,
        noise=noise,
    )


def clip_and_sum(
    gradients: Iterable[Summand], clip: Clip, state: Any, *, add: Add | None = None
) -> tuple[Any, Any] | None:
    """What ``private_sum`` releases, without noise: exact and sensitive. None where there are no pieces."""

    def sum_one(piece: Summand) -> tuple[Any, Any]:
        return piece.clip_and_sum(clip, state)

    total, own = None, False
    for sums in map(sum_one, gradients):  # which keeps no piece while the next one is computed
        total, own = (sums, False) if total is None else (_add_both(total, sums, add, own=own), True)
        del sums
    return total


def _add_both(total: tuple[Any, Any], more: tuple[Any, Any], add: Add | None, *, own: bool) -> tuple[Any, Any]:
    gradients = total[0] + more[0] if add is None else add(total[0], more[0], own=own)
    return gradients, total[1] + more[1]
