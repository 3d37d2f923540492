"""The health check: one record moves the joint vector by at most 1, shares are right, and it alone is paid at first."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dpilot import Budget, Ledger
from dpilot.data.schema import Schema
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.health import health_event, health_noise, health_share, release_health, split_budget
from dpilot.fit.pipeline import FitStopped
from dpilot.fit.table import fit_table
from dpilot.noise import seeded_noise
from dpilot.privacy import accountant
from dpilot.privacy.events import Composed
from dpilot.privacy.receipt import Receipt
from dpilot.tape import tape
from tests.fit.helpers import SCHEMA, frame
from tests.tapes import Recorder

CELLS = {
    "numeric": ["1", "", None, math.nan, "nan", "inf", -math.inf, "1e300", "x", "99", object()],
    "categorical": ["a", "b", "", None, "z", math.nan, 7, "x" * 10_000],
}
KINDS = [
    {"type": "numeric", "bounds": [0, 10]},
    {"type": "numeric", "bounds": [0, 10], "missing": "null", "outside": "clamp"},
    {"type": "numeric", "bounds": "buy"},
    {"type": "categorical", "categories": ["a", "b"]},
]
TARGET = {"type": "categorical", "categories": ["a", "b"], "role": "target"}


def schema_of(columns: int) -> Schema:
    made = {f"x{place}": KINDS[place % len(KINDS)] for place in range(columns)}
    return Schema.from_dict({"columns": {**made, "y": TARGET}})


def release(records, schema=SCHEMA, *, sigma=1e-6, size="public", seed=0, stop_below=0.5):
    options = FitOptions(stop_below=stop_below)
    declared, source = declare_fit(records, schema, epsilon=1.0, delta=1e-6, size=size, options=options)
    receipt = Receipt(health_event(sigma))
    return release_health(source, declared, noise_multiplier=sigma, receipt=receipt, noise=seeded_noise(seed))


def vector(record, schema, size):
    """What one record adds before the noise: sums over records are sums of such vectors."""
    heard = Recorder()
    with tape(heard):
        release({name: np.array([cell], dtype=object) for name, cell in record.items()}, schema, size=size)
    (entry,) = heard.entries
    (sums,) = entry.inputs
    assert entry.bound == 1.0
    return sums


@pytest.mark.parametrize("size", ["public", "private", 50])
@pytest.mark.parametrize("columns", [1, 3, 9])
def test_a_record_with_any_cells_moves_the_vector_by_at_most_one(columns, size):
    rng, schema = np.random.default_rng(columns), schema_of(columns)
    null = vector(dict.fromkeys((column.name for column in schema.used), object()), schema, size)
    others = [np.zeros_like(null), null] if size == "public" else [np.zeros_like(null)]
    lengths = []
    for trial in range(40):
        record = {}
        for column in schema.used:
            cells = CELLS["categorical" if column.categories else "numeric"]
            flawless, flawed = cells[0], "" if column.missing != "null" else cells[0]
            record[column.name] = {0: flawless, 1: flawed}.get(trial, cells[rng.integers(len(cells))])
        lengths += [np.linalg.norm(vector(record, schema, size) - other) for other in others]
    assert max(lengths) <= 1 + 1e-12
    if columns == 9:
        assert max(lengths) > 0.99, "usable, with four flaws or more: the weights leave nothing unused"


@pytest.mark.parametrize("size", ["public", "private"])
def test_what_records_add_is_summed(size):
    data = frame(30)
    data.loc[3, "kind"] = "z"
    heard = Recorder()
    with tape(heard):
        release(data, size=size)
    alone = [vector(data.iloc[place].to_dict(), SCHEMA, size) for place in range(30)]
    assert np.allclose(heard.entries[0].inputs[0], np.sum(alone, axis=0))


@pytest.mark.parametrize("size", ["public", "private"])
def test_shares_are_right_where_there_is_no_noise_to_speak_of(size):
    data = frame(200)
    data.loc[:49, "kind"] = "z"
    data.loc[50:59, "signal"] = None
    data.loc[60:79, "number"] = "-5"
    data.loc[80:81, "outcome"] = "maybe"
    found = release(data, size=size)
    shares = {(each.column, each.what): each.value for each in found.flaws}
    assert found.usable.value == pytest.approx(1 - (50 + 20 + 2) / 200, abs=1e-4)
    expected = {
        ("kind", "unknown category"): 0.25,
        ("signal", "missing"): 0.05,
        ("number", "outside bounds"): 0.1,
        ("outcome", "unknown class"): 0.01,
    }
    for flaw, share in shares.items():
        assert share == pytest.approx(expected.get(flaw, 0.0), abs=1e-4), flaw
    assert [each.column for each in found.loud] == ["kind"]
    assert not found.stopped


@pytest.mark.parametrize("size", ["public", "private"])
def test_intervals_hold_what_they_should(size):
    data = frame(400)
    data.loc[:99, "kind"] = "z"
    found = [release(data, sigma=10.0, size=size, seed=seed) for seed in range(60)]
    usable = [each.usable.low <= 0.75 <= each.usable.high for each in found]
    flaws = [flaw.low <= 0.25 <= flaw.high for each in found for flaw in each.flaws if flaw.what == "unknown category"
             and flaw.column == "kind"]  # fmt: skip
    for held in (usable, flaws):
        assert np.mean(held) >= 0.85


@pytest.mark.parametrize(("bound", "delta"), [("basic", 0.02e-5), ("gdp", 1e-5)])
def test_health_takes_two_hundredths_and_the_rest_is_left(bound, delta):
    budget = Budget(1.0, 1e-5)
    health, rest = split_budget(budget, bound)
    events = [health_event(health_noise(each)) for each in (health, rest)]
    if bound == "gdp":
        assert 0.9999 < accountant.epsilon(Composed(events), budget.delta) <= 1.0
    else:
        assert 0.9999 < health.epsilon + rest.epsilon <= 1.0
        assert 0.9999 * budget.delta < health.delta + rest.delta <= budget.delta
    assert accountant.epsilon(events[0], delta) <= health.epsilon * (1 + 1e-6)


@pytest.mark.parametrize("bound", ["basic", "gdp"])
def test_health_takes_no_more_than_tells_the_usable_share_well(bound):
    budget = Budget(1.0, 1e-6)
    shares = [health_share(budget, bound, size) for size in (None, 100, 3_000, 30_000, 10**6, 10**9)]
    assert shares[:2] == [0.02, 0.02]
    assert sorted(shares, reverse=True) == shares
    assert shares[-1] == 0.02 / 16
    for size in (30_000, 10**6):
        share = health_share(budget, bound, size)
        health, rest = split_budget(budget, bound, share)
        assert share == 0.02 or math.sqrt(2) * health_noise(health) / size <= 1 / 200
        if bound == "basic":
            assert health.epsilon + rest.epsilon <= 1.0


def broken(size=2000, wrong=0.7):
    """A table of whose records ``wrong`` cannot be used: the schema writes a category otherwise."""
    data = frame(size)
    data.loc[: int(size * wrong) - 1, "kind"] = "A"
    return data


def test_a_fit_of_too_few_usable_records_stops_pays_health_only_and_names_the_column(tmp_path):
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(3.0, 1e-5))
    with pytest.raises(FitStopped, match="Column 'kind': unknown category in about") as stopped:
        fit_table(broken(), SCHEMA, epsilon=3.0, delta=1e-5, ledger=book, run_folder=tmp_path / "run")
    (entry,) = book.entries()
    assert entry.purpose.startswith("health of fit ")
    assert entry.state == "committed"
    assert book.spent().epsilon == pytest.approx(0.06, rel=1e-3)
    assert stopped.value.cost.epsilon == pytest.approx(0.06, rel=1e-3)
    assert stopped.value.left == book.remaining()
    assert book.remaining().epsilon == pytest.approx(0.98 * 3.0, rel=1e-3)
    assert stopped.value.health.usable.value == pytest.approx(0.3, abs=0.19)  # four deviations of its noise
    assert not list(tmp_path.glob(".run*")), "no secret is left"
    fitted = fit_table(frame(2000), SCHEMA, epsilon=2.9, delta=0.9e-5, ledger=book, run_folder=tmp_path / "run")
    assert fitted.health.usable.value > 0.8


def test_a_file_in_another_encoding_is_told_how_to_be_read(tmp_path):
    (tmp_path / "t.csv").write_bytes(frame(2000).assign(site="é").to_csv(index=False).encode("latin-1"))
    with pytest.raises(FitStopped, match="check --encoding"):
        fit_table(tmp_path / "t.csv", SCHEMA, epsilon=3.0, delta=1e-5)


def test_the_limit_can_be_lowered():
    fitted = fit_table(broken(600), SCHEMA, epsilon=9.0, delta=1e-5, stop_below=0.0, epochs=2)
    assert fitted.health.usable.value < 0.5
    assert any("can be used" in each for each in fitted.record.decisions)


@pytest.mark.parametrize("size", ["public", "private"])
def test_a_healthy_table_is_never_stopped_however_small_the_budget(size):
    data = frame(100)
    found = [release(data, sigma=sigma, size=size, seed=seed) for sigma in (1, 9, 10, 30, 300) for seed in range(40)]
    assert not any(each.stopped for each in found)
    assert any(each.judged for each in found)
    assert not all(each.judged for each in found)
    shy = next(each for each in found if not each.judged)
    assert shy.sentences()[0].startswith("Too few records for this budget")


def test_what_is_told_in_json():
    found = release(frame(50), size="private").to_dict()
    assert json.loads(json.dumps(found)) == found
    assert list(found) == ["usable", "columns", "stop_below", "judged", "stopped"]
    assert list(found["usable"]) == ["what", "column", "value", "low", "high"]
    columns = {(each["column"], each["what"]) for each in found["columns"]}
    assert {("number", "missing"), ("number", "unreadable"), ("number", "outside bounds")} <= columns
    assert {("kind", "unknown category"), ("outcome", "unknown class"), ("site", "missing")} <= columns


def test_the_record_and_the_model_hold_what_was_released():
    fitted = fit_table(frame(200), SCHEMA, epsilon=3.0, delta=1e-5, epochs=2)
    assert fitted.record.health == fitted.health.to_dict()
    assert fitted.record.ledger[0]["purpose"].startswith("health of fit ")
