"""A trial on its way to another process: the right to its releases and the keys of its randomness, sent once.

>>> import pickle
>>> from dpilot.noise import SystemNoise
>>> from dpilot.privacy.budget import Budget
>>> from dpilot.privacy.events import Gaussian, Repeated
>>> paid = Receipt(Repeated(Gaussian(2.0), 3))
>>> plan = Plan.calibrate(Budget(2.0, 1e-5), size=64, batch_size=64, steps=3, clipping="constant")
>>> transferred = TransferredTrial(Trial(Candidate(0.1, 3), 2.0, paid), plan, TrialKeys.draw(SystemNoise()))
>>> trial, plan, keys = pickle.loads(pickle.dumps(transferred))     # what the other process does
>>> trial.receipt.draw(Gaussian(2.0))
>>> paid.draw(Gaussian(2.0))
Traceback (most recent call last):
dpilot.errors.BudgetExceeded: a release of Gaussian(noise_multiplier=2.0) was not reserved, or was drawn already...
>>> pickle.dumps(transferred)
Traceback (most recent call last):
dpilot.errors.InvalidInput: a trial is sent a second time...
"""

from __future__ import annotations

import os
from typing import Any

from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.mechanism import Noise
from dpilot.noise import KeyedNoise, SystemNoise
from dpilot.privacy.events import Event, leaves
from dpilot.privacy.receipt import Receipt
from dpilot.train.plan import Plan
from dpilot.tune.candidate import Candidate
from dpilot.tune.recipe import TrialKeys
from dpilot.tune.task import Trial

__all__ = ["TransferredTrial", "check_noise"]


class TransferredTrial:
    """``trial``, ``plan`` and ``keys`` for one other process; unpickling gives them, with a receipt of that process.

    Guarantee:
        All that the trial may release was drawn from its receipt here, before anything is sent, so that the receipt
        made there is for no more than was reserved and nothing is left here to draw. It is sent once, and its noise is
        surrendered: the right is not doubled, and no two processes add noise from one key.

    Edge cases:
        A trial that has begun is not transferred: what it released cannot be drawn again, which is BudgetExceeded.
    """

    __slots__ = ("_keys", "_plan", "_process", "_sent", "_trial")

    def __init__(self, trial: Trial, plan: Plan, keys: TrialKeys) -> None:
        self._trial, self._plan, self._keys = trial, plan, keys
        self._process, self._sent = os.getpid(), False
        check_noise(keys.noise)
        for part, times in leaves(_receipt(trial).event):
            for _ in range(times):
                _receipt(trial).draw(part)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._sent or self._process != os.getpid():
            raise InvalidInput(
                "a trial is sent a second time: expected one process for each, which has its right and its keys. "
                "What failed is not tried again; reserve another trial."
            )
        self._sent = True
        trial, keys = self._trial, self._keys
        state = keys.noise.surrender() if isinstance(keys.noise, KeyedNoise) else None
        paid = trial.candidate, trial.noise_multiplier, _receipt(trial).event
        chains = [None if each is None else (each.key, each.position) for each in (keys.weights, keys.batches, state)]
        return _receive, (*paid, self._plan, chains, keys.noise.stamp)


def check_noise(noise: Noise) -> None:
    """Refuse a noise source of which only its own process knows how to go on."""
    if type(noise) not in (SystemNoise, KeyedNoise):
        raise InvalidInput(
            f"noise is a {type(noise).__name__}, which cannot be moved to a worker process: expected SystemNoise or "
            "KeyedNoise. Leave workers=1."
        )


def _receipt(trial: Trial) -> Receipt:
    if not isinstance(trial.receipt, Receipt):
        raise InvalidInput(f"a trial has a {type(trial.receipt).__name__} to draw from: expected a Receipt to move.")
    return trial.receipt


def _receive(
    candidate: Candidate,
    noise_multiplier: float,
    event: Event,
    plan: Plan,
    chains: tuple[tuple[bytes, int], tuple[bytes, int], tuple[bytes, int] | None],
    stamp: str,
) -> tuple[Trial, Plan, TrialKeys]:
    weights, batches = Chain(*chains[0]), Chain(*chains[1])
    noise = SystemNoise() if chains[2] is None else KeyedNoise(Chain(*chains[2]), stamp=stamp)
    return Trial(candidate, noise_multiplier, Receipt(event)), plan, TrialKeys(weights, batches, noise)
