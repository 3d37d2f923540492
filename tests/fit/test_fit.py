"""From a table to a model: health is paid first, then all the rest, and each part keeps to its own records."""

from __future__ import annotations

import json
import time

import numpy as np
import pandas as pd
import pytest
import torch

import dpilot
from dpilot import Budget, Ledger
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.fit import rehearsal
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.figures import CountFigures
from dpilot.fit.learners.networks import NetworkPlan
from dpilot.fit.pipeline import FitPlan, plan_fit
from dpilot.fit.rehearsal import rehearse, synthetic_records
from dpilot.fit.source import TableSource
from dpilot.fit.table import fit_table
from dpilot.privacy import accountant
from dpilot.privacy import events as known_events
from dpilot.privacy.events import Composed
from tests.fit.helpers import SCHEMA, SIZE, events, frame, numeric_frame, numeric_schema


def fit(source=None, schema=SCHEMA, **options):
    """Few steps, unless a test asks what was learnt: ``epochs=None`` leaves their number to the fit."""
    options = {"epsilon": 3.0, "delta": 1e-5, "test_seed": 1, "model": "logistic", "epochs": 0.1, **options}
    return fit_table(frame() if source is None else source, schema, **options)


@pytest.fixture(scope="module")
def fitted():
    return fit(epochs=None)


def value(run, name, of=""):
    return next(metric.value for metric in run.metrics if (metric.name, metric.of) == (name, of))


def test_it_learns(fitted):
    assert fitted.epsilon <= 3.0
    made = frame(2000)
    right = fitted.predict(made) == made["outcome"].to_numpy()
    assert right.mean() > 0.8
    assert value(fitted, "AUC") > 0.6
    assert len(fitted.record.thresholds) == fitted.record.plan["steps"]


def test_health_and_all_the_rest_are_two_commitments_that_keep_the_budget_on_each_part(fitted):
    health, *rest = fitted.record.ledger
    spent = {entry["part"]: known_events.from_dict(entry["event"]) for entry in rest}
    assert health["purpose"].startswith("health of fit ")
    assert health["part"] is None
    assert set(spent) == {"train", "held-out"}
    assert len({entry["seq"] for entry in rest}) == 1
    assert all(entry["state"] == "committed" for entry in fitted.record.ledger)
    checked = accountant.epsilon(known_events.from_dict(health["event"]), 0.02e-5)
    assert checked == pytest.approx(0.02 * 3.0, rel=1e-3)
    for part in spent.values():
        assert 2.88 < accountant.epsilon(part, 0.98e-5) <= 0.98 * 3.0
    assert fitted.epsilon == pytest.approx(3.0, abs=1e-2)
    assert fitted.epsilon <= 3.0


@pytest.mark.parametrize(("model", "bound"), [("auto", "gdp"), ("logistic", "basic")])
def test_a_ledger_of_ones_own_adds_squared_mu_where_all_is_gaussian(model, bound, tmp_path):
    run = fit(model=model, epochs=2 if model == "auto" else 0.1, run_folder=tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger")
    assert (book.bound, book.mode) == (bound, "adaptive")
    assert run.epsilon == book.spent().epsilon <= 3.0


def test_a_precommitted_ledger_is_refused_before_anything_is_paid(tmp_path):
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(4.0, 1e-4), mode="precommitted")
    with pytest.raises(InvalidInput, match="adaptive"):
        fit(ledger=book)
    assert book.entries() == ()


@pytest.mark.slow
def test_what_is_bought_is_paid_for_on_both_parts():
    columns = SCHEMA.to_dict()["columns"]
    columns["signal"]["bounds"] = "buy"
    run = fit(schema=Schema.from_dict({"columns": columns}), size="private", epochs=8)
    spent = [(entry["purpose"], entry["part"]) for entry in run.record.ledger[1:]]
    assert spent == [("size", None), ("bounds", None), ("training", "train"), ("held-out metrics", "held-out")]
    all_events = [known_events.from_dict(entry["event"]) for entry in run.record.ledger[1:]]
    for part in (2, 3):
        assert accountant.epsilon(Composed([*all_events[:2], all_events[part]]), 0.98e-5) <= 0.98 * 3.0
    assert run.epsilon <= 3.0
    lower, upper = run.schema.columns["signal"].bounds
    assert -8 < lower < -1 < 1 < upper < 8
    assert run.record.data["size"] != SIZE, "a size that is bought is noisy"
    assert not any("number of records" in what for what in run.record.unprotected)


def test_what_is_shown_and_saved_is_the_price_of_the_whole_fit(tmp_path):
    columns = {**SCHEMA.to_dict()["columns"], "signal": {"type": "numeric", "bounds": "buy"}}
    told = []
    run = fit(
        frame(200),
        Schema.from_dict({"columns": columns}),
        epsilon=1.0,
        size="private",
        epochs=1,
        run_folder=tmp_path / "run",
        progress=told.append,
    )
    saved = json.loads((tmp_path / "run" / "fit.json").read_text())["privacy"]
    prices = [run.record.privacy["epsilon"], saved["epsilon"], dpilot.load(tmp_path / "run").epsilon]
    assert 0.99 < run.epsilon <= 1.0
    assert {*prices, *(update.epsilon for update in told)} == {run.epsilon}
    assert {saved["delta"], *(update.delta for update in told)} == {run.delta}
    train = next(entry for entry in run.record.ledger if entry["part"] == "train")
    assert train["cost"]["epsilon"] < 0.97  # neither health nor what was bought is in it


def test_training_and_metrics_read_disjoint_records_that_are_all_of_them(monkeypatch):
    seen = {}
    train, release = NetworkPlan.train, CountFigures.release

    def trained(self, parts, run):
        seen["train"] = parts.train.features
        return train(self, parts, run)

    def released(self, records, *rest):
        seen["metrics"] = records.features
        return release(self, records, *rest)

    monkeypatch.setattr(NetworkPlan, "train", trained)
    monkeypatch.setattr(CountFigures, "release", released)
    fit()
    numbers = {name: set(np.round((rows[:, 0] + 1) * 5000).astype(int).tolist()) for name, rows in seen.items()}
    assert not numbers["train"] & numbers["metrics"]
    assert numbers["train"] | numbers["metrics"] == set(range(SIZE))
    assert 10 < len(numbers["metrics"]) < 100


def test_metrics_without_a_receipt_are_refused(monkeypatch):
    stages = FitPlan.stages
    monkeypatch.setattr(FitPlan, "stages", lambda self, split: stages(self, split)[:-1])
    with pytest.raises(BudgetExceeded, match="held-out metrics"):
        fit()


@pytest.mark.parametrize("length", [SIZE - 150, SIZE])
def test_nothing_but_the_declared_size_enters_plan_and_price(length):
    run = fit(frame(length), size=1000)
    assert run.record.plan["size"] == 900
    assert run.record.data["size"] == 1000
    reference = fit(frame(50), size=1000)
    assert events(run) == events(reference)
    assert run.record.plan == reference.record.plan
    assert run.record.unprotected == ("running time and memory",)


def test_a_private_size_is_bought_and_the_number_of_records_is_nowhere():
    run = fit(size="private", model="auto", epochs=2)
    assert run.record.data["size"] not in (SIZE, 1)
    assert abs(run.record.data["size"] - SIZE) < 200
    assert not any("number of records" in what for what in run.record.unprotected)


def test_a_public_size_is_published_and_said_to_be(fitted):
    assert fitted.record.data["size"] == SIZE
    assert any("number of records" in what for what in fitted.record.unprotected)


def test_the_divisor_is_the_declared_expected_batch_size(monkeypatch):
    plans, made = [], NetworkPlan.run_plan

    def keep(self, size):
        plans.append(made(self, size))
        return plans[-1]

    monkeypatch.setattr(NetworkPlan, "run_plan", keep)
    fit(frame(200), size=1000)
    (plan,) = plans
    assert plan.size == 900
    assert plan.expected_batch_size == pytest.approx(plan.sample_rate * 900)


@pytest.mark.parametrize(("reads", "share"), [(0, 0.02), (1, 1.0)], ids=["health", "the rest"])
def test_the_price_is_on_disk_before_a_value_is_read_for_it(monkeypatch, tmp_path, reads, share):
    left, frames = [None] * reads, TableSource.frames

    def breaking(self):
        if not left:
            raise RuntimeError("the disk is gone")
        left.pop()
        yield from frames(self)

    monkeypatch.setattr(TableSource, "frames", breaking)
    with pytest.raises(RuntimeError):
        fit(ledger=tmp_path / "book")
    assert Ledger.read(tmp_path / "book").spent().epsilon == pytest.approx(share * 3.0, rel=5e-3)


def test_a_ledger_pays_for_each_fit_and_refuses_what_it_cannot(monkeypatch, tmp_path):
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(4.0, 1e-4))
    run = fit(ledger=book)
    assert book.spent().epsilon <= run.epsilon <= 3.0
    monkeypatch.setattr(TableSource, "frames", lambda self: pytest.fail("read"))
    before = book.spent()
    with pytest.raises(BudgetExceeded):
        fit(ledger=book)
    assert book.spent() == before


@pytest.mark.parametrize(("bound", "share"), [("basic", 0.98e-5), ("rdp", None)])
def test_two_fits_cost_the_same_on_one_split_as_on_two(bound, share, tmp_path):
    spent = []
    for name, splits in {"one": ("a", "a"), "two": ("a", "b")}.items():
        book = Ledger.open(tmp_path / name, dataset="small", budget=Budget(9.0, 1e-4), bound=bound)
        for epsilon, split in zip((0.5, 3.0), splits, strict=True):
            book.commit(planned(frame(), epsilon=epsilon).stages(split), delta=share)
        spent.append(book.spent())
    assert spent[0] == spent[1]


def test_a_second_fit_in_a_ledger_has_a_split_of_its_own(tmp_path):
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(6.0, 1e-4))
    runs = [fit(ledger=book, test_seed=None) for _ in range(2)]
    assert len({run.record.ledger[-1]["split"] for run in runs}) == 2
    assert book.spent().epsilon > 1.9 * 3.0


def test_without_delta_it_is_one_tenth_of_one_over_the_size_and_said():
    run = fit(delta=None)
    assert run.delta == pytest.approx(1e-5)
    assert any("min(1e-5, 1/(10 size))" in decision for decision in run.record.decisions)
    with pytest.raises(InvalidInput, match="delta"):
        fit(delta=0.5)


def test_a_run_saved_and_loaded_predicts_the_same(fitted, tmp_path):
    where = fitted.save(tmp_path / "run")
    again = dpilot.load(where)
    assert again.record == fitted.record
    assert again.schema == fitted.schema
    assert np.array_equal(again.predict_proba(frame()), fitted.predict_proba(frame()))
    with pytest.raises(InvalidInput):
        dpilot.load(tmp_path)


def test_records_outside_the_domain_have_no_prediction_and_raise_nothing(fitted):
    odd = frame(6)
    odd.loc[0, "number"] = "1e9"
    odd.loc[1, "signal"] = "x" * 100_000
    odd.loc[2, "kind"] = "unseen"
    odd.loc[3, "number"] = None
    odd.loc[4, "signal"] = None
    found, chances = fitted.predict(odd), fitted.predict_proba(odd)
    assert [each is None for each in found] == [True, True, True, True, False, False]
    assert np.array_equal(np.isnan(chances).any(axis=1), [True] * 4 + [False] * 2)
    assert fitted.predict(odd.drop(columns=["outcome", "site"]))[5] == found[5]


def test_a_numeric_target_is_fitted_and_scored():
    run = fit(numeric_frame(), numeric_schema(), epsilon=8.0, epochs=None)
    rmse = next(metric for metric in run.metrics if metric.name == "RMSE")
    assert rmse.noise[0] <= rmse.value <= rmse.noise[1] < 5
    assert value(run, "R^2") > 0.5
    made = numeric_frame(500)
    assert np.corrcoef(run.predict(made).astype(float), made["outcome"].astype(float))[0, 1] > 0.9
    with pytest.raises(InvalidInput, match="numeric"):
        run.predict_proba(made)


def test_groups_of_a_numeric_target_are_compared_in_the_same_budget():
    made = numeric_frame(4000)
    run = fit(made, numeric_schema(), epsilon=2.0, delta=1e-5)
    assert value(run, "group records", "site = north") == pytest.approx(200, abs=60)
    assert value(run, "group RMSE", "site = south") < 5
    public = {(each.name, each.of): each.value for each in run.score_public(made)}
    assert public["group records", "site = north"] == pytest.approx((made["site"] == "north").sum())
    held_out = [known_events.from_dict(each["event"]) for each in run.record.ledger if each["part"] == "held-out"]
    assert accountant.epsilon(Composed(held_out), 1e-5) <= 2.0


def test_a_small_network_is_fitted(tmp_path):
    run = fit(model="mlp", epsilon=8.0, epochs=None)
    assert (run.predict(frame()) == frame()["outcome"].to_numpy()).mean() > 0.8
    assert np.array_equal(dpilot.load(run.save(tmp_path / "run")).predict(frame()), run.predict(frame()))


def test_the_step_size_can_be_supplied():
    asked = []

    def step(numbers):
        asked.append(numbers)
        return 0.125

    run = fit(step=step)
    assert run.record.plan["lr"] == 0.125
    assert asked[0].batch_size == pytest.approx(run.record.plan["sample_rate"] * run.record.plan["size"])


def planned(source, **options):
    given = {"epsilon": 1.0, "delta": 1e-5, "options": FitOptions("logistic", epochs=0.1), **options}
    return plan_fit(declare_fit(source, SCHEMA, **given)[0], "basic")


@pytest.mark.parametrize("model", ["auto", "logistic", "mlp"])
def test_a_dry_run_reads_no_value_and_spends_nothing(monkeypatch, tmp_path, model):
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    monkeypatch.setattr("dpilot.data.files.Table.frames", lambda self: pytest.fail("read"))
    found = rehearse(planned(path, options=FitOptions(model, epochs=None if model == "auto" else 0.1)))
    assert found.seconds > 0
    assert found.megabytes > 0
    assert found.size == SIZE
    assert [each["purpose"] for each in found.stages][:: len(found.stages) - 1] == ["health", "held-out metrics"]
    assert [each.name for each in tmp_path.iterdir()] == ["table.csv"]


def test_what_else_the_machine_does_is_not_counted_as_time_of_the_fit():
    found = rehearse(planned(frame()), clocks=lambda: (50 * time.perf_counter(), time.process_time()))
    assert 0 < found.seconds < found.seconds_if_as_busy / 5


def test_what_only_a_first_run_does_is_counted_once():
    """It loads code: multiplied by the steps, two seconds of it would be a minute."""
    waits, clock = iter([10.0, 1.0]), [0.0]

    def work():
        clock[0] += next(waits)

    once, again = rehearsal._seconds(work, lambda: (clock[0], clock[0] / 2))
    assert once.tolist() == [9.0, 4.5]
    assert again.tolist() == [1.0, 0.5]


def test_made_up_records_are_in_the_declared_domain():
    made = pd.DataFrame(synthetic_records(SCHEMA, 100))
    encoded = Encoder(SCHEMA).encode(made)
    assert np.isfinite(encoded.features).all()
    assert set(encoded.target) == {0.0, 1.0}


def test_public_records_are_scored_exactly(fitted):
    made = frame(300)
    figures = {(metric.name, metric.of): metric for metric in fitted.score_public(made)}
    right = fitted.predict(made) == made["outcome"].to_numpy()
    assert figures["accuracy", ""].value == pytest.approx(right.mean())
    assert all(metric.exact for metric in figures.values())


def test_two_fits_draw_other_coins_and_noise():
    runs = [fit(test_seed=None) for _ in range(2)]
    weights = [next(iter(run.predictor.module.parameters())) for run in runs]
    assert not torch.equal(*weights)
    assert len({run.record.ledger[-1]["split"] for run in runs}) == 2
    assert len({run.record.ledger[0]["purpose"] for run in runs}) == 2, "the public names of two keys"
    assert "not private" not in " ".join(runs[0].record.stamps)


def test_a_test_seed_is_stamped(fitted):
    assert "not private" in " ".join(fitted.record.stamps)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"model": "forest"}, "model"),
        ({"held_out": 1.0}, "held_out"),
        ({"model": "linear"}, "classes"),
        ({"stop_below": 1.5}, "stop_below"),
        ({"size": 0}, "size"),
        ({"size": "some"}, "size"),
        ({"epochs": -1}, "epochs"),
        ({"target": "nothing"}, "target"),
        ({"protected": "signal"}, "protected"),
        ({"schema": {"columns": {}}}, "schema"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_spent(options, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        fit(**{"run_folder": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_network_is_refused_a_target_whose_bounds_are_to_be_bought(model, tmp_path):
    columns = {**SCHEMA.to_dict()["columns"], "outcome": {"type": "numeric", "bounds": "buy", "role": "target"}}
    schema = Schema.from_dict({"columns": columns})
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(4.0, 1e-4))
    with pytest.raises(InvalidInput, match="outcome"):
        fit(numeric_frame(), schema, model=model, ledger=book)
    assert book.entries() == ()
    run = fit(numeric_frame(), schema, model="auto", epochs=None)
    assert np.isfinite(run.predict(numeric_frame(20)).astype(float)).all()


@pytest.mark.parametrize("model", ["auto", "linear"])
@pytest.mark.parametrize("number", [5e-324, 1e308])
def test_no_number_raises_though_the_caller_lets_numpy_raise(number, model):
    records = numeric_frame(60)
    records.loc[0, ["signal", "outcome"]] = str(number)
    epochs = None if model == "auto" else 1
    with np.errstate(all="raise"):
        run = fit(records, numeric_schema(), epsilon=1.0, size=60, epochs=epochs, model=model, test_seed=None)
    assert run.metrics
