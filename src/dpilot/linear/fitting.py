"""One fit: plan everything from public numbers, pay for all of it, then read the data stage by stage."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import PrivacyWarning
from dpilot.linear.declared_bounds import DeclaredBounds
from dpilot.linear.problem import SIZE_SHARE, CommittedRun, LinearProblem, Privacy, commit_stages, multiplier
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.linear.standardise import Scaling, StandardisePlan, buy_scaling, plan_centre, plan_scaling, plan_target
from dpilot.mechanism import EXACT, SYSTEM, Noise
from dpilot.noise import seeded_noise
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event
from dpilot.privacy.ledger import Ledger, Stage, fit_budget
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import PUBLISHED_SIZE
from dpilot.statistics import count, count_event

__all__ = ["Centre", "Fitted", "Method", "RegressionPlan", "fit_rows", "noise_of", "plan_fit", "problem_of", "size_of"]

_HALF: Final = 0.5  # of its half range: the width of a declared target of which nothing else is found
_TIME: Final = "running time"


class Method(Protocol):
    """A way to coefficients: what it will cost, from public numbers, and the fit itself.

    ``left`` is the share of the squared mu that scaling and size leave it. ``rows`` are standardised: features, a
    column of ones if there is an intercept, the target.
    """

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]: ...

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution: ...


@dataclass(frozen=True, slots=True)
class Centre:
    """One value for all: the centre of the target that scaling has bought. Costs and reads nothing itself."""

    def stages(self, *_: object) -> dict[str, Event]:
        return {}

    def solve(self, rows: Rows, problem: LinearProblem, *_: object) -> Solution:
        del rows
        return Solution(np.zeros(problem.width), choice="centre")


@dataclass(frozen=True, slots=True)
class Fitted:
    """Everything a fit released."""

    solution: Solution
    scaling: Scaling
    size: float
    privacy: Privacy


@dataclass(frozen=True, slots=True)
class RegressionPlan:
    """A fit from public numbers alone: what it will cost, stage by stage, and how it will go."""

    problem: LinearProblem
    declared: DeclaredBounds
    method: Method
    numeric_target: bool
    scaling: StandardisePlan | None
    target: StandardisePlan | None  # the target's own, where all columns together could not have their quartiles
    left: float
    stages: dict[str, Event]
    sized: Callable[[Rows, CommittedRun], float]

    def run(self, rows: Rows, run: CommittedRun, size: float | None = None) -> tuple[Solution, Scaling, float]:
        """The coefficients, the scaling and the size to divide by, all released; ``size`` if it was bought before."""
        size = self.sized(rows, run) if size is None else size
        scaling = self._scaling(rows, size, run)
        intercept, width = self.problem.intercept, self.problem.width + 1
        table = rows.map(lambda values: _standardise(values, scaling, intercept), width)
        return self.method.solve(table, self.problem, self.left, size, run), scaling, size

    def _scaling(self, rows: Rows, size: float, run: CommittedRun) -> Scaling:
        center, scale = np.zeros(rows.columns), np.ones(rows.columns)
        origin, unit = self.declared.units(centred=self.problem.intercept)
        inside = rows
        if not self.declared.missing.all():
            inside = rows.map(lambda values: (self.declared.pull_in(values) - origin) / unit, rows.columns)
        unknown = np.where(self.declared.missing, np.nan, np.append(np.ones(rows.columns - 1), _HALF))
        wanted = _select_columns(self.declared, self.numeric_target)
        last = np.arange(rows.columns) == rows.columns - 1
        features = wanted & ~last if self.target else wanted
        for name, step, which in (("scale", self.scaling, features), ("target", self.target, last)):
            if step:
                center[which], scale[which] = _buy_scaling(name, step, inside, which, size, run, unknown[which])
        return self.declared.scaling(origin + unit * center, unit * scale, centred=self.problem.intercept)


def problem_of(
    epsilon: Any,
    delta: Any,
    *,
    features: int,
    intercept: Any,
    size: Any,
    length: int,
    allow_large_delta: bool = False,
    ledger: Ledger | str | Path | None = None,
) -> tuple[LinearProblem, tuple[str, ...]]:
    """The public numbers of a fit, and what it leaves unprotected.

    ``delta`` None is the default for the number of all records; of a ``ledger`` no more of it is taken than the fit's
    part, so that fits of its whole epsilon find their delta.
    """
    if not isinstance(intercept, bool | np.bool_):
        _validate.refuse("fit_intercept", intercept, "True or False")
    known = resolve_size(size, length)
    asked = Budget.of_size(
        epsilon, delta, None if known is None else max(known, 1), allow_large_delta=allow_large_delta
    )
    budget = fit_budget(ledger, asked)
    fitted = None if known is None else float(known)
    unprotected = (PUBLISHED_SIZE, _TIME) if size == "public" else (_TIME,)
    return LinearProblem(features, bool(intercept), fitted, budget), unprotected


def resolve_size(size: Any, length: int) -> int | None:
    """The number of records that is public ("public": their ``length``) or declared; None if it is to be bought."""
    if not isinstance(size, str):
        return _validate.count(size=size)
    return {"public": length, "private": None}[
        _validate.one_of(("public", "private"), "Or a whole number, declared.", size=size)
    ]


def noise_of(random_state: Any, *, hardened: bool = True) -> Noise:
    """Noise from the operating system, or, with a ``random_state``, the same every time: stamped, warned of, for tests.

    >>> noise_of(None).stamp
    'hardened noise: an exact law on a grid'
    """
    if random_state is None:
        return EXACT if hardened else SYSTEM
    from sklearn.utils import check_random_state

    warnings.warn(
        f"random_state is {random_state!r}: it fixes the noise, so this is not private. Leave it None but in tests.",
        PrivacyWarning,
        stacklevel=5,
    )
    fixed = isinstance(random_state, int) and random_state >= 0
    seed = random_state if fixed else int(check_random_state(random_state).randint(2**31))
    return seeded_noise(seed, hardened=hardened)


def fit_rows(
    rows: Rows,
    problem: LinearProblem,
    declared: DeclaredBounds,
    method: Method,
    *,
    ledger: Ledger | str | Path | None = None,
    random_state: Any = None,
    unprotected: tuple[str, ...] = (_TIME,),
    numeric_target: bool = True,
    unit: PrivacyUnit = RECORD,
) -> Fitted:
    """Fit ``method`` to ``rows`` of [features | target], which come out of ``unit`` as ``linear.rows`` says.

    Guarantee:
        All noise multipliers follow from ``problem`` and ``declared``, and their whole price is in the ledger, before a
        chunk of ``rows`` is asked for. All releases are Gaussian and add by squares; what else a method makes says so
        in its stages.
    """
    plan = plan_fit(problem, declared, method, numeric_target=numeric_target)
    noise = noise_of(random_state, hardened=getattr(method, "hardened", True))
    stages = [Stage(name, event) for name, event in plan.stages.items()]
    with commit_stages(stages, problem.budget, ledger=ledger, noise=noise, unprotected=unprotected, unit=unit) as (
        run,
        costs,
    ):
        solution, scaling, size = plan.run(rows, run)
    return Fitted(solution, scaling, size, costs[0])


def plan_fit(
    problem: LinearProblem,
    declared: DeclaredBounds,
    method: Method,
    *,
    numeric_target: bool = True,
    taken: float = 0.0,
    buys_size: bool = True,
) -> RegressionPlan:
    """Every noise multiplier of a fit, of what ``taken`` leaves of the squared mu.

    A size that is not known is bought by the fit, unless ``buys_size`` is False: then ``FitPlan.run`` is given it.
    """
    wanted = _select_columns(declared, numeric_target)
    scaling, target = plan_scaling(problem, int(wanted.sum())), None
    own = problem.intercept and bool(wanted[-1])
    if own and problem.hopeless and getattr(method, "abstains", False):  # one value for all, and all for that value
        bounded = not declared.missing[-1]
        scaling, target, method = None, plan_centre(problem, 1 - taken, bounded=bounded), Centre()
    elif own and scaling and scaling.level != "quartiles":  # too dear for all together
        scaling, target = plan_scaling(problem, int(wanted[:-1].sum())), plan_target(problem)
    sized, stages = size_of(problem) if buys_size else ((lambda *_: 1.0), {})
    bought_plans = {"scale": scaling, "target": target}
    stages |= {name: plan.event for name, plan in bought_plans.items() if plan}
    shares = [
        SIZE_SHARE if buys_size and problem.size is None else 0.0,
        *(plan.share for plan in bought_plans.values() if plan),
    ]
    left = 1 - taken - sum(shares)
    stages |= method.stages(problem, left)
    return RegressionPlan(problem, declared, method, numeric_target, scaling, target, left, stages, sized)


def _select_columns(declared: DeclaredBounds, numeric_target: bool) -> NDArray[np.bool_]:
    """The columns to buy a scaling for; a target of class codes needs none."""
    wanted = ~declared.scaled
    wanted[-1] &= numeric_target
    return wanted


def size_of(problem: LinearProblem) -> tuple[Callable[[Rows, CommittedRun], float], dict[str, Event]]:
    """How to get the number to divide by, and what that costs: nothing if it is public or declared."""
    if problem.size is not None:
        known = max(problem.size, 1.0)
        return lambda *_: known, {}
    sigma = multiplier(problem, SIZE_SHARE)

    def noisy(rows: Rows, run: CommittedRun) -> float:
        with run.stage("size") as receipt:
            return max(count(rows.chunks(), noise_multiplier=sigma, receipt=receipt, noise=run.noise), 1.0)

    return noisy, {"size": count_event(sigma)}


def _buy_scaling(
    name: str,
    plan: StandardisePlan,
    rows: Rows,
    which: NDArray[np.bool_],
    size: float,
    run: CommittedRun,
    unknown: Floats,
) -> tuple[Floats, Floats]:
    columns = rows.map(lambda values: values[:, which], int(which.sum()))
    with run.stage(name) as receipt:
        return buy_scaling(
            columns, plan, size=size, target=bool(which[-1]), receipt=receipt, noise=run.noise, unknown=unknown
        )


def _standardise(values: np.ndarray[Any, np.dtype[np.float64]], scaling: Scaling, intercept: bool) -> Any:
    scaled = scaling.apply(values)
    if not intercept:
        return scaled
    return np.column_stack([scaled[:, :-1], np.ones(scaled.shape[0]), scaled[:, -1]])
