"""A unit with all its rows is one record of every release: added, removed, hostile, with one row or a thousand."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from dpilot import AutoClassifier, AutoRegressor, Budget, Ledger, load
from dpilot.audit.neighbours import Pair
from dpilot.data.rows_per_unit import buy_rows_per_unit, rows_per_unit_event
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.fit import pipeline
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.expansion import features_of
from dpilot.fit.keys import FitKeys
from dpilot.fit.learners.heads import HeadsPlan
from dpilot.fit.learners.networks import dataset_of
from dpilot.fit.pipeline import FitStopped, plan_fit
from dpilot.fit.population import HELD_OUT, TRAIN, RecordsByUnit
from dpilot.fit.source import TableSource
from dpilot.fit.table import fit_table
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema
from tests.fit.test_replay import GOOD, ODD, OPAQUE, run
from tests.tapes import exact_sum
from tests.thin import thin
from tests.tune.pilot_cases import key_that_puts

UNIT = {"unit": "patient_id", "rows_per_unit": 3}
UNITS = 40


def persons(size: int = 120, units: int = UNITS, make=frame) -> pd.DataFrame:
    """A table whose rows belong to persons, in no order."""
    ids = np.random.default_rng(7).integers(0, units, size)
    ids[:units] = np.arange(units)
    return make(size).assign(patient_id=pd.Series([f"p{each}" for each in ids], dtype=object))


def joined(data: pd.DataFrame, rows: list[dict], who="new") -> pd.DataFrame:
    more = pd.DataFrame([{**row, "patient_id": who} for row in rows], dtype=object)
    return pd.concat([data, more], ignore_index=True)


HOSTILE = [{**GOOD, **ODD[name]} for name in ODD]
NEWCOMERS = {
    "one row": [GOOD],
    "as many rows as the cap": [GOOD] * 3,
    "a thousand rows": [GOOD] * 1000,
    "hostile rows": HOSTILE,
    "rows that are all null": [{**GOOD, "outcome": "maybe"}] * 4,
    "opposite rows": [GOOD, {**GOOD, "outcome": "no", "signal": "-3"}, {**GOOD, "number": "0"}],
}


@pytest.mark.parametrize("name", NEWCOMERS)
@pytest.mark.parametrize(
    ("model", "part"), [("auto", TRAIN), *thin([("auto", HELD_OUT), ("logistic", TRAIN), ("mlp", HELD_OUT)], 3)]
)
def test_a_whole_unit_more_moves_releases_by_no_more_than_one_bound(replay, monkeypatch, name, model, part):
    monkeypatch.setattr(FitKeys, "split", lambda self, shares: Split(shares, key_that_puts(UNITS, part, shares)))
    pair = Pair(name, persons(), joined(persons(), NEWCOMERS[name]))
    replay(partial(run, model=model, epochs=3, **UNIT), pairs=[pair], opaque=OPAQUE)


@pytest.mark.parametrize("who", ["new", 7, 7.0, 2**60, b"x", None, float("nan"), "", object(), [1]])
def test_ids_of_every_type_move_nothing_else(replay, who):
    pair = Pair(str(who), persons(), joined(persons(), [GOOD] * 4, who))
    replay(partial(run, model="auto", epochs=2, **UNIT), pairs=[pair], opaque=OPAQUE)


@pytest.mark.parametrize("missing", ["null", "row"])
def test_rows_without_an_id(replay, missing):
    pair = Pair(missing, persons(), joined(persons(), [GOOD], None))
    options = {**UNIT, "missing_unit": missing}
    (result,) = replay(partial(run, model="auto", epochs=2, **options), pairs=[pair], opaque=OPAQUE)
    assert (result.largest > 0) == (missing == "row"), "a null row is in no release; a unit of its own is"


@pytest.mark.parametrize("name", thin(NEWCOMERS, 3))
def test_a_number_as_the_target(replay, name):
    targets = ["10", "-10", "3", "nan"]
    rows = [{**row, "outcome": targets[place % 4]} for place, row in enumerate(NEWCOMERS[name])]
    data = persons(make=numeric_frame)
    fit = partial(run, schema=numeric_schema(), model="auto", epochs=None, **UNIT)
    replay(fit, pairs=[Pair(name, data, joined(data, rows))], opaque=OPAQUE)


def test_a_unit_made_null_where_their_number_is_published(replay):
    """With a published number of units, neighbours differ by one whose rows say nothing."""
    data = joined(persons(), HOSTILE)
    null = joined(persons(), [dict.fromkeys(GOOD)])
    fit = partial(run, model="auto", epochs=2, size="public", delta=1e-4, **UNIT)
    replay(fit, pairs=[Pair("made null", null, data)], opaque=OPAQUE)


def test_every_unit_lies_in_one_part_with_all_its_rows():
    data = persons(600, 100)
    source = TableSource.of(data, SCHEMA.with_roles(unit="patient_id"))
    population = RecordsByUnit.of(source, PrivacyUnit("patient_id", 4), bytes(32))
    keys = FitKeys.draw(0)
    declared, _ = declare_fit(data, SCHEMA, epsilon=1.0, delta=1e-4, unit="patient_id", options=FitOptions("logistic"))
    reader = plan_fit(declared, "basic").learned.reader(declared.schema.inputs_only())
    parts = population.parts(reader, keys.split({TRAIN: 0.5, HELD_OUT: 0.5}))
    number = dict(zip(data["number"].astype(float), data["patient_id"], strict=True))

    def who(part):  # the number tells a row from all others
        found = part.features[:, reader.names.index("number")]
        return [number[round((each + 1) / 2 * 10_000)] for each in found]

    train, held_out = who(parts.train), who(parts.held_out)
    assert not set(train) & set(held_out)
    assert len(held_out) == len(set(held_out)), "one row of each"
    assert max(np.unique(train, return_counts=True)[1]) == 4
    assert len(set(train) | set(held_out)) == 100
    assert parts.units is not None
    for unit in range(parts.units.count):
        assert len({train[place] for place in np.flatnonzero(parts.units.units == unit)}) == 1


def test_a_network_samples_and_clips_units():
    """Its data set has as many items as there are units, and the null record."""
    data = persons(600, 100)
    declared, source = declare_fit(data, SCHEMA, epsilon=1.0, delta=1e-4, **UNIT, options=FitOptions("mlp"))
    reader = plan_fit(declared, "basic").learned.reader(declared.schema.inputs_only())
    split = FitKeys.draw(0).split({TRAIN: 0.5, HELD_OUT: 0.5})
    parts = RecordsByUnit.of(source, declared.unit, bytes(32)).parts(reader, split)
    made = dataset_of(parts, features_of(reader.schema), declared.task)
    assert len(made) == parts.units.count + 1 < len(parts.train.features)
    assert max(len(made.rows_of(number)[1]) for number in range(len(made))) == 3


def test_units_of_one_row_each_are_records():
    """The same coins and, but for roundings, the same sums: with next to no noise the model is the same."""
    data = frame(200)
    alone = data.assign(patient_id=pd.Series(np.arange(200), dtype=object))
    how = {"epsilon": 1e5, "delta": 1e-4, "test_seed": 5, "epochs": 3}
    plain = fit_table(data, SCHEMA, **how)
    by_unit = fit_table(alone, SCHEMA, **how, unit="patient_id", rows_per_unit=1)
    assert np.allclose(plain.predict_proba(data), by_unit.predict_proba(data), atol=0.05)


def test_a_fit_of_units_is_named_saved_and_loaded(tmp_path):
    data = persons(400, 150)
    ledger = tmp_path / "a.ledger"
    how = {**UNIT, "missing_unit": "row"}
    fitted = fit_table(data, SCHEMA, epsilon=1.0, delta=1e-4, ledger=ledger, run_folder=tmp_path / "run", **how)
    assert fitted.record.privacy["unit_name"] == "patient_id"
    assert fitted.record.privacy["rows_per_unit"] == 3
    assert "patient_id" in fitted.record.privacy["unit"]
    assert fitted.record.data["size"] == 150
    assert any("Each patient_id is one unit" in each for each in fitted.record.decisions)
    assert Ledger.read(ledger).unit == "patient_id"
    again = load(tmp_path / "run")
    expected = fitted.predict(data.drop(columns="patient_id"))
    assert (again.predict(data) == expected).all()
    assert len(again.score_public(data.drop(columns="patient_id"))) > 3
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["unit"] == {
        "name": "patient_id", "rows": 3, "missing": "row",
    }  # fmt: skip
    fitted.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for said in ("A record is here one patient_id, by one row", "A row without a patient_id is protected by itself"):
        assert said in page
    with pytest.raises(InvalidInput, match="was made for 'patient_id'"):
        fit_table(data.drop(columns="patient_id"), SCHEMA, epsilon=0.1, delta=1e-5, ledger=ledger)


def test_the_schema_names_the_unit():
    schema = Schema.from_dict({"columns": {**SCHEMA.to_dict()["columns"], "patient_id": {"role": "unit"}}})
    declared, _ = declare_fit(persons(), schema, epsilon=1.0, delta=1e-4, rows_per_unit=5)
    assert declared.unit == PrivacyUnit("patient_id", 5)
    assert declared.size == UNITS
    assert "patient_id" not in [column.name for column in declared.schema.features]


@pytest.mark.filterwarnings("ignore:random_state is:dpilot.errors.PrivacyWarning")
@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_an_estimator_takes_units_beside_arrays_or_in_frames(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y, ids = np.where(X[:, 0] > 0, "yes", "no"), rng.integers(0, 200, 600)
    how = {"epsilon": 1.0, "delta": 1e-4, "classes": ["no", "yes"], "random_state": 3, "epochs": 2, "unit": "who"}
    made = pd.DataFrame(X, columns=["a", "b"]).assign(who=ids)
    if kind != "pandas":
        import polars

        made = polars.DataFrame({name: made[name].to_numpy() for name in made})
        made = made if kind == "polars" else made.to_arrow()
    beside = AutoClassifier(**how).fit(X, y, units=ids)
    inside = AutoClassifier(**how).fit(made, y)
    assert np.array_equal(beside.coef_, inside.coef_)
    assert list(inside.feature_names_in_) == ["a", "b"]
    assert beside.privacy_.unit == inside.privacy_.unit == PrivacyUnit("who")
    assert (inside.predict(made) == beside.predict(X)).all()


@pytest.mark.filterwarnings("ignore:random_state is:dpilot.errors.PrivacyWarning")
def test_units_need_no_name_and_a_schema_may_give_it():
    data = persons(400, 150)
    X, y, ids = data.drop(columns=["outcome", "patient_id"]), data["outcome"], data["patient_id"]
    how = {"epsilon": 1.0, "delta": 1e-4, "epochs": 2, "random_state": 1}
    named = Schema.from_dict({"columns": {**SCHEMA.to_dict()["columns"], "patient_id": {"role": "unit"}}})
    apart = AutoClassifier(**how, schema=SCHEMA).fit(X, y, units=ids)
    inside = AutoClassifier(**how, schema=named).fit(X.assign(patient_id=ids), y)
    beside = AutoClassifier(**how, schema=named).fit(X, y, units=ids)
    assert np.array_equal(apart.coef_, inside.coef_)
    assert np.array_equal(inside.coef_, beside.coef_)
    assert (apart.privacy_.unit.name, inside.privacy_.unit.name) == ("unit", "patient_id")


def test_a_declared_column_is_the_unit_that_the_call_names(tmp_path):
    """Its ledger is that of other fits for patients, whatever else the schema says of the ids."""
    data = persons(100, 50)
    for place, declared in enumerate(({"role": "ignored"}, {"type": "categorical", "categories": ["p1", "p2"]})):
        schema = Schema.from_dict({"columns": {**SCHEMA.to_dict()["columns"], "patient_id": declared}})
        ledger = tmp_path / f"{place}.ledger"
        clf = AutoClassifier(epsilon=1.0, delta=1e-4, epochs=1, schema=schema, unit="patient_id", ledger=ledger)
        clf.fit(data.drop(columns="outcome"), data["outcome"])
        assert Ledger.read(ledger).unit == clf.privacy_.unit.name == "patient_id"
        assert "patient_id" not in clf.feature_names_in_


@pytest.mark.filterwarnings("ignore:random_state is:dpilot.errors.PrivacyWarning")
def test_a_regressor_takes_units():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    y = X @ [1.0, 2.0]
    model = AutoRegressor(epsilon=3.0, unit="who", random_state=0).fit(X, y, units=rng.integers(0, 1500, 3000))
    assert model.privacy_.unit.name == "who"
    assert model.score(X, y) > 0.5


def test_ids_that_do_not_fit_are_refused_before_anything_is_paid(tmp_path):
    X, y, ledger = np.zeros((20, 2)), ["a"] * 20, tmp_path / "a.ledger"
    clf = AutoClassifier(classes=["a", "b"], unit="who", ledger=ledger)
    with pytest.raises(InvalidInput, match=r"are nowhere"):
        clf.fit(X, y)
    with pytest.raises(InvalidInput, match=r"one id for each row"):
        clf.fit(X, y, units=range(19))
    with pytest.raises(InvalidInput, match=r"are twice"):
        clf.fit(pd.DataFrame({"a": range(20), "who": range(20)}), y, units=range(20))
    with pytest.raises(InvalidInput, match="rows_per_unit is 0"):
        AutoClassifier(classes=["a", "b"], unit="who", rows_per_unit=0, ledger=ledger).fit(X, y, units=range(20))
    assert not ledger.exists()


def test_a_column_of_ids_that_holds_none_stops_the_fit():
    data = persons(4000, 1000).assign(patient_id=None)
    with pytest.raises(FitStopped, match="can be used"):
        fit_table(data, SCHEMA, epsilon=2.0, delta=1e-4, size=1000, **UNIT)


def test_whole_numbers_of_any_length_are_ids_in_a_file(tmp_path):
    data = persons(400, 100)
    data["patient_id"] = [10**18 + int(each[1:]) for each in data["patient_id"]]
    data.to_csv(tmp_path / "a.csv", index=False)
    declared, _ = declare_fit(tmp_path / "a.csv", SCHEMA, epsilon=1.0, delta=1e-4, unit="patient_id")
    assert declared.size == 100


@pytest.mark.parametrize("place", ["health", "rest", "training"])
def test_an_interrupted_fit_of_units_goes_on_to_the_same_result(tmp_path, monkeypatch, place):
    data = persons(300, 100)
    how = {"epsilon": 1.0, "delta": 1e-4, "test_seed": 1, "epochs": 2, **UNIT}
    whole = fit_table(data, SCHEMA, run_folder=tmp_path / "whole", **how)
    stopped = {"health": "_check_health", "rest": "_entries", "training": "_record"}[place]

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, stopped, interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit_table(data, SCHEMA, run_folder=tmp_path / "cut", **how)
    resumed = fit_table(data, SCHEMA, run_folder=tmp_path / "cut", resume=True, **how)
    first, second = (json.loads(each.record.to_json())["metrics"] for each in (whole, resumed))
    assert first == second
    assert np.array_equal(whole.predictor.state()[1]["weights"], resumed.predictor.state()[1]["weights"])
    assert resumed.epsilon <= 1.0


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_unit_whose_rows_are_all_null_stops_no_training(model):
    """Whoever comes last in a batch, even with no row that can be used."""
    data = joined(persons(), [{**GOOD, "outcome": "maybe"}] * 4)
    fit_table(data, SCHEMA, epsilon=1.0, delta=1e-3, size=UNITS, model=model, epochs=3, test_seed=1, **UNIT)


@pytest.mark.parametrize("codes", [("NA", "-9"), ("NA", -9), (" NA", -9.0)])
def test_what_the_schema_calls_missing_is_no_id(tmp_path, codes):
    schema = Schema.from_dict({**SCHEMA.to_dict(), "missing_values": ["", "NA", "-9"]})
    data = joined(joined(persons(), [GOOD] * 3, codes[0]), [GOOD] * 3, codes[1])
    data.to_csv(tmp_path / "a.csv", index=False)
    for table in (data, tmp_path / "a.csv"):
        for missing, count in (("null", UNITS), ("row", UNITS + 6)):
            how = {"unit": "patient_id", "missing_unit": missing}
            assert declare_fit(table, schema, epsilon=1.0, delta=1e-4, **how)[0].size == count


def test_a_column_called_record_is_refused_as_a_unit():
    """It is what a row by itself is called: the fit would protect rows."""
    data = persons().rename(columns={"patient_id": "record"})
    with pytest.raises(InvalidInput, match="Rename the column"):
        declare_fit(data, SCHEMA, epsilon=1.0, delta=1e-4, unit="record")


def scored(kind):
    """A model that protects units, its features and targets, and ids."""
    rng = np.random.default_rng(0)
    X, ids = rng.normal(size=(300, 2)), rng.integers(0, 100, 300)
    y = np.where(X[:, 0] > 0, 1.0, 0.0)
    how = {"epsilon": 1.0, "delta": 1e-4, "size": 100, "unit": "who"}
    model = AutoClassifier(classes=[0, 1], epochs=2, **how) if kind == "classes" else AutoRegressor(**how)
    return model.fit(X, y, units=ids), X, y, ids


@pytest.mark.parametrize("rows", [1, 8, 1000])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_unit_moves_a_private_score_within_its_bounds(replay, kind, rows):
    model, X, y, ids = scored(kind)

    def score(data):
        found = model.private_score(data[0], data[1], epsilon=1.0, units=data[2])
        assert found.privacy.unit == PrivacyUnit("who")
        return [each.record() for each in found.metrics]

    more = np.concatenate([X, np.full((rows, 2), 9.0)]), np.append(y, np.zeros(rows)), np.append(ids, [1000] * rows)
    replay(score, pairs=[Pair("a unit", (X, y, ids), more)])


def test_a_private_score_of_units_is_paid_in_their_ledger(tmp_path):
    model, X, y, ids = scored("classes")
    ledger = Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(5.0, 1e-3), unit="who")
    model.private_score(X, y, epsilon=1.0, units=ids, ledger=ledger)
    assert ledger.entries()[0].unit.name == "who"
    for given, said in ((None, "are nowhere"), (ids[1:], "one id for each row")):
        with pytest.raises(InvalidInput, match=said):
            model.private_score(X, y, epsilon=1.0, units=given, ledger=ledger)
    assert len(ledger.entries()) == 1


def test_the_rows_of_a_unit_that_count_can_be_bought(tmp_path, monkeypatch):
    """Nine persons of ten have at most two rows: a priced release says so, and training reads no more."""
    read = []
    monkeypatch.setattr(HeadsPlan, "train", _spy(HeadsPlan.train, read))
    data = persons(2_000, 1_000)
    ids = np.concatenate([np.repeat(np.arange(900), 2), np.full(200, 900)])
    data = data.assign(patient_id=ids)
    ledger = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(200.0, 1e-5), unit="patient_id", bound="gdp")
    how = {"epsilon": 100.0, "delta": 1e-6, "test_seed": 3, "unit": "patient_id"}
    model = fit_table(data, SCHEMA, **how, model="additive", rows_per_unit="buy", ledger=ledger)
    assert max(np.bincount(read[0].units.units)) == 2
    assert "at most 2 count" in model.record.privacy["unit"]
    assert any("Rows per unit: 2 were bought" in each for each in model.record.decisions)
    assert [entry.purpose for entry in ledger.entries()].count("rows per unit") == 1
    with pytest.raises(InvalidInput, match="buy"):
        fit_table(data, SCHEMA, **how, rows_per_unit="most")
    with pytest.raises(InvalidInput, match="rows_per_unit"):
        AutoClassifier(epsilon=1.0, schema=SCHEMA, unit="patient_id", rows_per_unit="most").fit(data, data["outcome"])


def _spy(train, read):
    def noted(self, parts, run):
        read.append(parts)
        return train(self, parts, run)

    return noted


@pytest.mark.parametrize("name", ["a thousand rows", "hostile rows"])
def test_a_unit_more_moves_a_fit_that_buys_its_cap_within_its_bounds(replay, name):
    pair = Pair(name, persons(), joined(persons(), NEWCOMERS[name]))
    fit = partial(run, model="auto", epochs=2, unit="patient_id", rows_per_unit="buy")
    replay(fit, pairs=[pair], opaque=OPAQUE)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_a_unit_moves_the_release_of_rows_per_unit_by_one(rows):
    """Whatever its number of rows; one without rows moves nothing."""
    sizes = np.array([1, 1, 2, 5, 70])

    def counted(sizes):
        receipt = Receipt(rows_per_unit_event(1.0))
        return exact_sum(buy_rows_per_unit, sizes, noise_multiplier=1.0, receipt=receipt)

    assert np.linalg.norm(counted(np.append(sizes, rows)) - counted(sizes)) == 1
    assert not (counted(np.append(sizes, 0)) - counted(sizes)).any()
