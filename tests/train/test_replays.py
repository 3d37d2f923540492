"""Replayed chunks train as launched ones do. On the CPU the work is run again instead of replayed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpilot import PrivateStep, engine, poisson_loader
from dpilot.errors import InvalidInput
from dpilot.numerics.devices import use_policy
from dpilot.sampling import PoissonSampler
from dpilot.train.batches.reader import RecordChunk
from dpilot.train.gradients import draw_places, even_rows, null_on_error, usual_chunks
from dpilot.train.job import Job
from dpilot.train.options import Options
from tests.devices import recording
from tests.engine.test_graphed import Again
from tests.train.helpers import LOSS, data, fit, model, plan


@pytest.fixture
def graphs():
    """Replays on the CPU; what was captured."""
    found = []

    def record(work, pool=None):
        found.append(Again(work, pool))
        return found[-1]

    with use_policy(**recording(record)):
        yield found


def near(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


@pytest.mark.parametrize("rule", ["constant", "slack", "psac"])
def test_a_replayed_run_is_the_launched_one(rule, graphs):
    replayed = fit(rule)
    assert len(graphs) == 3  # norms, sums, the rule
    assert min(graph.replays for graph in graphs) >= 8
    count = len(graphs)
    assert near(replayed.model, fit(rule, engine="single-backward").model)
    assert len(graphs) == count


def test_a_named_engine_is_launched(graphs):
    fit(engine="single-backward")
    fit(engine="single-backward", low_memory=True)
    assert not graphs


def test_low_memory_is_the_same_run_in_half_the_rows(graphs):
    low, whole = fit(low_memory=True, chunk_size=64), fit(chunk_size=64)
    assert near(low.model, whole.model)
    rows = [next(iter(graph.work()[0].squares.values())).shape[0] for graph in graphs[::3]]
    assert rows == [even_rows(18.0, 0.3, 64, low_memory=True), even_rows(18.0, 0.3, 64)]
    assert rows[0] <= rows[1] / 2 + 8


def test_low_memory_goes_with_autocast_where_half_a_batch_is_replayed(graphs):
    fit(low_memory=True, amp=True, chunk_size=64)
    assert len(graphs) == 3
    with pytest.raises(InvalidInput, match="amp and low_memory"):
        fit(low_memory=True, amp=True, engine="single-backward")


def test_a_step_of_ones_own_is_replayed_in_chunks_that_batches_fill(graphs):
    chosen, net = plan(), model()
    step = PrivateStep(net, LOSS, torch.optim.SGD(net.parameters(), lr=0.5), chosen, test_seed=7)
    for batch in poisson_loader(data(), chosen):
        step(batch)
    assert len(graphs) == 3
    assert step._job.options.chunk_size == even_rows(18.0, 0.3, 256)


def test_records_of_another_shape_are_launched_from_then_on(graphs):
    lengths = engine.Graphed(nn.Linear(4, 2), lambda out, y: LOSS(out.mean(1), y), rows=4, forms=1)
    labels = torch.zeros(2, dtype=torch.long)
    reasons = [lengths((torch.randn(2, t, 4), labels)).reason for t in (3, 5, 3)]
    assert [reason.endswith("; replayed") for reason in reasons] == [True, False, False]
    assert not lengths._forms


def test_a_chunk_that_raises_is_taken_record_by_record_without_replays(graphs):
    net = model()
    replayed = engine.Graphed(net, LOSS, rows=4)
    good, bad = torch.randn(3, 4), torch.tensor([0, 1, 7])  # the last label is outside the classes

    def rows():
        return [(good[i : i + 1], bad[i : i + 1]) for i in range(3)]

    run = null_on_error(replayed, net, lambda chunk: engine.per_sample(net, LOSS, chunk))
    found = run(RecordChunk((good, bad), rows, 3))
    assert torch.isfinite(found.norms).tolist() == [True, True, False]
    total = found.weighted_sum(torch.tensor([0.5, 0.25, 1.0]))
    expected = engine.per_sample(net, LOSS, (good[:2], bad[:2])).weighted_sum(torch.tensor([0.5, 0.25]))
    assert all(torch.allclose(total[name], expected[name]) for name in expected)


def test_records_stand_in_random_rows_and_keep_them_where_one_raises():
    net, x = model(), torch.randn(5, 4)
    labels, seen = torch.tensor([0, 1, 7, 0, 1]), list[dict[float, int]]()  # 7 is no class
    graphed = engine.Graphed(net, LOSS, rows=8, replayed=False)

    def gradients(batch, places=None):
        seen.append(dict(zip(batch[0][:, 0].tolist(), places.tolist(), strict=True)))
        return graphed(batch, places)

    chunk = RecordChunk((x, labels), lambda: [(x[i : i + 1], labels[i : i + 1]) for i in range(5)], 5)
    torch.manual_seed(0)
    found = null_on_error(gradients, net, rows=8)(chunk)
    assert torch.isfinite(found.norms).sum() == 4
    assert sorted(seen[0].values()) != [0, 1, 2, 3, 4]
    assert all(place == seen[0][record] for each in seen[1:] for record, place in each.items())
    first = [null_on_error(graphed, net, rows=8)(chunk).norms[:2] for _ in range(2)]
    assert torch.allclose(*first)


def test_a_full_chunk_and_a_public_number_of_draws():
    torch.manual_seed(0)
    assert draw_places(8, 8) is None
    after = torch.get_rng_state()
    torch.manual_seed(0)
    assert len(set(draw_places(3, 8).tolist())) == 3
    assert torch.equal(torch.get_rng_state(), after)


def test_records_are_spread_over_the_chunks_of_the_plan():
    """A plan of 18 records a batch in chunks of 8: four of them, each with two of eight records, most often."""
    job = Job.create(model(), LOSS, plan(), Options(chunk_size=8))
    assert job.options.chunk_size == 8
    full = PoissonSampler(1.0, 20).batches(8)
    pieces = [list(job.pieces(batch)) for batch in full]
    assert max(map(len, pieces)) == usual_chunks(18.0, 0.3, 8) == 4
    assert all(sorted(np.concatenate(each)) == list(range(8)) for each in pieces)
    assert len({tuple(map(len, each)) for each in pieces}) > 1


@pytest.mark.parametrize(
    ("expected", "rate", "most"), [(64, 0.01, 512), (1000, 0.1, 256), (5, 0.5, 2048), (300, 1.0, 7)]
)
def test_chunks_hold_a_large_batch_and_little_more(expected, rate, most):
    rows = even_rows(expected, rate, most)
    spread = (expected * (1 - rate)) ** 0.5
    pieces = usual_chunks(expected, rate, rows)
    assert rows <= most
    assert expected + max(1, 2 * spread) <= pieces * rows <= expected + 2 * spread + 8 * pieces + 1
    assert even_rows(expected, rate, rows) == rows
    low = even_rows(expected, rate, most, low_memory=True)
    assert low <= min(rows, (expected + 2 * spread) / 2 + 9)
    assert even_rows(expected, rate, low, low_memory=True) == low
