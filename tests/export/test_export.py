"""Files for other programs say what the model says, of odd cells too, and bear its privacy statement."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
pytest.importorskip("skops", reason="the extra export is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import dpilot  # noqa: E402
from dpilot import Budget, Plan, Trainer, export  # noqa: E402
from dpilot.audit.verify import verify  # noqa: E402
from dpilot.cli.main import main  # noqa: E402
from dpilot.data.schema import Schema  # noqa: E402
from dpilot.errors import InvalidInput  # noqa: E402
from dpilot.fit.table import fit_table  # noqa: E402
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema  # noqa: E402
from tests.thin import thin  # noqa: E402


def odd(made: pd.DataFrame) -> pd.DataFrame:
    """Some cells of each column missing, unknown, beyond their bounds, or not to be read."""
    made, rng = made.head(300).copy(), np.random.default_rng(0)
    for cell in (None, "", "strange", "-1e9", "inf", [1], " a ", "0.0"):
        for name in made.columns:
            made[name] = [cell if rng.random() < 0.03 else each for each in made[name]]
    return made


def more_columns(schema: Schema) -> Schema:
    """With a boolean, an ordered category, unknown values that are told, and numbers that mean missing."""
    columns = schema.to_dict()["columns"]
    columns["kind"] |= {"ordered": True, "outside": "indicator", "missing": "indicator"}
    columns["signal"] |= {"missing": "indicator", "outside": "clamp"}
    columns["flag"] = {"type": "boolean", "missing": "indicator"}
    return Schema.from_dict({"columns": columns, "missing_values": ["", "-9"]})


def with_flags(made: pd.DataFrame) -> pd.DataFrame:
    flags = ["yes", "No", "tRuE", 0, 1.0, True, "maybe", "-9"]
    return made.assign(flag=[flags[place % len(flags)] for place in range(len(made))])


MODELS = {
    "additive": (SCHEMA, frame),
    "grids": (SCHEMA, frame),
    "mlp": (SCHEMA, frame),
    "logistic": (SCHEMA, frame),
    "linear": (numeric_schema(), numeric_frame),
    "grids of a number": (numeric_schema(), numeric_frame),
}


@pytest.mark.parametrize("name", thin(MODELS, 2))
def test_onnx_says_what_the_model_says(name, tmp_path):
    schema, table = MODELS[name]
    fitted = fit_table(with_flags(table()), more_columns(schema), model=name.split()[0], epsilon=3.0)
    loaded = export.load(export.to_onnx(fitted, tmp_path / "model.onnx"))
    rows = odd(with_flags(table()))
    ours, theirs = fitted.predict_columns(rows), loaded.predict_columns(rows)
    assert list(ours) == list(theirs)
    for column, values in ours.items():
        if values.dtype == object:
            assert np.array_equal(values, theirs[column])
            assert 0 < (values == None).sum() < len(values)  # noqa: E711
        else:
            assert np.allclose(values, theirs[column], rtol=1e-9, atol=1e-12, equal_nan=True)
    assert verify(tmp_path / "model.onnx").held
    encoded = fitted.reader.encode_features(rows)
    bare = export.to_onnx(fitted, tmp_path / "bare.onnx", preprocessing=False)
    session = onnxruntime.InferenceSession(bare, providers=["CPUExecutionProvider"])
    values = session.run(None, {"features": np.asarray(encoded)})[0]
    ours = fitted.outputs(rows) if fitted.task.numeric else fitted.predict_proba(rows)
    assert np.allclose(values, ours, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("classes", [None, ["a", "b"], ["a", "b", "c"]])
def test_linear_models_of_arrays(classes, tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3))
    if classes is None:
        model = dpilot.linear.LinearRegression(epsilon=3.0, delta=1e-5).fit(rows, rows @ [1.0, 2.0, 0.0])
    else:
        labels = np.asarray(classes)[rng.integers(len(classes), size=500)]
        model = dpilot.linear.LogisticRegression(epsilon=3.0, delta=1e-5, classes=classes).fit(rows, labels)
    path = export.to_onnx(model, tmp_path / "linear.onnx")
    rows[::7, 1], rows[::11, 2] = np.nan, 1e6
    found = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"X": rows})
    if classes is None:
        assert np.allclose(found[0][:, 0], model.predict(rows), rtol=1e-9)
    else:
        assert np.allclose(found[0], model.predict_proba(rows), rtol=1e-9)
        assert found[1][:, 0].tolist() == model.predict(rows).tolist()
    assert verify(path).held


@pytest.mark.slow
def test_a_torch_model_is_exported_for_any_number_of_records(tmp_path):
    import torch

    pytest.importorskip("onnxscript")
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    plan = Plan.calibrate(Budget(3.0, 1e-5), size=200, batch_size=50, steps=3)
    data = TensorDataset(torch.randn(200, 1, 8, 8), torch.randint(3, (200,)))
    run = Trainer(model, nn.CrossEntropyLoss(reduction="none"), plan, lr=0.1).fit(data)
    path = export.to_onnx(run, tmp_path / "net.onnx", example=torch.zeros(2, 1, 8, 8))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (asked,) = session.get_inputs()
    for rows in (1, 7):
        inputs = torch.randn(rows, 1, 8, 8)
        assert np.allclose(session.run(None, {asked.name: inputs.numpy()})[0], run.predict(inputs), atol=1e-5)
    assert verify(path).held
    with pytest.raises(InvalidInput, match="example is None"):
        export.to_onnx(run, tmp_path / "more.onnx")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run folder, and the files of its model."""
    folder = tmp_path_factory.mktemp("exported")
    fitted = fit_table(frame(), SCHEMA, model="additive", epsilon=3.0)
    fitted.save(folder / "run")
    export.to_onnx(fitted, folder / "model.onnx")
    export.to_skops(fitted, folder / "model.skops")
    frame(50).to_csv(folder / "data.csv", index=False)
    return folder


def test_predict_and_verify_read_each_form(exported, capsys):
    said = []
    for name in ("run", "run/model.safetensors", "model.onnx", "model.skops"):
        out = exported / "out.csv"
        assert main(["predict", str(exported / name), str(exported / "data.csv"), "--out", str(out)]) == 0
        said.append(pd.read_csv(out).round(9))
        assert main(["verify", str(exported / name)]) == 0
    assert all(each.equals(said[0]) for each in said)
    asked = [str(exported / "model.onnx"), str(exported / "data.csv"), "--out", str(exported / "out.csv")]
    assert main(["predict", *asked, "--public"]) == 2
    assert "expected a run folder or skops" in capsys.readouterr().err


def test_skops_trusts_everything_in_its_file(exported):
    from skops.io import get_untrusted_types

    assert get_untrusted_types(file=exported / "model.skops") == []
    assert (exported / "model.skops.statement.json").exists()


def test_an_altered_graph_or_claim_is_found(exported, tmp_path):
    model = onnx.load_model(exported / "model.onnx")
    weights = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    weights.raw_data = bytes(reversed(weights.raw_data))
    onnx.save_model(model, tmp_path / "altered.onnx")
    assert [each.name for each in verify(tmp_path / "altered.onnx").checks if each.held is False] == ["weights"]
    model = onnx.load_model(exported / "model.onnx")
    (told,) = [each for each in model.metadata_props if each.key == "dpilot_statement"]
    told.value = re.sub(r'("epsilon": ?)[0-9.]+', r"\g<1>1.0", told.value)
    onnx.save_model(model, tmp_path / "claimed.onnx")
    assert [each.name for each in verify(tmp_path / "claimed.onnx").checks if each.held is False] == ["epsilon"]


def test_a_signed_graph_names_its_key(exported, tmp_path, monkeypatch):
    from dpilot.train.checkpoint.statement import create_key

    public = create_key(tmp_path / "key")
    monkeypatch.setenv("DPILOT_KEY", str(tmp_path / "key"))
    path = export.to_onnx(dpilot.load(exported / "run"), tmp_path / "signed.onnx")
    assert verify(path, key=public).held
    assert not verify(exported / "model.onnx", key=public).held


def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="the model is a dict: expected a fit"):
        export.to_onnx({}, tmp_path / "model.onnx")
    with pytest.raises(InvalidInput, match="expected a fit"):
        export.to_skops({}, tmp_path / "model.skops")
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(InvalidInput, match="expected what to_onnx wrote"):
        export.load(tmp_path / "model.onnx")
    with pytest.raises(InvalidInput, match="no privacy statement"):
        verify(tmp_path / "model.onnx")
    (tmp_path / "model.skops").write_bytes(b"nonsense")
    with pytest.raises(InvalidInput, match="expected what to_skops wrote"):
        export.load(tmp_path / "model.skops")
