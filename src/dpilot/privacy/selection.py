"""What it costs to run a secret, random number of trials and release the best by score.

Two bounds, both proved in docs/proofs/selection.md; the smaller is reported, with its name. With Q one whole trial
(its score included), K trials of mean m, and A what is released::

    profile            delta_A(epsilon) <= m delta_Q(epsilon - S)
    papernot-steinke   renyi_A(a) <= renyi_Q(a) + C(a) + ln(m) / (a - 1)

Conditions: K is drawn first and stays secret; every trial uses fresh randomness; candidates are drawn i.i.d. from a
space that no record decides (then Q is OneOf them); the selected run itself is released, never a retraining; with no
trial at all a default is released that no record decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.privacy import pld
from dpilot.privacy import rdp as renyi
from dpilot.privacy.events import ApproxDP, Event, Gaussian, OneOf, PoissonSampled, RepeatAndSelect, Repeated, leaves
from dpilot.privacy.trials import Law, Poisson, TruncatedNegativeBinomial, law_of

Curve = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Selection:
    """The cost of one private selection at ``delta``: the smaller of two valid bounds, and which one it is.

    ``shift`` is S of the profile bound; an epsilon is infinite where its bound says nothing.
    """

    epsilon: float
    delta: float
    bound: str
    profile_epsilon: float
    renyi_epsilon: float
    shift: float


def selection_epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    mean_trials: float,
    law: str = "tnb",
    shape: float = 0.0,
) -> float:
    """The epsilon of selecting among DP-SGD runs of ``steps`` Poisson-sampled Gaussian steps each.

    Edge cases:
        the score    counts only if it is among these steps, or is computed on public data or on other records;
                     otherwise compose its event with the run and ask ``selection``
        K = 0        possible under "poisson": release a default that no record decides

    Example:
        >>> round(selection_epsilon(noise_multiplier=3.73063, sample_rate=1, steps=1, delta=1e-5, mean_trials=10), 2)
        1.51
    """
    step = PoissonSampled(sample_rate, Gaussian(noise_multiplier))
    return selection(Repeated(step, steps), delta, mean_trials=mean_trials, law=law, shape=shape).epsilon


def selection(trial: Event, delta: float, *, mean_trials: float, law: str = "tnb", shape: float = 0.0) -> Selection:
    """The cost of releasing the best of K runs of ``trial``, and the name of the bound that gives it.

    Guarantee:
        epsilon is never below the true one: ``trial`` enters through upper bounds, and both bounds grow with them.

    Edge cases:
        OneOf candidates        the pointwise maximum of their curves, at every epsilon and every order
        ApproxDP in the trial   has no Renyi curve, so only the profile bound is used
        mean_trials < 1         allowed for "poisson" only

    Example:
        >>> cost = selection(Gaussian(3.73063), 1e-5, mean_trials=10)
        >>> cost.bound, round(cost.epsilon, 2), round(cost.renyi_epsilon, 2)
        ('profile', 1.51, 1.92)

    Reference:
        Papernot and Steinke, ICLR 2022, Theorems 2 and 6; Koskela, Redberg and Wang, ICML 2024 (privacy profiles).
    """
    return _price(RepeatAndSelect(trial, mean_trials, law, shape), _validate.open_unit(delta=delta))


def epsilon(event: RepeatAndSelect, delta: float) -> float:
    """The epsilon of ``event`` at ``delta``, by the smaller bound."""
    return _price(event, _validate.open_unit(delta=delta)).epsilon


def delta(event: RepeatAndSelect, epsilon: float) -> float:
    """The delta of ``event`` at ``epsilon`` (any real number), by the smaller bound."""
    epsilon = _validate.number(epsilon=epsilon)
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * delta(event, -epsilon)
    known = _bounds(event)
    by_profile = min(1.0, known.law.mean * known.curve(epsilon - known.shift))
    if known.renyi is None:
        return by_profile
    return min(by_profile, renyi.delta(renyi.ORDERS, known.renyi, epsilon))


def selection_curve(event: RepeatAndSelect, orders: tuple[float, ...] = renyi.ORDERS) -> Floats:
    """The Renyi curve of ``event``, with which it composes; the profile's S replaces Theorem 2's where smaller."""
    if has_approx_dp(event.event):
        raise InvalidInput(
            "RepeatAndSelect of a trial with ApproxDP has no Renyi curve: its delta grows with the number of trials. "
            "Expected events with curves inside. Account this selection alone, or say what the ApproxDP part is."
        )
    law, curve = law_of(event), profile(event.event)
    values = renyi.curve(event.event, orders, selection_curve)
    return papernot_steinke(law, orders, values, curve, most=shift(law, curve))


def profile(trial: Event) -> Curve:
    """delta of one trial at any real epsilon: an upper bound, both directions, the maximum over candidates.

    Below 0 it follows from delta(-x) = 1 - e^-x (1 - delta(x)), the directions exchanged.
    """

    def curve(epsilon: float) -> float:
        if epsilon < 0:
            return -math.expm1(epsilon) + math.exp(epsilon) * curve(-epsilon)
        return min(1.0, delta(trial, epsilon) if isinstance(trial, RepeatAndSelect) else pld.delta(trial, epsilon))

    return curve


def shift(law: Law, curve: Curve) -> float:
    """S with phi'(F) <= e^S phi'(F') wherever F and F' are chances of one event under neighbours.

    Truncated negative binomial, with d = delta_Q(e) for any e >= 0, the least over e::

        S = (1 + shape) ln max{ 1 + d (1 - gamma)/gamma,  1 / (gamma + (1 - gamma)(1 - d) e^-e) }

    Poisson: S = mean * delta_Q(0).
    """
    if isinstance(law, Poisson):
        return law.mean * curve(0.0)
    gamma, odds = law.gamma, (1 - law.gamma) / law.gamma

    def ends(e: float) -> tuple[float, float]:
        d = curve(e)
        return 1 + odds * d, 1 / (gamma + (1 - gamma) * (1 - d) * math.exp(-e))

    least = max(ends(0.0))
    low, high = 0.0, 40 - math.log(gamma)  # one end falls with e, the other grows: they meet at the minimum
    for _ in range(50):
        middle = (low + high) / 2
        falling, growing = ends(middle)
        least = min(least, max(falling, growing))
        low, high = (middle, high) if falling > growing else (low, middle)
    return (1 + law.shape) * math.log(least)


def papernot_steinke(law: Law, orders: Any, values: Any, curve: Curve, most: float = math.inf) -> Floats:
    """The Renyi curve of a selection from the trial's own, at orders a > 1.

    Truncated negative binomial: C = (1 + shape) min_b { (1 - 1/b) renyi_Q(b) + ln(1/gamma)/b }, or ``most`` if less.
    Poisson: C = mean * delta_Q(ln(a/(a-1))), and the chance e^-mean of no trial is added inside the logarithm.

    Reference:
        Papernot and Steinke, ICLR 2022, Theorems 2 and 6; that chance is in our proof and not in their Theorem 6.
    """
    a, r = np.asarray(orders, dtype=float), np.asarray(values, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        if isinstance(law, TruncatedNegativeBinomial):
            result = r + min(most, _theorem_2(law, a, r)) + math.log(law.mean) / (a - 1)
        else:
            hats = np.array([curve(math.log1p(1 / (order - 1))) if order > 1 else 1.0 for order in a])
            logs = (a - 1) * (r + law.mean * hats) + math.log(law.mean)
            result = np.logaddexp(logs, -law.mean) / (a - 1)
    result = np.where((a > 1) & ~np.isnan(result), result, np.inf)
    return _monotone(a, result)


def has_approx_dp(event: Event) -> bool:
    """Whether ``event`` has a part of which only one (epsilon, delta) is known, at any depth."""
    for part, _ in leaves(event):
        match part:
            case ApproxDP():
                return True
            case OneOf(events) if any(map(has_approx_dp, events)):
                return True
            case PoissonSampled(_, inner) | RepeatAndSelect(inner) if has_approx_dp(inner):
                return True
    return False


def _theorem_2(law: TruncatedNegativeBinomial, a: Floats, r: Floats) -> float:
    by_order = (1 - 1 / a) * r - math.log(law.gamma) / a
    known = by_order[np.isfinite(by_order)]
    return (1 + law.shape) * float(known.min(initial=-math.log(law.gamma)))


def _monotone(a: Floats, values: Floats) -> Floats:
    """Renyi divergences grow with the order, so a bound at a higher order holds at every lower one."""
    place = np.argsort(a)[::-1]
    result = np.empty_like(values)
    result[place] = np.minimum.accumulate(values[place])
    return result


@dataclass(frozen=True, slots=True)
class _Bounds:
    law: Law
    curve: Curve
    shift: float
    renyi: Floats | None


@lru_cache(maxsize=64)
def _bounds(event: RepeatAndSelect) -> _Bounds:
    law, curve = law_of(event), profile(event.event)
    if has_approx_dp(event.event):
        return _Bounds(law, curve, shift(law, curve), None)
    trial = renyi.curve(event.event, selection=selection_curve)
    values = papernot_steinke(law, renyi.ORDERS, trial, curve)
    return _Bounds(law, curve, shift(law, curve), values)


def _price(event: RepeatAndSelect, delta: float) -> Selection:
    known = _bounds(event)
    by_profile = _profile_epsilon(known, delta)
    by_renyi = math.inf if known.renyi is None else renyi.epsilon(renyi.ORDERS, known.renyi, delta)
    name = "profile" if by_profile <= by_renyi else "papernot-steinke"
    return Selection(min(by_profile, by_renyi), delta, name, by_profile, by_renyi, known.shift)


def _profile_epsilon(known: _Bounds, delta: float) -> float:
    """The least epsilon >= 0 with mean * curve(epsilon - S) <= delta, on the safe side of the root."""

    def holds(epsilon: float) -> bool:
        return known.law.mean * known.curve(epsilon - known.shift) <= delta

    if holds(0.0):
        return 0.0
    low, high = 0.0, known.shift + 1.0
    while not holds(high):
        low, high = high, 2 * high
        if high > 1e6:  # "infinite" is as good an answer
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
