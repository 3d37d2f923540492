"""Training on a CUDA device: the same run, up to rounding and the device's own noise generator."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Plan, Trainer, clipping
from dpilot.engine.replay import capture
from tests.train.helpers import LOSS, data, model, records, same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def stored(rule):
    """A plan as it is read from a file: the device machine may have no accountant."""
    numbers = {"size": 60, "sample_rate": 0.3, "steps": 6, "noise_multiplier": 2.0}
    budget = {"epsilon": 9.0, "delta": 1e-5}
    rule = clipping.to_dict(clipping.get(rule))
    return Plan.from_dict({"format": 1, "budget": budget, "cost": budget, "clipping": rule, **numbers})


def trained(rule="slack", **options):
    options = {"optimizer": "adam", "lr": 0.01, "chunk_size": 16, "device": "cuda", "test_seed": 3, **options}
    return Trainer(model(dropout=0.2), LOSS, stored(rule), **options).fit(data())


@pytest.mark.parametrize("rule", [*clipping.names()])
def test_every_rule_trains_on_the_device(rule):
    run = trained(rule)
    assert {p.device.type for p in run.model.parameters()} == {"cuda"}
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert run.predict(data().tensors[0]).device.type == "cpu"


def test_amp_and_automatic_chunks():
    run = trained(amp=True, chunk_size=None)
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("amp", [False, True])
def test_replayed_chunks_train_as_launched_ones_do(amp, monkeypatch):
    captured = []
    record = capture.record
    monkeypatch.setattr(capture, "record", lambda *args: captured.append(args) or record(*args))

    def run(name):
        plan, net = stored("constant"), model().cuda()
        options = {"optimizer": "sgd", "lr": 0.1, "chunk_size": 16, "device": "cuda", "test_seed": 3, "amp": amp}
        return Trainer(net, LOSS, plan, engine=name, **options).fit(data()).model

    launched = run("single-backward")
    assert not captured
    replayed = run("auto")
    assert len(captured) == 3  # norms, sums, the rule
    for one, other in zip(replayed.parameters(), launched.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-2 if amp else 1e-5)


def test_a_stopped_run_goes_on(tmp_path):
    class Stop(Exception):
        pass

    def stop(record):
        if record.step == 3:
            raise Stop

    with pytest.raises(Stop):
        trained(checkpoint=tmp_path / "run", checkpoint_every=2, callback=stop, average="ema")
    found = Trainer.resume(tmp_path / "run", model(seed=9, dropout=0.2), LOSS, data())
    assert same(found.model, trained(average="ema").model)


def test_low_memory_trains_in_chunks_of_its_own_choice():
    run = trained("constant", low_memory=True, chunk_size=None)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


@pytest.mark.parametrize("options", [{}, {"engine": "single-backward"}, {"engine": "loop"}, {"amp": True}], ids=str)
def test_a_label_outside_the_classes_is_null_and_the_process_lives(options):
    def run(inputs, labels):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        chosen = {"optimizer": "sgd", "lr": 0.1, "chunk_size": 16, "device": "cuda", "test_seed": 3, **options}
        return Trainer(net, LOSS, stored("constant"), **chosen).fit(TensorDataset(inputs, labels)).model

    inputs, labels = records()
    bad, absent = labels.clone(), inputs.clone()
    bad[[3, 17]], absent[[3, 17]] = torch.tensor([-1, 7]), torch.nan
    found, expected, nobody = run(inputs, bad), run(absent, labels), run(torch.full_like(inputs, torch.nan), labels)
    assert float(torch.ones(2, device="cuda").sum()) == 2.0
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-2 if "amp" in options else 1e-5)
    assert not all(torch.equal(a, b) for a, b in zip(found.parameters(), nobody.parameters(), strict=True))
