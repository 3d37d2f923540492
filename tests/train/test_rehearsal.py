"""Made-up records on an accelerator: what would end the process there is an error, as on the CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from dpilot import engine
from dpilot.errors import InvalidInput
from dpilot.numerics.devices import use_policy
from dpilot.train import dry_run
from tests.devices import checking_indices
from tests.engine.test_made_up import Alone, Ended, Placed, distance

FORM = torch.zeros(3, 2), torch.zeros(3)


@pytest.fixture
def _as_on_a_gpu():
    with use_policy(**checking_indices()):
        yield


def gradients_of(model, name):
    return partial(engine.per_sample, model, distance, engine=name)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("name", ["auto", "loop"])
def test_made_up_places_are_looked_at_before_they_are_used(name):
    with pytest.raises(InvalidInput, match="IndexError: gather: a place that does not exist"):
        dry_run.run_synthetic(gradients_of(Placed(True), name), FORM, per_batch=False)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_public_example_is_tried_where_made_up_values_are_no_places():
    dry_run.run_synthetic(gradients_of(Placed(True), "loop"), FORM, per_batch=False, public=True)
    with pytest.raises(IndexError, match="a place that does not exist"):
        dry_run.run_synthetic(gradients_of(Placed(True), "loop"), (FORM[0] - 1, FORM[1]), per_batch=False, public=True)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_chunks_are_timed_only_where_their_places_exist():
    assert dry_run.seconds_a_chunk(gradients_of(Placed(True), "loop"), FORM, 8, False) is None
    assert dry_run.seconds_a_chunk(gradients_of(nn.Linear(2, 1), "loop"), FORM, 8, False) > 0


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_model_that_cannot_be_looked_at_is_rehearsed_and_keeps_its_engine():
    gradients = gradients_of(Alone(2, 1), "auto")
    dry_run.run_synthetic(gradients, FORM, per_batch=False)
    assert gradients(FORM).engine == "single-backward"


def test_nothing_is_looked_at_on_the_cpu():
    with pytest.raises(Ended):
        dry_run.run_synthetic(gradients_of(Placed(True), "loop"), FORM, per_batch=False)


@pytest.mark.parametrize(("count", "rows"), [(3, 3), (4, 5), (7, 7)])
def test_what_all_records_share_is_not_taken_for_made_up_ones(count, rows):
    form = {"x": torch.zeros(1, 4, 2), "adjacency": torch.ones(4, 4), "y": torch.zeros(1)}
    made = dry_run.synthetic_records(form, count, per_batch=True)
    assert (len(made["x"]), len(made["y"])) == (rows, rows)
    assert torch.equal(made["adjacency"], form["adjacency"])
