"""From a table to a model: everything is paid first, in one commitment, each part keeps to its own records."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from dpilot.tables import fitting, rehearsing
from dpilot.tables.declaration import declare
from dpilot.tables.fitting import declare_fit, fit_table
from dpilot.tables.planning import plan_fit
from dpilot.tables.preparing import TableSource
from dpilot.tables.rehearsing import rehearse, synthetic_records
from dpilot.tables.table_run import load_table

from dpilot import Budget, Ledger
from dpilot.data.schema import Schema
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy import accountant
from dpilot.privacy import events as known_events
from dpilot.privacy.events import Composed
from tests.fit.helpers import SCHEMA, SIZE, events, frame, numeric_frame, numeric_schema


def fit(source=None, schema=SCHEMA, **options):
    options = {"epsilon": 3.0, "delta": 1e-5, "test_seed": 1, **options}
    return fit_table(frame() if source is None else source, schema, **options)


@pytest.fixture(scope="module")
def fitted():
    return fit()


def value(run, name, of=""):
    return next(metric.value for metric in run.metrics if (metric.name, metric.of) == (name, of))


def test_it_learns(fitted):
    assert fitted.epsilon <= 3.0
    made = frame(2000)
    right = fitted.predict(made) == made["outcome"].to_numpy()
    assert right.mean() > 0.8
    assert value(fitted, "AUC") > 0.6
    assert len(fitted.record.thresholds) == fitted.record.plan["steps"]


def test_everything_is_one_commitment_that_keeps_the_budget_on_each_part(fitted):
    spent = {entry["part"]: known_events.from_dict(entry["event"]) for entry in fitted.record.ledger}
    assert set(spent) == {"train", "held-out"}
    assert len({entry["seq"] for entry in fitted.record.ledger}) == 1
    assert all(entry["state"] == "committed" for entry in fitted.record.ledger)
    for part in spent.values():
        assert 2.9 < accountant.epsilon(part, 1e-5) <= 3.0 + 1e-9
    assert fitted.epsilon == pytest.approx(3.0, abs=1e-2)


@pytest.mark.slow
def test_what_is_bought_is_paid_for_on_both_parts():
    columns = SCHEMA.to_dict()["columns"]
    columns["signal"]["bounds"] = "buy"
    run = fit(schema=Schema.from_dict({"columns": columns}), size="private")
    spent = [(entry["purpose"], entry["part"]) for entry in run.record.ledger]
    assert spent == [("size", None), ("bounds", None), ("training", "train"), ("held-out metrics", "held-out")]
    all_events = [known_events.from_dict(entry["event"]) for entry in run.record.ledger]
    for part in (2, 3):
        assert accountant.epsilon(Composed([*all_events[:2], all_events[part]]), 1e-5) <= 3.0 + 1e-9
    assert run.epsilon <= 3.0
    lower, upper = run.schema.columns["signal"].bounds
    assert -8 < lower < -1 < 1 < upper < 8
    assert run.record.data["size"] != SIZE, "a size that is bought is noisy"
    assert not any("number of records" in what for what in run.record.unprotected)


def test_training_and_metrics_read_disjoint_records_that_are_all_of_them(monkeypatch):
    seen = {}

    def keep(name, original):
        def call(*arguments, **options):
            seen[name] = arguments[1].features
            return original(*arguments, **options)

        return call

    monkeypatch.setattr(fitting, "train", keep("train", fitting.train))
    monkeypatch.setattr(fitting, "noisy_metrics", keep("metrics", fitting.noisy_metrics))
    fit()
    numbers = {name: set(np.round((rows[:, 0] + 1) * 5000).astype(int).tolist()) for name, rows in seen.items()}
    assert not numbers["train"] & numbers["metrics"]
    assert numbers["train"] | numbers["metrics"] == set(range(SIZE))
    assert 10 < len(numbers["metrics"]) < 100


def test_metrics_without_a_receipt_are_refused(monkeypatch):
    def unpaid(self, declared, split):
        return type(self).stages_of_all(self, declared, split)[:-1]

    kind = fitting.TablePlan
    monkeypatch.setattr(kind, "stages_of_all", kind.stages, raising=False)
    monkeypatch.setattr(kind, "stages", unpaid)
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


def test_a_public_size_is_published_and_said_to_be(fitted):
    assert fitted.record.data["size"] == SIZE
    assert any("number of records" in what for what in fitted.record.unprotected)


def test_the_divisor_is_the_declared_expected_batch_size(monkeypatch):
    plans = []
    original = fitting.train

    def keep(ready, *arguments, **options):
        plans.append(ready.plan)
        return original(ready, *arguments, **options)

    monkeypatch.setattr(fitting, "train", keep)
    fit(frame(200), size=1000)
    (plan,) = plans
    assert plan.expected_batch_size == pytest.approx(plan.sample_rate * 900)


def test_the_price_is_on_disk_before_a_value_is_read(monkeypatch, tmp_path):
    def broken(self):
        raise RuntimeError("the disk is gone")
        yield

    monkeypatch.setattr(TableSource, "frames", broken)
    with pytest.raises(RuntimeError):
        fit(ledger=tmp_path / "book")
    assert Ledger.read(tmp_path / "book").spent().epsilon == pytest.approx(3.0, abs=1e-2)


def test_a_ledger_pays_for_each_fit_and_refuses_what_it_cannot(monkeypatch, tmp_path):
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(4.0, 1e-4))
    run = fit(ledger=book)
    assert book.spent().epsilon <= run.epsilon <= 3.0
    monkeypatch.setattr(TableSource, "frames", lambda self: pytest.fail("read"))
    before = book.spent()
    with pytest.raises(BudgetExceeded):
        fit(ledger=book)
    assert book.spent() == before


@pytest.mark.parametrize(("bound", "share"), [("basic", 1e-5), ("rdp", None)])
def test_two_fits_cost_the_same_on_one_split_as_on_two(bound, share, tmp_path):
    spent = []
    for name, splits in {"one": ("a", "a"), "two": ("a", "b")}.items():
        book = Ledger.open(tmp_path / name, dataset="small", budget=Budget(9.0, 1e-4), bound=bound)
        for epsilon, split in zip((0.5, 3.0), splits, strict=True):
            declared = declare(SCHEMA, epsilon=epsilon, delta=1e-5, size=SIZE, public_size=False)
            book.commit(plan_fit(declared).stages(declared, split), delta=share)
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
    again = load_table(where)
    assert again.record == fitted.record
    assert again.schema == fitted.schema
    assert np.array_equal(again.predict_proba(frame()), fitted.predict_proba(frame()))
    with pytest.raises(InvalidInput):
        load_table(tmp_path)


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
    run = fit(numeric_frame(), numeric_schema(), epsilon=8.0)
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
    run = fit(model="mlp", epsilon=8.0)
    assert (run.predict(frame()) == frame()["outcome"].to_numpy()).mean() > 0.8
    assert np.array_equal(load_table(run.save(tmp_path / "run")).predict(frame()), run.predict(frame()))


def test_the_step_size_can_be_supplied():
    asked = []

    def step(numbers):
        asked.append(numbers)
        return 0.125

    run = fit(step=step)
    assert run.record.plan["lr"] == 0.125
    assert asked[0].batch_size == pytest.approx(run.record.plan["sample_rate"] * run.record.plan["size"])


def test_a_dry_run_reads_no_value_and_spends_nothing(monkeypatch, tmp_path):
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    monkeypatch.setattr("dpilot.data.files.Table.frames", lambda self: pytest.fail("read"))
    given = {"epsilon": 1.0, "delta": None, "target": None, "protected": None}
    declared, _ = declare_fit(path, SCHEMA, "public", epochs=None, model="logistic", held_out=0.1, **given)
    found = rehearse(declared)
    assert found.seconds > 0
    assert found.megabytes > 0
    assert found.size == SIZE
    assert [each.name for each in tmp_path.iterdir()] == ["table.csv"]


def test_what_else_the_machine_does_is_not_counted_as_time_of_the_fit(monkeypatch):
    given = {"epsilon": 1.0, "delta": None, "target": None, "protected": None}
    declared, _ = declare_fit(frame(), SCHEMA, "public", epochs=None, model="logistic", held_out=0.1, **given)
    slow = SimpleNamespace(perf_counter=lambda: 50 * time.perf_counter(), process_time=time.process_time)
    monkeypatch.setattr(rehearsing, "time", slow)
    found = rehearse(declared)
    assert 0 < found.seconds < found.seconds_if_as_busy / 5


def test_made_up_records_are_in_the_declared_domain():
    made = pd.DataFrame(synthetic_records(SCHEMA, 100))
    encoded = fit_encoder().encode(made)
    assert np.isfinite(encoded.features).all()
    assert set(encoded.target) == {0.0, 1.0}


def fit_encoder():
    from dpilot.data.encoder import Encoder

    return Encoder(SCHEMA)


def test_public_records_are_scored_exactly(fitted):
    made = frame(300)
    figures = {(metric.name, metric.of): metric for metric in fitted.score_public(made)}
    right = fitted.predict(made) == made["outcome"].to_numpy()
    assert figures["accuracy", ""].value == pytest.approx(right.mean())
    assert all(metric.exact for metric in figures.values())


def test_two_fits_draw_other_coins_and_noise():
    runs = [fit(test_seed=None) for _ in range(2)]
    weights = [next(iter(run.model.state_dict().values())) for run in runs]
    assert not torch.equal(*weights)
    assert runs[0].record.ledger[0]["split"] != runs[1].record.ledger[0]["split"]
    assert "not private" not in " ".join(runs[0].record.stamps)


def test_a_test_seed_is_stamped(fitted):
    assert "not private" in " ".join(fitted.record.stamps)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"model": "forest"}, "model"),
        ({"held_out": 1.0}, "held_out"),
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
