"""dpilot's own contract, on a rule of this package: run with `python -m pytest`, the package being installed."""

import pytest
import torch
from soft_clip import Soft

from dpilot import clipping
from dpilot.clipping import contract


def test_the_rule_keeps_the_contract():
    contract.check_all(Soft())


def test_a_rule_that_breaks_it_is_noticed():
    class Hard(Soft):
        def clip(self, norms, state):
            weights, extras = super().clip(norms, state)
            return 1.01 * weights, extras

    with pytest.raises(AssertionError):
        contract.check_run(Hard(), torch.float32)


def test_it_is_found_by_its_name():
    assert clipping.get("soft", threshold=2.0) == Soft(2.0)
    assert clipping.from_dict(clipping.to_dict(Soft(2.0))) == Soft(2.0)
