"""A private linear probe in one call: the features' mean if it is asked for, then one head, inside one budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dpilot import _validate
from dpilot.mechanism import SYSTEM, Noise, gaussian_event
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Committed, Entry, Ledger, Stage, commitment, describe_ledger
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import PUBLISHED_SIZE, RUNNING_TIME, FitRecord
from dpilot.transfer.features import Features, centred, private_center
from dpilot.transfer.probe import Head, fit_heads, predict

__all__ = ["Probe", "fit_probe"]

_CENTER: Final = "center"
_HEAD: Final = "head"


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A fitted head, the center that was bought for it (or given), and what it cost; all of it released."""

    weights: Tensor  # (d, classes)
    center: Tensor | None
    spent: Cost
    entries: tuple[Entry, ...]
    unprotected: tuple[str, ...]
    stamp: str
    plan: dict[str, Any] = field(default_factory=dict, repr=False)
    paid_in: dict[str, Any] = field(default_factory=dict, repr=False)
    unit: PrivacyUnit = RECORD

    @property
    def record(self) -> FitRecord:
        """The fit as reports see it."""
        return FitRecord.of(
            epsilon=self.spent.epsilon,
            delta=self.spent.delta,
            accounting="the center, if it was bought, and the head, together: the squares of mu of Gaussians add",
            unprotected=self.unprotected,
            unit=self.unit,
            tuning="given",
            paid_in=self.paid_in,
            data={"size": self.plan.get("size"), "features": self.weights.shape[0], "classes": self.weights.shape[1]},
            plan={name: value for name, value in self.plan.items() if name != "size"},
            decisions=("Step size and number of steps were given by the caller.",),
            ledger=tuple(entry.as_dict() for entry in self.entries),
            stamps=(self.stamp,),
        )

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the report, one HTML page; it costs nothing. ``options``: see ``FitRecord.write_report``."""
        return self.record.write_report(path, **options)

    def _repr_html_(self) -> str:
        return self.record.summary_table("linear probe")

    def predict(self, features: Features) -> Tensor:
        """The class of each record, (n,) int64; the features are centred as those of the fit were."""
        return predict(_move(features, self.center), self.weights)


def fit_probe(
    features: Features,
    budget: Budget,
    *,
    lr: float,
    steps: int,
    size: float | str = "public",
    center: str | Tensor | None = None,
    share: float = 0.05,
    momentum: float = 0.9,
    threshold: float = 1.0,
    ledger: Ledger | str | Path | None = None,
    noise: Noise = SYSTEM,
) -> Probe:
    """Fit one linear head on cached features with the whole budget; ``center="private"`` buys their mean first.

    Formula::

        mu = mu(budget)
        center   sigma = 1 / (mu sqrt(share))
        head     sigma = sqrt(steps) / (mu sqrt(1 - share))        share = 0 if no center is bought

    Guarantee:
        ``budget`` covers center and head, exactly: Gaussians add by mu^2, and all of it is in the ledger before a
        record is read. ``lr`` and ``steps`` are yours: if records decided them, that is not paid here (``tune`` pays).

    Edge cases:
        size="public"       the number of rows counts as public, and ``.unprotected`` says so; or declare a number
        features.by_unit    protects a unit with all its rows; the number of units is then declared
        center is a vector  public, or bought before: nothing is paid, all of the budget is the head's
        uneven classes      a head without bias lives off the mean of the features: centring may cost more than it gains

    Example:
        >>> features = Features.of([[1.0, 0.2], [0.2, 1.0]] * 500, [0, 1] * 500, classes=2).unit()
        >>> probe = fit_probe(features, Budget(3.0, 1e-5), lr=2.0, steps=20, size=1000, center="private")
        >>> probe.predict(features)[:2].tolist(), probe.spent.epsilon <= 3.0
        ([0, 1], True)
    """
    count, unprotected = _resolve_size(size, features)
    rows = features if isinstance(size, str) else features.shuffled()  # a published size leaves every record its place
    bought = _share(center, share, features.width)
    mu, steps = gdp_mu(budget), _validate.count(steps=steps)
    sigma = 1 / (mu * math.sqrt(bought)) if bought else math.inf
    head = Head(lr, steps, math.sqrt(steps) / (mu * math.sqrt(1 - bought)), momentum, threshold)
    stages = [Stage(_CENTER, gaussian_event(sigma))] if bought else []
    paid = [*stages, Stage(_HEAD, head.event)]
    who = features.protects
    with commitment(paid, budget, ledger, dataset="one probe", size=count, unit=who) as (made, cost):
        middle = _buy_center(rows, made, sigma, count, noise) if isinstance(center, str) else center
        with made.stage(_HEAD) as receipt:
            moved = _move(rows, middle)
            (weights,) = fit_heads(moved, [head], receipts=[receipt], size=count, noises=[noise])
        plan = {
            "model": "linear head", "size": count, "sample_rate": 1.0, "steps": steps, "lr": lr, "momentum": momentum,
            "clipping": "constant", "threshold": threshold, "noise_multiplier": head.noise_multiplier,
            "noise_of_all_steps": head.noise_multiplier / math.sqrt(steps),
        }  # fmt: skip
        paid_in = describe_ledger(made, own=ledger is None)
        return Probe(weights, middle, cost, made.entries(), unprotected, noise.stamp, plan, paid_in, who)


def _resolve_size(size: float | str, features: Features) -> tuple[float, tuple[str, ...]]:
    if isinstance(size, str):
        _validate.one_of(("public",), "Or declare the number of records.", size=size)
        if features.shares is not None:
            _validate.refuse("size", size, "the number of units, declared", "Rows by_unit do not tell it.")
        return float(max(len(features), 1)), (PUBLISHED_SIZE, RUNNING_TIME)
    return _validate.positive("It is declared, not counted.", size=size), (RUNNING_TIME,)


def _share(center: str | Tensor | None, share: float, width: int) -> float:
    """The part of mu^2 that the center takes; what cannot be a center is refused while nothing is spent."""
    if isinstance(center, str):
        _validate.one_of(("private",), "Or give the vector, or None.", center=center)
        if _validate.share(share=share) == 0:
            _validate.refuse("share", share, "a number in (0, 1)", "It buys the private center; 0.05 is usual.")
        return share
    if center is not None and center.shape != (width,):
        _validate.refuse("the shape of center", tuple(center.shape), f"({width},)")
    return 0.0


def _buy_center(features: Features, made: Committed, sigma: float, size: float, noise: Noise) -> Tensor:
    with made.stage(_CENTER) as receipt:
        return private_center(features, noise_multiplier=sigma, receipt=receipt, size=size, noise=noise)


def _move(features: Features, center: Tensor | None) -> Features:
    return features if center is None else centred(features, center=center)
