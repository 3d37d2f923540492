"""Which defaults: linear scaling on surfaces of data that no goal uses, its loss to the oracle under each choice.

A simulation of trials, scores and final runs by the very code that runs them; nothing is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.tune.surface import Surface, SurfaceTask
from dpilot import Budget
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.tune import Candidate, SearchBox, plan_scaling
from dpilot.tune.scaling import chosen as chosen_candidate
from dpilot.tune.scaling import search
from dpilot.tune.scaling_plan import ScalingPlan

EPSILONS = (0.1, 0.3, 1.0, 3.0)
DELTA = 1e-5
_FAR = 1e3  # trials have less of mu than the final run, by 30 times or so, and walk less far


@dataclass(frozen=True, slots=True)
class Defaults:
    """r without data is ``kappa`` mu n, at threshold 1; trials search within a factor ``band`` of it.

    A run has ``few`` steps, or as many (at most ``many``) as keep the step size at ``cap``. ``shares`` of mu^2 go to
    the stages, of ``trials`` runs each, and ``held_out`` of the records are kept for scores. ``anchored``: the law goes
    through the data-free r too.
    """

    kappa: float = 1 / 16
    band: float = 4.0
    cap: float = 32.0
    few: int = 100
    many: int = 400
    trials: int = 3
    shares: tuple[float, ...] = (0.0125, 0.045)
    held_out: float = 0.05
    degree: int = 0
    variable: str = "mu"
    too_noisy: float = 0.02
    anchored: bool = False

    def box(self, r: float) -> SearchBox:
        """All r from far below ``r`` to ``band`` times it."""
        most = r * self.band
        many = min(max(math.ceil(most / self.cap), self.few), self.many)
        return SearchBox((r / _FAR / self.few, most / many), (self.few, many), Candidate(self.cap, self.few))

    def plan(self, budget: Budget, size: float) -> dict[str, Any]:
        """What ``plan_scaling`` is told."""
        r = self.kappa * gdp_mu(budget) * size
        names = ("trials", "shares", "degree", "variable", "too_noisy", "band")
        options = {name: getattr(self, name) for name in names}
        return {"box": self.box(r), "fallback": r, "split": "steps-first", **options}


DEFAULTS = Defaults()


@dataclass(frozen=True, slots=True)
class Case:
    """A surface, as if the data had ``size`` records, and a total epsilon."""

    name: str
    surface: Surface
    size: int
    epsilon: float

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, DELTA)


class _Unpaid:
    """Receipts for a simulation."""

    def __init__(self, stages: Sequence[object]) -> None:
        self.events = {stage.purpose: stage.event for stage in stages}

    @contextmanager
    def stage(self, purpose: str) -> Iterator[Receipt]:
        yield Receipt(self.events[purpose])


def cases(surfaces: Mapping[str, tuple[Surface, int]], parts: Sequence[float] = (1.0, 0.125)) -> list[Case]:
    """Every data set whole and an eighth of it, at every epsilon."""
    return [
        Case(f"{name}, n = {round(size * part):,}", surface, round(size * part), epsilon)
        for name, (surface, size) in surfaces.items()
        for part in parts
        for epsilon in EPSILONS
    ]


def oracle(case: Case) -> float:
    """The best mean accuracy over r, all records and the whole budget spent on one run."""
    m = gdp_mu(case.budget) * case.size
    return max(average(case, m, ratio * m) for ratio in case.surface.ratios)


def average(case: Case, m: float, r: float) -> float:
    """Mean test accuracy over seeds at (m, r)."""
    task = SurfaceTask(case.surface, case.size, 1.0, np.random.default_rng(0))
    return mean(task.looked_up(m, r, seed)[1] for seed in range(case.surface.test.shape[2]))


def data_free(case: Case, chosen: Defaults) -> float:
    m = gdp_mu(case.budget) * case.size
    return average(case, m, chosen.kappa * m)


def tuned(case: Case, chosen: Defaults, repeats: int) -> float | None:
    """Mean accuracy of linear scaling with everything paid, over ``repeats`` simulations; None where it tries nothing.

    Nothing is held out where nothing is tried, so that a share held out is judged by what it does for trials.
    """
    size, held_out = case.size * (1 - chosen.held_out), case.size * chosen.held_out
    plan = planned(case, chosen)
    if plan.hopeless:
        return None
    found = []
    for seed in range(repeats):
        task = SurfaceTask(case.surface, size, held_out, np.random.default_rng(seed))
        result = search(plan, task, _Unpaid(plan.stages(None)))
        law = result.law
        if chosen.anchored and law.points:
            law = replace(law, points=(*law.points, (plan.final_epsilon, plan.fallback)))
        candidate, _ = chosen_candidate(law, plan.final_epsilon, plan.box, plan.split)
        found.append(average(case, size / plan.final.noise_multiplier, candidate.r))
    return mean(found)


def planned(case: Case, chosen: Defaults) -> ScalingPlan:
    """The trials of a case, if it has any."""
    size = case.size * (1 - chosen.held_out)
    return plan_scaling(case.budget, held_out_size=case.size * chosen.held_out, **chosen.plan(case.budget, size))


def free_losses(every: Sequence[Case], chosen: Defaults) -> tuple[list[float], list[float]]:
    """The same as ``losses`` for the data-free run, whole budget and all records."""
    each = [(case, 100 * (oracle(case) - data_free(case, chosen))) for case in every]
    return [loss for _, loss in each], [loss for case, loss in each if not planned(case, chosen).hopeless]


def losses(every: Sequence[Case], chosen: Defaults, repeats: int = 10) -> tuple[list[float], list[float]]:
    """Points of accuracy lost to the oracle in every case, and in those that have trials."""
    whole, tried = [], []
    for case in every:
        best, found = oracle(case), tuned(case, chosen, repeats)
        whole.append(100 * (best - (data_free(case, chosen) if found is None else found)))
        if found is not None:
            tried.append(whole[-1])
    return whole, tried


def kappa_losses(every: Sequence[Case], kappas: Sequence[float]) -> dict[float, list[float]]:
    """The same for the data-free run, for each kappa."""
    best = [oracle(case) for case in every]
    pairs = list(zip(every, best, strict=True))
    return {
        kappa: [100 * (top - data_free(case, replace(DEFAULTS, kappa=kappa))) for case, top in pairs]
        for kappa in kappas
    }


FREE = "no trials"
VARIANTS: dict[str, dict[str, object]] = {
    FREE: {},
    "as chosen": {},
    "band 2": {"band": 2.0},
    "band 3": {"band": 3.0},
    "band 8": {"band": 8.0},
    "band 16": {"band": 16.0},
    "2 trials a stage": {"trials": 2},
    "7 trials a stage": {"trials": 7},
    "shares 0.2 %, 0.8 %": {"shares": (0.002, 0.008)},
    "shares 0.5 %, 2 %": {"shares": (0.005, 0.02)},
    "shares 5 %, 20 %": {"shares": (0.05, 0.2)},
    "one stage of 1 %": {"shares": (0.01,)},
    "one stage of 2.5 %": {"shares": (0.025,)},
    "one stage of 10 %": {"shares": (0.1,)},
    "held-out 1 %": {"held_out": 0.01},
    "held-out 2 %": {"held_out": 0.02},
    "held-out 10 %": {"held_out": 0.1},
    "held-out 20 %": {"held_out": 0.2},
    "r linear in mu, with a constant": {"degree": 1},
    "r proportional to epsilon": {"variable": "epsilon"},
    "scores of noise up to 0.005": {"too_noisy": 0.005},
    "scores of noise up to 0.01": {"too_noisy": 0.01},
    "scores of noise up to 0.05": {"too_noisy": 0.05},
    "the data-free r as one more point": {"anchored": True},
    f"{FREE}, kappa four times as large": {"kappa": 4 * DEFAULTS.kappa},
    "kappa four times as large": {"kappa": 4 * DEFAULTS.kappa},
    "the same, with the data-free r as one more point": {"kappa": 4 * DEFAULTS.kappa, "anchored": True},
    f"{FREE}, kappa a quarter": {"kappa": DEFAULTS.kappa / 4},
    "kappa a quarter": {"kappa": DEFAULTS.kappa / 4},
    "the same, with one more point": {"kappa": DEFAULTS.kappa / 4, "anchored": True},
}


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Mean and worst."""
    return mean(values), max(values)


def table(every: Sequence[Case], base: Defaults = DEFAULTS, repeats: int = 10) -> list[tuple[str, Any]]:
    """(variant, mean and worst loss, cases that have trials, mean and worst of these), one thing changed at a time."""
    rows = []
    for name, change in VARIANTS.items():
        chosen = replace(base, **change)
        found = free_losses(every, chosen) if name.startswith(FREE) else losses(every, chosen, repeats)
        rows.append((name, *summary(found[0]), len(found[1]), *summary(found[1] or [math.nan])))
    return rows


def best_kappa(found: Mapping[float, Sequence[float]]) -> float:
    """The kappa with the least mean loss."""
    return min(found, key=lambda kappa: math.fsum(found[kappa]))
