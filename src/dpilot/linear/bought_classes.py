"""Classes that nobody declared: bought by partition selection, from a part of the estimator's own budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sklearn.base import clone

from dpilot.data.cells import Cells, plain
from dpilot.data.types.base import BUY
from dpilot.data.values import key
from dpilot.errors import InvalidInput
from dpilot.linear.fitting import noise_of
from dpilot.linear.problem import commit_stages, state_total
from dpilot.noise import KeyedNoise
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Stage, as_ledger
from dpilot.statistics.partition import partition_terms, partitions, partitions_event

__all__ = ["BUY", "buy_and_fit", "is_bought"]

_SHARE: Final = 0.1  # of epsilon
_STAGE: Final = "classes"


def is_bought(classes: Any, units: Any = None) -> bool:
    """Whether the classes are to be bought; not beside units, of which one has many labels."""
    if not (isinstance(classes, str) and classes == BUY):
        return False
    if units is not None:
        raise InvalidInput('classes is "buy" beside units: expected records of one label each. Declare the classes.')
    return True


def buy_and_fit(estimator: Any, X: Any, y: Any, labels: Cells) -> Any:
    """Fit ``estimator`` to the classes that ``labels`` show privately; both are paid within its (epsilon, delta).

    ::

        classes    a tenth of epsilon, half of delta: a quarter for the Gaussian, a quarter for the threshold
        the fit    the rest: epsilons and deltas add up

    Guarantee:
        That of the estimator. The classes are the values whose noisy count is above ``classes_threshold_``, a declared
        number's function; records of others are null.

    Edge cases:
        two values that are equal (1, 1.0, "1")    one class: the number, where they spell one
        no class above the threshold               InvalidInput; a tenth of epsilon is spent
    """
    if estimator.unit is not None or getattr(estimator, "checkpoint", None) is not None:
        raise InvalidInput('classes is "buy" beside units or a checkpoint: expected neither. Declare the classes.')
    total = estimator._problem(1, len(labels), intercept=True)[0].budget
    bought = Budget(total.epsilon * _SHARE, total.delta / 2, allow_large_delta=True)
    sigma, threshold = partition_terms(bought)
    noise = noise_of(estimator.random_state)
    source = noise.spawn() if isinstance(noise, KeyedNoise) else noise
    stages = [Stage(_STAGE, partitions_event(sigma, threshold))]
    book = None if estimator.ledger is None else as_ledger(estimator.ledger, total)
    # a ledger adds the threshold's delta to that at which it prices the rest; one of the fit's own holds all of it
    priced = bought if book is None else replace(bought, delta=bought.delta / 2)
    charged = commit_stages(stages, priced, ledger=book, noise=source, unprotected=())
    with charged as (run, costs), run.stage(_STAGE) as receipt:
        found = partitions(
            map(_value, plain(labels).tolist()),
            noise_multiplier=sigma,
            threshold=threshold,
            receipt=receipt,
            noise=source,
        )
    if not found:
        raise InvalidInput(
            f"no class was found: one shows from about {threshold:.0f} records on, at epsilon {bought.epsilon:g}, "
            "which is spent. Declare the classes, or give more epsilon."
        )
    rest = {"epsilon": total.epsilon - bought.epsilon, "delta": total.delta - bought.delta, "allow_large_delta": True}
    inner = clone(estimator).set_params(classes=[_label(name) for name in found], ledger=book, **rest).fit(X, y)
    first, second = costs[0], inner.privacy_
    spent = Cost(bought.epsilon + second.spent.epsilon, bought.delta + second.spent.delta)
    entries = (*first.entries, *(entry for entry in second.entries if entry not in first.entries))
    made = state_total(inner, replace(second, budget=total, spent=spent, entries=entries))
    for name, value in vars(made).items():
        if name.endswith("_"):
            setattr(estimator, name, value)
    estimator.classes_threshold_ = threshold
    return estimator


def _value(label: Any) -> str | None:
    """The text by which a label is compared; None for one that is missing, or no single value."""
    found = key(label)
    return None if found in (None, "", "nan", "inf", "-inf") else found


def _label(name: str) -> Any:
    """A class from its text alone: the number that is compared by it, else the text.

    >>> _label("7"), _label("0.5"), _label("007")
    (7, 0.5, '007')
    """
    try:
        number = float(name)
    except ValueError:
        return name
    if key(number) != name:
        return name
    return int(number) if number.is_integer() else number
