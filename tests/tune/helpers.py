"""A tiny task, a pretended one, and ways to look at what a tuner hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, tape
from dpilot.keys import KEY_BYTES
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.statistics import table
from dpilot.transfer.features import Features
from dpilot.tune import ModuleTask, ProbeTask, SearchBox
from dpilot.tune.task import fixed_noise

BUDGET = Budget(1.0, 1e-5)
LOUD = Budget(50.0, 1e-5)  # little noise, so that few records are enough
BOX = SearchBox((0.1, 10.0), (2, 8))
LOSS = nn.CrossEntropyLoss(reduction="none")


def arrays(size=40, seed=0):
    made = np.random.default_rng(seed)
    values = made.normal(size=(size, 3)).astype(np.float32)
    return values, (values[:, 0] > 0).astype(np.int64)


def features(pair):
    return Features.of(np.array(pair[0]), np.array(pair[1]), classes=2).unit()


def probe(train=None, held_out=None, **options):
    first, second = features(train or arrays()), features(held_out or arrays(30, seed=1))
    return ProbeTask(first, second, 40, 30, **options)


def dataset(pair=None):
    return TensorDataset(*(torch.from_numpy(np.array(each)) for each in (pair or arrays())))


def module_task(model_fn, train=None, held_out=None, **options):
    options = {"options": {"chunk_size": 64}, "clipping": "constant", **options}
    parts = dataset() if train is None else train, dataset(arrays(30, 1)) if held_out is None else held_out
    return ModuleTask(model_fn, LOSS, *parts, 40, 30, 2, **options)


def seen(tuned):
    """Everything a tuner hands out; an entry's time of day is not its doing."""
    entries = [{**entry.as_dict(), "time": ""} for entry in tuned.entries]
    return {**tuned.to_dict(), "entries": entries}, tuned.model


@dataclass
class PretendedTask:
    """Counts what it is asked; a model is a number, and scores are the task's to choose."""

    rates: Any = None  # of right predictions, by model number
    size: float = 1000.0
    held_out_size: float = 10_000.0
    sample_rate: float = 1.0
    split: str | None = None
    unit: PrivacyUnit = RECORD
    stamp: str = "pretended"
    trained: list = field(default_factory=list)
    scored: list = field(default_factory=list)
    noise: Any = field(default_factory=lambda: fixed_noise(0))  # the same every time: one in twenty draws looks ranked

    def cells(self, objective):
        return 1

    def untrained(self):
        return "untrained"

    def train(self, trials):
        first = len(self.trained)
        for trial in trials:
            for _ in range(trial.candidate.steps):
                trial.receipt.draw(self._event(trial))
        self.trained += trials
        return tuple(range(first, len(self.trained)))

    def _event(self, trial):
        from dpilot.mechanism import gaussian_event

        return gaussian_event(trial.noise_multiplier, self.sample_rate)

    def table(self, model, objective, *, noise_multiplier, receipt):
        self.scored.append(model)
        rate = 0.5 if self.rates is None else self.rates(model, self.trained[model].candidate)
        if rate is None:
            return None
        right = int(rate * self.held_out_size)
        codes = np.zeros((int(self.held_out_size), 2))
        codes[:right, 1] = 1
        return table(codes, shape=(1, 2), noise_multiplier=noise_multiplier, receipt=receipt, noise=self.noise())

    def exact_table(self, model, objective):
        rate = self.rates(model, self.trained[model].candidate)
        return np.array([[1 - rate, rate]]) * self.held_out_size


class Keys:
    """A tape that fixes fresh keys, so that what they decide can be foretold."""

    def __init__(self, number):
        self.key_bytes = number.to_bytes(KEY_BYTES, "little")

    def release(self, entry, outputs):
        return outputs()

    def key(self, purpose, fresh):
        return self.key_bytes


def with_keys(number, run):
    with tape.tape(Keys(number)):
        return run()
