"""A run is saved and loaded as data, and its model is a plain one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dpilot import Budget, Ledger, load
from dpilot.errors import InvalidInput
from dpilot.train.checkpoint import architecture, store
from dpilot.train.run import predict
from tests.train.helpers import fit, model, records, same


def test_a_saved_run_predicts_the_same(tmp_path):
    run, inputs = fit("slack"), records()[0]
    run.save(tmp_path / "run")
    again = load(tmp_path / "run")
    assert torch.equal(again.predict(inputs), run.predict(inputs))
    assert torch.allclose(again.predict(inputs.numpy()), run.model(inputs).detach(), atol=1e-6)
    assert (again.record, again.epsilon, again.thresholds) == (run.record, run.epsilon, run.thresholds)
    assert again.ledger.verify() == run.ledger.head()
    assert again.ledger.entries() == run.ledger.entries()


def test_the_state_dict_is_a_plain_one(tmp_path):
    run = fit()
    run.save(tmp_path)
    plain = model()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert same(plain, run.model)


def test_a_given_ledger_stays_where_it_is(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))
    run = fit(ledger=book)
    run.save(tmp_path / "run")
    assert not (tmp_path / "run" / "ledger").exists()
    (entry,) = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert (entry["state"], entry["purpose"]) == ("committed", "training")
    assert load(tmp_path / "run").ledger is None


def test_another_run_is_not_written_over(tmp_path):
    run = fit()
    run.save(tmp_path)
    run.save(tmp_path)
    with pytest.raises(InvalidInput, match="holds another run"):
        fit("slack").save(tmp_path)
    with pytest.raises(InvalidInput, match="holds no finished run"):
        load(tmp_path / "nowhere")


class Own(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x):
        return self.layer(x)


def test_a_model_of_ones_own_is_given_again(tmp_path):
    run, inputs = fit(net=Own()), records()[0]
    run.save(tmp_path)
    with pytest.raises(InvalidInput, match="layers of its own"):
        load(tmp_path)
    assert torch.equal(load(tmp_path, Own()).predict(inputs), run.predict(inputs))
    with pytest.raises(InvalidInput, match="the model is not the saved one"):
        load(tmp_path, Own(width=5))


LAYERS = [
    nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()),
    nn.Sequential(nn.Embedding(5, 3), nn.LayerNorm(3), nn.GELU(), nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.2))),
    nn.Sequential(nn.MaxPool2d(3, stride=2), nn.AdaptiveAvgPool2d((1, 1)), nn.LeakyReLU(0.2), nn.Softmax(dim=1)),
]


@pytest.mark.parametrize("layers", LAYERS, ids=["conv", "text", "pool"])
def test_usual_layers_are_described_and_built(layers):
    stored = json.loads(json.dumps(architecture.describe(layers)))
    built = architecture.build(stored)
    assert repr(built) == repr(layers)
    built.load_state_dict(layers.state_dict())


@pytest.mark.parametrize("layers", [Own(), nn.Sequential(Own()), nn.Sequential(nn.LSTM(2, 2))])
def test_other_layers_are_not_described(layers):
    assert architecture.describe(layers) is None


@pytest.mark.parametrize("text", ['{"layer": "os.system"}', '{"layer": "Module", "arguments": {}}', "3", "{}"])
def test_a_description_names_known_layers_only(text):
    with pytest.raises(InvalidInput):
        architecture.build(json.loads(text))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_load_as_they_are(dtype, tmp_path):
    from torch.utils.data import TensorDataset

    inputs, targets = records()
    run = fit(net=model().to(dtype), dataset=TensorDataset(inputs.to(dtype), targets))
    run.save(tmp_path)
    assert torch.equal(load(tmp_path).predict(inputs.to(dtype)), run.predict(inputs.to(dtype)))


def test_predict_runs_in_evaluation_mode_and_puts_modes_back():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    net[0].eval()
    run = fit(net=net)
    inputs = records()[0]
    assert torch.equal(run.predict(inputs), run.predict(inputs))
    assert [m.training for m in net.modules()] == [True, False, True]
    assert run.predict(np.zeros((0, 4), dtype=np.float32)).shape == (0, 4)
    with pytest.raises(InvalidInput, match="inputs are str"):
        run.predict("text")


@pytest.mark.parametrize("net", [nn.Linear(240, 2), nn.Sequential(nn.Linear(240, 64), nn.Tanh(), nn.Linear(64, 3))])
def test_one_more_record_changes_no_bit_of_another_prediction(net):
    inputs = torch.randn(1100, 240, generator=torch.Generator().manual_seed(0))
    whole = predict(net, inputs)
    assert torch.allclose(whole, net(inputs).detach(), atol=1e-5)
    for count in (0, 1, 2, 3, 7, 8, 9, 16, 17, 100, 512, 513, 514, 1023, 1024, 1025, 1099):
        assert torch.equal(predict(net, inputs[:count]), whole[:count]), count


def test_predictions_of_several_inputs_are_filled_up_alike():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, scale, shift):
            assert len(x) == len(scale)
            return self.layer(x * scale[:, None]) + shift

    inputs = {"x": torch.randn(21, 3), "scale": torch.arange(21.0), "shift": torch.ones(2)}
    net = Both()
    assert torch.allclose(predict(net, inputs), net(**inputs).detach(), atol=1e-6)
    assert predict(net, tuple(inputs.values())).shape == (21, 2)


@pytest.mark.parametrize("tree", [{0: [1, (2.5, None)], "a": {"b": torch.arange(3)}}, [], {}, True, (torch.eye(2),)])
def test_state_packs_into_tensors_and_json(tree):
    held = {}
    plain = json.loads(json.dumps(store.pack(tree, "x", held)))
    assert repr(store.unpack(plain, held)) == repr(tree)


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(InvalidInput, match=r"x\.0 is a object"):
        store.pack([object()], "x", {})
    for stored in (3, {"code": 1}, {}):
        with pytest.raises(InvalidInput):
            store.unpack(stored, {})
