"""What trackers are told is what was released: all of it, and nothing else."""

from __future__ import annotations

import json
import math
from functools import lru_cache

import numpy as np
import pytest

from dpilot import AutoClassifier, clipping
from dpilot.errors import InvalidInput
from dpilot.integrations import mlflow, tensorboard
from dpilot.integrations.fields import record_fields
from dpilot.linear import LinearRegression
from dpilot.records import FitRecord, RunRecord
from dpilot.tape import tape
from tests.fit.helpers import SCHEMA, frame
from tests.tapes import Recorder
from tests.train.helpers import STEPS, data, fit

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages
RULE = clipping.get("slack", groups=2, slots=3)


class Writer:
    """What a SummaryWriter was told."""

    def __init__(self):
        self.scalars, self.texts = {}, {}

    def add_scalar(self, name, value, step, **_):
        self.scalars.setdefault(name.removeprefix("dpilot/"), {})[step] = value

    def add_text(self, name, text, step, **_):
        self.texts[name] = text


@lru_cache
def taped_fit():
    """A fitted estimator, and every number that went to the door before the noise."""
    table, recorder = frame(), Recorder()
    with tape(recorder):
        model = AutoClassifier(epsilon=3.0, delta=1e-5, schema=SCHEMA)
        model.fit(table.drop(columns="outcome"), table["outcome"])
    return model, {float(x) for entry in recorder.entries for part in entry.inputs for x in np.asarray(part).ravel()}


def classifier():
    return taped_fit()[0]


def is_frame(logged, steps):
    """Whether what was logged by name and step is the frame of the released numbers, no more and no less."""
    wanted = {name: dict(steps.set_index("step")[name].astype(float).dropna()) for name in steps.columns.drop("step")}
    return logged == {name: column for name, column in wanted.items() if column}


@pytest.mark.parametrize("rule", [RULE, "one-shot", "constant", "mse"], ids=str)
def test_a_run_logs_every_number_it_released_and_no_other(rule):
    writer = Writer()
    run = fit(rule, callback=tensorboard.callback(writer))
    assert is_frame(writer.scalars, run.steps())
    whole = Writer()
    tensorboard.log_record(run, whole)
    assert is_frame(
        {name: each for name, each in whole.scalars.items() if name not in ("epsilon", "delta")}, run.steps()
    )
    assert whole.scalars["epsilon"] == {0: run.epsilon}
    steps = dict(tracked(run.fit_record()))  # as fits and tuners record them
    assert is_frame({name: each for name, each in steps.items() if name not in ("epsilon", "delta")}, run.steps())


def tracked(source):
    writer = Writer()
    tensorboard.log_record(source, writer)
    return writer.scalars


def test_nothing_from_before_the_noise_is_logged():
    recorder, writer = Recorder(), Writer()
    with tape(recorder):
        fit(RULE, callback=tensorboard.callback(writer))
    exact = {float(x) for entry in recorder.entries for part in entry.inputs for x in np.asarray(part).ravel()}
    lengths = {float(np.linalg.norm(np.concatenate([np.ravel(p) for p in e.inputs[:-1]]))) for e in recorder.entries}
    told = {value for each in writer.scalars.values() for value in each.values()} - {0.0, 1.0}
    assert len(told) > 6 * STEPS
    assert not told & (exact | lengths)


def test_nothing_from_before_the_noise_is_logged_of_a_fit():
    model, exact = taped_fit()
    told = {value for each in tracked(model).values() for value in each.values()}
    assert len(told) > 50
    assert not {each for each in told & exact if each != round(each)}


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for each in tree.values() for leaf in leaves(each)]
    return [leaf for each in tree for leaf in leaves(each)] if isinstance(tree, list) else [tree]


@pytest.mark.parametrize("of", ["run", "fit"])
def test_every_field_of_a_record_is_told(of):
    """Nothing that the stored record says is left out, whatever fields it gets."""
    record = fit("slack", public_validation=data(9)).record if of == "run" else classifier().record_
    fields = record_fields(record)
    numbers = {*fields.figures.values(), *(x for _, each in fields.series for x in each.values())}
    texts = set(fields.parameters.values())
    plain = json.loads(record.to_json())
    plain.pop("format")
    if of == "run":
        plain.pop("steps")  # compared above
        plain["validation"] = [{**each, "step": None, "kind": None} for each in plain["validation"]]
    else:
        plain["metrics"] = [{**each, "name": None, "of": None} for each in plain["metrics"]]
        assert all(any(metric.name in name for name in fields.figures) for metric in record.metrics)
    for leaf in leaves(plain):
        said = leaf is None or str(leaf) in texts or (isinstance(leaf, float | int) and float(leaf) in numbers)
        assert said or any(str(leaf) in text for text in texts), leaf


def test_estimators_are_logged_by_their_record():
    writer = Writer()
    tensorboard.log_record(classifier(), writer)
    record = classifier().record_
    assert writer.scalars["accuracy"] == {0: record.metrics[0].value}
    assert "float noise, not hardened" in writer.texts["record"]
    linear = LinearRegression(epsilon=1.0, delta=1e-5).fit(np.eye(60, 2), np.arange(60.0))
    plain = Writer()
    tensorboard.log_record(linear, plain)
    assert plain.scalars == {name: {0: getattr(linear.privacy_.spent, name)} for name in ("epsilon", "delta")}
    with pytest.raises(InvalidInput, match="no record"):
        tensorboard.log_record(object(), plain)


def test_tensorboard_reads_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        run = fit(RULE, callback=tensorboard.callback(writer))
        tensorboard.log_record(run, writer, series=False)
    read = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    read.Reload()
    logged = {
        tag.removeprefix("dpilot/"): {
            each.step: float(tensor_util.make_ndarray(each.tensor_proto)) for each in read.Tensors(tag)
        }
        for tag in read.Tags()["tensors"]
        if tag.startswith("dpilot/")
    }
    assert logged.pop("epsilon") == {0: run.epsilon}
    assert logged.pop("delta") == {0: run.delta}
    assert is_frame(logged, run.steps())
    times = {each.wall_time for tag in read.Tags()["tensors"] for each in read.Tensors(tag) if "threshold" in tag}
    assert len(times) == 1  # how long a step took would tell the size of its batch


@pytest.fixture
def store(tmp_path):
    real = pytest.importorskip("mlflow")
    real.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    real.create_experiment("looks", artifact_location=(tmp_path / "artifacts").as_uri())
    real.set_experiment("looks")
    return real


def history(store, run_id):
    client = store.MlflowClient()
    return {
        name: {each.step: each.value for each in client.get_metric_history(run_id, name)}
        for name in client.get_run(run_id).data.metrics
    }


def test_mlflow_reads_what_was_logged(store):
    with store.start_run() as active:
        run = fit(RULE, callback=mlflow.callback())
        mlflow.log_record(run, series=False)
    logged = history(store, active.info.run_id)
    assert logged.pop("epsilon") == {0: run.epsilon}
    assert logged.pop("delta") == {0: run.delta}
    assert is_frame(logged, run.steps())
    steps = store.MlflowClient().get_metric_history(active.info.run_id, "threshold")
    assert len({each.timestamp for each in steps}) == 1
    text = store.artifacts.load_text(f"runs:/{active.info.run_id}/{mlflow.ARTIFACT}")
    assert RunRecord.from_json(text) == run.record
    parameters = store.MlflowClient().get_run(active.info.run_id).data.params
    assert parameters["stamps.0"] == run.record.stamps[0]


def test_mlflow_takes_an_estimators_record(store):
    with pytest.raises(InvalidInput, match="start_run"):
        mlflow.log_record(classifier())
    with store.start_run() as active:
        pass
    mlflow.log_record(classifier(), active.info.run_id)
    logged, record = history(store, active.info.run_id), classifier().record_
    assert len(logged) == len(record_fields(record).figures)
    assert logged["accuracy"] == {0: record.metrics[0].value}
    text = store.artifacts.load_text(f"runs:/{active.info.run_id}/{mlflow.ARTIFACT}")
    assert FitRecord.from_json(text) == record
    assert not any(math.isnan(value) for each in logged.values() for value in each.values())
