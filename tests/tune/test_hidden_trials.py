"""Nothing that is handed out tells of the trials: no generator, no initial weight, no module that they share."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from dpilot import tune
from dpilot.errors import InvalidInput
from tests.tune.helpers import LOUD, module_task, with_keys

SPACE = tune.Space(tune.LogUniform(0.1, 1.0), tune.Always(2))


class Noisy(nn.Module):
    """Draws from all generators, when it is made and when it is called."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        shift = torch.rand(1) + np.random.random() + random.random()
        return self.last(self.frozen(x)) + 0 * shift


def states():
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


def seeded():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def test_no_generator_tells_how_many_trials_there_were():
    seeded()
    before = states()
    task = module_task(Noisy)
    task.untrained()
    tune.private_selection(task, SPACE, LOUD, mean_trials=5)
    assert states() == before


def test_initial_weights_do_not_tell_the_place_of_the_winner():
    """Foretold by the seed that a script shows, the frozen weights of the n-th model would be known."""
    seeded()
    foretold = [Noisy().frozen.weight for _ in range(40)]
    seeded()
    model = tune.private_selection(module_task(Noisy), SPACE, LOUD, mean_trials=5).model
    assert not any(torch.equal(model.frozen.weight, each) for each in foretold)
    assert not torch.equal(module_task(Noisy).untrained().last.weight, module_task(Noisy).untrained().last.weight)


def test_a_fixed_key_fixes_initial_weights():
    one, other = (with_keys(3, module_task(Noisy).untrained) for _ in range(2))
    assert torch.equal(one.last.weight, other.last.weight)


BACKBONE, COUNTED = nn.Linear(3, 4), nn.Linear(3, 2)
COUNTED.register_buffer("seen", torch.zeros(1))


@pytest.mark.parametrize(
    "model_fn",
    [
        lambda: BACKBONE,
        lambda: nn.Sequential(BACKBONE, nn.Linear(4, 2)),
        lambda: nn.Sequential(copy.copy(COUNTED)),
        lambda: nn.Sequential(copy.deepcopy(COUNTED).requires_grad_(False), COUNTED.requires_grad_(False)),
    ],
    ids=["one module", "one backbone", "a copy that is not deep", "one buffer"],
)
def test_modules_that_share_what_training_changes_are_refused(model_fn):
    with pytest.raises(InvalidInput, match="expected fresh trainable parameters and buffers"):
        module_task(model_fn)


def test_a_frozen_backbone_may_be_shared():
    frozen = nn.Linear(3, 4).requires_grad_(False)
    task = module_task(lambda: nn.Sequential(frozen, nn.Linear(4, 2)))
    before = frozen.weight.clone()
    tune.private_selection(task, SPACE, LOUD, mean_trials=3)
    assert torch.equal(frozen.weight, before)


def test_what_is_no_module_is_refused():
    with pytest.raises(InvalidInput, match="expected a torch module"):
        module_task(lambda: 3)


def test_times_in_the_ledger_are_listed_as_unprotected():
    tuned = tune.private_selection(module_task(lambda: nn.Linear(3, 2)), SPACE, LOUD, mean_trials=2)
    assert "times of rows in the ledger" in " ".join(tuned.unprotected)
