"""Records that model and loss do not take, on an accelerator: null, where a kernel would end the process."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import PrivateStep, Trainer, audit, clipping, engine, poisson_loader
from dpilot.engine import capture, locality, within
from dpilot.engine.masking import LookingFirst
from dpilot.train import predict as predicting
from dpilot.train import rehearsal
from dpilot.tune import stacked
from tests.engine.test_graphed import Again
from tests.engine.test_locality import Ended
from tests.train.helpers import SIZE, WIDTH, model, plan, records, same

NONE = nn.CrossEntropyLoss(reduction="none")
BAD = {3: -1, 17: 7, 40: 2, 41: 10**15}


def deadly(out, y):
    """The loss, which ends the process where a kernel would; one that is looked at says so first."""
    try:
        return NONE(out, y)
    except (IndexError, RuntimeError) as error:
        raise error if "that does not exist" in str(error) else Ended from None


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(within, "elsewhere", lambda *tensors: True)
    monkeypatch.setattr(rehearsal, "elsewhere", lambda *tensors: True)
    monkeypatch.setattr(locality, "on_accelerator", lambda model, batch: True)


@pytest.fixture(params=["launched", "replayed"])
def graphs(request, monkeypatch):
    """Both ways in which chunks are computed; what was captured."""
    found = []
    if request.param == "replayed":
        monkeypatch.setattr(capture, "KINDS", {"cpu"})
        monkeypatch.setattr(capture, "record", lambda *args: found.append(Again(*args)) or found[-1])
    return request.param == "replayed", found


def bad(labels=BAD, *, nan=True):
    """The task with labels that no class has, and a row that is not a number."""
    inputs, y = records()
    for place, label in labels.items():
        y[place] = label
    if nan:
        inputs[50] = math.nan
    return TensorDataset(inputs, y)


def absent(labels=BAD):
    """The same where those records add nothing: rows of NaN, which every engine makes null."""
    inputs, y = records()
    inputs[[*labels, 50]] = math.nan
    return TensorDataset(inputs, y)


def fit(dataset, loss=deadly, rule="slack", **options):
    options = {"lr": 0.5, "chunk_size": 16, "test_seed": 7, **options}
    return Trainer(model(), loss, plan(rule), **options).fit(dataset).model


@pytest.mark.parametrize("rule", ["constant", "slack", "histogram-e"])
def test_a_run_goes_on_as_if_such_records_added_nothing(rule, graphs):
    replayed, captured = graphs
    assert same(fit(bad(), rule=rule), fit(absent(), NONE, rule))
    assert len(captured) == (4 if replayed else 0)


@pytest.mark.usefixtures("graphs")
def test_groups_of_parameters_know_of_null_records():
    """Named groups have norms of their own."""
    groups = [["0.weight", "0.bias"], ["3.weight", "3.bias"]]
    chosen = {"groups": groups, "rule": clipping.get("slack", groups=2)}
    assert same(fit(bad(), **chosen), fit(absent(), NONE, **chosen))


def test_bfloat16_and_low_memory_and_other_engines():
    for options in ({"amp": True}, {"low_memory": True}, {"engine": "vmap"}, {"engine": "loop"}):
        assert same(fit(bad(), **options), fit(absent(), NONE, **options))


@pytest.mark.usefixtures("graphs")
def test_a_loop_of_ones_own():
    def trained(dataset, loss):
        chosen, net = plan("slack"), model()
        step = PrivateStep(net, loss, torch.optim.SGD(net.parameters(), lr=0.5), chosen, chunk_size=16, test_seed=7)
        for batch in poisson_loader(dataset, chosen):
            step(batch)
        return net

    assert same(trained(bad(), deadly), trained(absent(), NONE))


def test_a_resumed_run(tmp_path):
    class Stop(Exception):
        pass

    def stop(record):
        if record.step == 3:
            raise Stop

    with pytest.raises(Stop):
        fit(bad(), checkpoint=tmp_path / "run", checkpoint_every=2, callback=stop)
    found = Trainer.resume(tmp_path / "run", model(seed=9), deadly, bad())
    assert same(found.model, fit(absent(), NONE))


def test_without_ranges_the_process_ends(monkeypatch):
    """These tests can fail: a label that reaches the loss is the end."""
    monkeypatch.setattr(within, "known", lambda *_: None)
    with pytest.raises(Ended):
        fit(bad())


@pytest.mark.parametrize("options", [{}, {"amp": True}, {"engine": "vmap"}], ids=str)
def test_records_that_are_taken_train_as_on_the_cpu(options, monkeypatch):
    """Finding out what is taken moves nothing of the run: no generator, and no weight that autocast keeps."""
    found = fit(bad({}), NONE, **options)
    monkeypatch.undo()
    assert same(found, fit(bad({}), NONE, **options))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids):
        try:
            return self.last(self.table(ids).mean(1))
        except (IndexError, RuntimeError) as error:
            raise error if "that does not exist" in str(error) else Ended from None


def sentences(*outside):
    ids, y = torch.randint(0, 9, (SIZE, 6), generator=torch.Generator().manual_seed(0)), records()[1]
    for place, number in enumerate(outside):
        ids[5 * place, place] = number
    return TensorDataset(ids, y)


def test_ids_outside_the_vocabulary():
    torch.manual_seed(0)
    first = Words().state_dict()

    def trained(dataset):
        net = Words()
        net.load_state_dict(first)
        return Trainer(net, deadly, plan("slack"), lr=0.5, chunk_size=16, test_seed=7).fit(dataset).model

    null = sentences()
    null.tensors[1][[0, 5, 10]] = 99
    assert same(trained(sentences(9, -1, 10**12)), trained(null))


def probability(out, y):
    try:
        return nn.functional.binary_cross_entropy(out.softmax(1)[:, 1], y.float(), reduction="none")
    except (IndexError, RuntimeError) as error:
        raise error if "between 0 and 1" in str(error) and "binary_cross_entropy:" in str(error) else Ended from None


def test_floats_that_make_trouble_are_null_record_by_record(graphs, monkeypatch):
    found = fit(bad({}), probability)
    assert not graphs[1], "what is looked at is launched"
    monkeypatch.undo()
    on_cpu = partial(nn.functional.binary_cross_entropy, reduction="none")
    assert same(found, fit(bad({}), lambda out, y: on_cpu(out.softmax(1)[:, 1], y.float())))


def test_one_record_more_moves_a_release_by_its_bound_at_most_and_nothing_else(replay):
    made = np.random.default_rng(0)
    data = made.normal(size=(12, WIDTH)).astype(np.float32), made.integers(0, 2, 12)
    outside = [audit.Pair(f"label {y}", data, tuple(map(np.concatenate, zip(data, (data[0][:1], [y]), strict=True))))
               for y in (7, -1)]  # fmt: skip

    def run(arrays):
        dataset = TensorDataset(*(torch.from_numpy(np.array(array)) for array in arrays))
        return fit(dataset, rule="slack", test_seed=None)

    results = replay(run, pairs=outside)
    assert max(result.largest for result in results) < 1e-5, "a null record adds nothing but roundings of other shapes"


def test_predictions_raise_as_on_the_cpu(monkeypatch):
    monkeypatch.setattr(predicting, "elsewhere", lambda *tensors: True)
    net, ids = Words(), sentences().tensors[0]
    with LookingFirst():
        assert torch.equal(predicting.predict(net, ids), predicting.predict(net, ids))
    with pytest.raises(IndexError, match="embedding: a place that does not exist"):
        predicting.predict(net, sentences(9).tensors[0])


def test_trials_together_look_before_they_use(monkeypatch):
    """One bad record: the pass for all trials is given up, and each takes its own records, where they are null."""
    monkeypatch.setattr(stacked, "elsewhere", lambda *tensors: True)
    nets, asked = [model(), model(seed=1)], []
    runners = [stacked.Runner(SimpleNamespace(setting=SimpleNamespace(model=net)), None, asked.append) for net in nets]
    issued = [SimpleNamespace(indices=np.arange(3)), SimpleNamespace(indices=np.arange(1, 3))]

    def found(dataset):
        return list(stacked._gradients(runners, issued, dataset, deadly, torch.device("cpu")))

    (both,) = found(bad())
    assert not asked
    for each, net, batch in zip(both, nets, issued, strict=True):
        alone = engine.per_sample(net, NONE, tuple(t[batch.indices] for t in bad().tensors))
        assert torch.allclose(each.norms, alone.norms)
    found(bad({1: 9}))
    assert [chunk.whole[1].tolist() for chunk in asked] == [bad({1: 9}).tensors[1][b.indices].tolist() for b in issued]
