"""Tables with interactions: what one record can move, what it costs, what is learnt, and what is shown of it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from dpilot.audit.neighbours import Pair
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit import learners
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.grids.design import TableRows, additive_design, grid_design, screen_cells
from dpilot.fit.grids.levels import Levels, cell_edges, columns_of, dense_columns
from dpilot.fit.grids.model import dense_rows
from dpilot.fit.grids.training import (
    THRESHOLD,
    ClassResidual,
    Steps,
    descend,
    release_comparison,
    release_marginals,
    release_pairs,
)
from dpilot.fit.learners.grids import Grids
from dpilot.fit.learners.heads import Heads
from dpilot.fit.learners.least_squares import LeastSquares
from dpilot.fit.pipeline import plan_fit
from dpilot.fit.table import fit_table
from dpilot.mechanism import SystemNoise, tape
from dpilot.privacy.events import Gaussian, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.fit.helpers import SCHEMA, frame, numeric_schema
from tests.fit.test_replay import GOOD, OPAQUE, run
from tests.fit.test_units import UNIT, joined, persons
from tests.tapes import NoiseFree
from tests.thin import thin
from tests.tune.pilot_cases import second_delta

MIXED = Schema.from_dict(
    {
        "columns": {
            "age": {"type": "numeric", "bounds": [0, 100]},
            "gain": {"type": "numeric", "bounds": [0, 100_000]},
            "kind": {"type": "categorical", "categories": ["a", "b", "c"], "outside": "indicator"},
            "town": {"type": "categorical", "categories": [f"t{k}" for k in range(90)]},
            "grade": {"type": "categorical", "categories": ["low", "mid", "top"], "ordered": True},
            "seen": {"type": "date", "range": ["2020-01-01", "2024-01-01"]},
            "note": {"type": "text", "features": 16},
            "outcome": {"type": "categorical", "categories": ["no", "yes", "maybe"], "role": "target"},
        }
    }
)
HOSTILE = {
    "an ordinary record": {"age": 40, "gain": 0, "kind": "a", "town": "t3", "grade": "mid", "seen": "2021-05-05"},
    "the largest of all": {"age": 100, "gain": 1e5, "kind": "c", "town": "t89", "grade": "top", "seen": "2024-01-01"},
    "all missing": dict.fromkeys(("age", "gain", "kind", "town", "grade", "seen"), ""),
    "unknown": {"age": 0, "gain": 0, "kind": "none of them", "town": "t0", "grade": "low", "seen": "2020-01-01"},
    "null": {"age": -1e300, "gain": "inf", "kind": "a", "town": "t3", "grade": "mid", "seen": "2021-05-05"},
}


def mixed(size: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.uniform(0, 100, size).round(),
        "gain": np.where(rng.random(size) < 0.8, 0, rng.uniform(0, 1e5, size)).round(),  # an atom
        "kind": rng.choice(["a", "b", "c", ""], size),
        "town": rng.choice([f"t{k}" for k in range(90)], size),
        "grade": rng.choice(["low", "mid", "top"], size),
        "seen": rng.choice(["2020-02-03", "2023-12-24", "2022-06-01"], size),
        "note": rng.choice(["a short note", "more words than that", ""], size),
        "outcome": rng.choice(["no", "yes", "maybe"], size),
    }
    return pd.DataFrame({name: pd.Series(values).astype(str).astype(object) for name, values in columns.items()})


def added(data, name):
    return pd.concat([data, pd.DataFrame([{**HOSTILE[name], "note": "x", "outcome": "yes"}])], ignore_index=True)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_more_moves_only_what_is_released(replay, name):
    fit = partial(run, schema=MIXED, model="grids", epochs=3)
    (result,) = replay(fit, pairs=[Pair(name, mixed(60), added(mixed(60), name))], opaque=OPAQUE)
    assert result.releases == 1 + 1 + 3 + 1 + 3 + 1 + 1, "health, marginals, steps, screen, steps, comparison, figures"


def test_tables_without_numbers_and_with_wide_texts_are_fitted_and_saved(tmp_path):
    """Both ended with an error once they were paid: at the first step, and where the model was saved."""
    note = {"note": {"type": "text", "features": 512}, "outcome": {"type": "boolean", "role": "target"}}
    schema = Schema.from_dict({"columns": {"kind": MIXED.columns["kind"].to_dict(), **note}})
    table = {"kind": ["a", "b"] * 40, "note": ["good film", "bad film"] * 40, "outcome": [1, 0] * 40}
    options = {"epsilon": 1e3, "delta": 1e-5, "size": 80, "model": "grids", "epochs": 20}
    fitted = fit_table(table, schema, run_folder=tmp_path / "run", **options)
    assert fitted.predict(table)[:4].tolist() == ["True", "False"] * 2


@pytest.mark.parametrize("rows", [[GOOD], [GOOD, {**GOOD, "number": "9999", "kind": "c"}, {**GOOD, "signal": ""}]])
def test_a_person_more_moves_only_what_is_released(replay, rows):
    data, fit = persons(), partial(run, model="grids", epochs=3, size=40, **UNIT)
    replay(fit, pairs=[Pair("a person", data, joined(data, rows))], opaque=OPAQUE)


@pytest.mark.parametrize("value", thin(["0.5", "1", "nan", ""], 2))
def test_a_record_with_a_number_for_a_target(replay, value):
    columns = {**SCHEMA.to_dict()["columns"], "outcome": {"type": "numeric", "bounds": [0, 1], "role": "target"}}
    schema, data = Schema.from_dict({"columns": columns}), frame(120)
    data = data.assign(outcome=np.linspace(0, 1, 120).astype(str))
    more = pd.concat([data, pd.DataFrame([{**GOOD, "outcome": value}], dtype=object)], ignore_index=True)
    fit = partial(run, schema=schema, model="grids", epochs=3)
    replay(fit, pairs=[Pair(value, data, more)], opaque=OPAQUE)


def test_heads_on_private_quantiles_move_by_no_more_than_the_bound(replay):
    fit = partial(run, model="additive", epochs=3, size=50_000)
    data = frame(120)
    more = pd.concat([data, pd.DataFrame([GOOD], dtype=object)], ignore_index=True)
    (result,) = replay(fit, pairs=[Pair("one", data, more)], opaque=OPAQUE)
    assert result.releases > 10


def parts_of(data: pd.DataFrame):
    """Columns, rows and designs of a table, by the library's own steps, with almost no noise."""
    encoder = Encoder(MIXED)
    features, columns, dense = encoder.encode_features(data), columns_of(encoder), dense_columns(encoder)
    numbers = [(column, features) for column in columns if column.number is not None]
    weights = np.isfinite(features).all(axis=1).astype(float)
    found = release_marginals(
        numbers, weights, size=len(data), noise_multiplier=1e-3, receipt=Receipt(Gaussian(1e-3)), noise=SystemNoise()
    )
    levels = Levels(columns, found)
    rows = TableRows(levels.codes(features), weights, dense_rows(features, dense))
    base = additive_design(columns, len(dense), sum(each.stop - each.start for each in dense))
    pairs, triples = [(0, 1), (0, 1), (1, 3), (2, 3), (3, 4)], [(0, 1, 2), (1, 3, 5)]
    even = np.full(len(columns), 1 / len(columns))
    return levels, rows, base, grid_design(columns, base, pairs, triples, even, 8, (0.3, 0.35, 0.15, 0.2))


def formed(rows, design):
    """Every row as it is learnt, written out."""
    return np.concatenate(
        [
            np.hstack([(cells @ design.features).toarray(), beside[: cells.shape[0]]])
            for _, cells, beside in rows.blocks(design)
        ]
    )


def test_rows_are_no_longer_than_one_whatever_they_hold():
    data = pd.concat([mixed(200), *(added(mixed(0), name) for name in HOSTILE)], ignore_index=True)
    data.loc[3, "note"] = "nul \0 " + "long " * 5_000
    _, rows, base, design = parts_of(data)
    for each in (base, design):
        lengths = np.linalg.norm(formed(rows, each), axis=1)
        assert lengths.max() <= 1 + 1e-12
        assert lengths.min() > 0.5


@pytest.mark.parametrize("kept", [True, False])
def test_a_step_is_the_sum_of_clipped_rows(kept):
    data = pd.concat([mixed(150), added(mixed(0), "null")], ignore_index=True)
    _, rows, _, design = parts_of(data)
    rows = replace(rows, block=64, cached=1 << 30 if kept else 0)
    labels = np.random.default_rng(1).integers(0, 3, len(data))
    residual = ClassResidual(labels, 3, (1.0, 5.0, 0.2))
    seen = NoiseFree()
    with tape(seen):
        descend(
            rows, design, residual, 2, Steps(1.0, 2, 1e-3), size=10.0,
            receipt=Receipt(Repeated(Gaussian(1e-3), 2)), noise=SystemNoise(),
        )  # fmt: skip
    weights = -np.asarray(seen.entries[0].inputs[0]) * THRESHOLD / 10.0
    x = formed(rows, design)
    pull = residual(slice(None), x @ weights)
    lengths = np.linalg.norm(pull, axis=1, keepdims=True)
    expected = x.T @ (pull / np.maximum(lengths, THRESHOLD) * rows.weights[:, None])
    assert np.allclose(seen.entries[1].inputs[0], expected, atol=1e-9)
    assert seen.entries[1].bound == 1.0


def test_a_record_adds_one_to_each_marginal_and_a_unit_vector_to_each_pair():
    one = mixed(1)
    levels, rows, base, _ = parts_of(one)
    pairs = [(a, b) for a in range(4) for b in range(a)]
    cells = screen_cells(levels.columns, pairs)
    start = np.zeros((base.cells.width, 2))
    seen = NoiseFree()
    with tape(seen):
        release_pairs(
            rows, cells, ClassResidual(np.array([1]), 3, (1.0, 1e9, 1.0)), base, start, None,
            noise_multiplier=2.0, receipt=Receipt(Gaussian(2.0)), noise=SystemNoise(),
        )  # fmt: skip
    (entry,) = seen.entries
    assert np.linalg.norm(entry.inputs[0]) == pytest.approx(math.sqrt(6)) == entry.bound
    numbers = [(column, Encoder(MIXED).encode_features(one)) for column in levels.columns if column.number is not None]
    seen = NoiseFree()
    with tape(seen):
        release_marginals(
            numbers, np.ones(1), size=1.0, noise_multiplier=2.0, receipt=Receipt(Gaussian(2.0)), noise=SystemNoise()
        )
    (entry,) = seen.entries
    assert len(numbers) == 2 + 5, "two numbers, a date's place and cycles"
    assert np.linalg.norm(entry.inputs[0]) == pytest.approx(math.sqrt(7)) == entry.bound


@pytest.mark.parametrize("share", [1.0, 0.25, 0.0])
def test_a_record_moves_a_comparison_by_no_more_than_its_bound(share):
    """Also one whose class weighs a billion times more than others, or that is null."""
    one = mixed(1)
    _, rows, _, design = parts_of(one)
    tables = [np.zeros((design.cells.width, 2)), np.full((design.cells.width, 2), 50.0)]
    models = [(tables[k], np.zeros((design.beside, 2))) for k in (0, 1, 1)]
    residual = ClassResidual(np.array([0]), 3, (1e9, 1.0, 1.0))
    seen = NoiseFree()

    def compare():
        return release_comparison(
            TableRows(rows.codes, np.full(1, share), rows.dense), residual, design, models,
            noise_multiplier=2.0, receipt=Receipt(Gaussian(2.0)), noise=SystemNoise(),
        )  # fmt: skip

    with tape(seen):
        exact = compare()
    (entry,) = seen.entries
    assert entry.bound == math.sqrt(2)
    assert np.linalg.norm(entry.inputs[0]) == pytest.approx(share * math.sqrt(2))
    assert exact == pytest.approx(entry.inputs[0] / 4)
    assert abs(compare() - exact).min() > 1e-9, "what is chosen by is what was released"


def test_a_longer_walk_is_taken_where_classes_do_not_overlap():
    """What is kept of it is decided by records, not by a default."""
    rng, said = np.random.default_rng(4), {}
    schema = checked_schema()
    for name in ("apart", "overlapping"):
        data = checkers(4_000)
        if name == "overlapping":
            data["outcome"] = rng.permutation(data["outcome"])
        fitted = fit_table(data, schema, epsilon=3.0, delta=1e-5, model="grids", epochs=100, test_seed=3)
        walks = {each.of: each.value for each in fitted.record.trials}
        assert set(walks) == {"the mean", "the last step"}
        assert fitted.record.privacy["tuning"] == "inside"
        said[name] = next(each for each in fitted.record.decisions if "Of the walk" in each)
    assert "60 % of the mean" not in said["apart"]
    assert "60 % of the mean" in said["overlapping"]


@pytest.mark.parametrize("part", [TRAIN, HELD_OUT])
@pytest.mark.parametrize("numeric", [False, True])
def test_receipts_of_each_part_are_the_total_by_a_second_accountant(part, numeric):
    declared, _ = declare_fit(
        frame(60) if not numeric else frame(60).assign(outcome="1"), numeric_schema() if numeric else SCHEMA,
        epsilon=1.0, delta=1e-5, size=5_000, options=FitOptions("grids"),
    )  # fmt: skip
    plan = plan_fit(declared, "gdp")
    stages = [*plan.health_stages("x"), *plan.stages("s")]
    spent = [stage.event for stage in stages if stage.part in (None, part)]
    assert second_delta(spent, 1.0) == pytest.approx(1e-5, rel=2e-3)


def checkers(size: int, numeric: bool = False) -> pd.DataFrame:
    """What only a pair of columns tells."""
    rng = np.random.default_rng(2)
    a, b, c = rng.random((3, size))
    yes = (a > 0.5) ^ (b > 0.5)
    outcome = np.where(yes, 1.0, -1.0) + c if numeric else np.where(yes, "yes", "no")
    return pd.DataFrame({"a": a, "b": b, "c": c, "outcome": outcome})


def checked_schema(numeric: bool = False) -> Schema:
    numbers = {name: {"type": "numeric", "bounds": [0, 1], "missing": "null"} for name in "abc"}
    target = {"type": "numeric", "bounds": [-2, 3]} if numeric else {"type": "categorical", "categories": ["no", "yes"]}
    return Schema.from_dict({"columns": {**numbers, "outcome": {**target, "role": "target"}}})


def test_grids_learn_what_only_pairs_tell():
    data, new = checkers(3_000), checkers(4_000)[3_000:]
    given = {"epsilon": 3.0, "delta": 1e-5, "test_seed": 1}
    fitted = fit_table(data, checked_schema(), model="auto", **given)
    assert fitted.predictor.kind == "grids"
    assert (fitted.predict(new) == new["outcome"]).mean() > 0.85
    plain = fit_table(data, checked_schema(), model="additive", **given)
    assert (plain.predict(new) == new["outcome"]).mean() < 0.65
    assert any("a x b" in each for each in fitted.record.decisions)
    first = fitted.effects()[0]
    assert (first.names, first.stands_out) == (("a", "b"), True)
    assert first.values.shape == (65, 65, 1)
    assert "a x b" in fitted.effects_svg()
    assert fitted.effects_svg().count("<polyline") == 3
    with pytest.raises(InvalidInput, match="grids"):
        plain.effects()


def test_grids_correct_linear_regression():
    data, new = checkers(3_000, numeric=True), checkers(4_000, numeric=True)[3_000:]
    fitted = fit_table(data, checked_schema(numeric=True), epsilon=3.0, delta=1e-5, model="grids", test_seed=1)
    error = fitted.predict(new).astype(float) - new["outcome"]
    assert np.square(error).mean() < 0.4 * new["outcome"].var()


def test_auto_chooses_by_declared_numbers_alone():
    def chosen(schema=SCHEMA, size=5_000, epsilon=1.0, **options):
        data = frame(5) if schema is SCHEMA else frame(5).assign(outcome="1")
        given = FitOptions("auto", **options)
        return learners.learner(declare_fit(data, schema, epsilon=epsilon, delta=1e-5, size=size, options=given)[0])

    assert isinstance(chosen(), Grids)
    assert chosen(size=500) == Heads()
    assert chosen(size="private") == Heads()
    assert chosen(epochs=50) == Heads(marginals=True)
    assert chosen(objective="worst_group") == Heads(marginals=True)
    assert isinstance(chosen(numeric_schema()), LeastSquares)
    assert isinstance(chosen(numeric_schema(), size=20_000), Grids)


def test_edges_rise_whatever_the_bounds():
    for interval in ((0.0, 1e5), (-1e9, 1.0), (5.0, 6.0), (-3.0, 3.0), (1e-300, 1e300), (-1e300, -1e-300)):
        column = columns_of(
            Encoder(Schema.from_dict({"columns": {"x": {"type": "numeric", "bounds": list(interval)}}}))
        )
        edges = cell_edges(column[0])
        assert edges[0] == -1.0
        assert edges[-1] == 1.0
        assert (np.diff(edges) > 0).all()


SHAPES = {
    "categories alone": {f"c{k}": {"type": "categorical", "categories": ["a", "b"]} for k in range(3)},
    "one number": {"n0": {"type": "numeric", "bounds": [0, 1]}},
    "forty numbers": {f"n{k}": {"type": "numeric", "bounds": [0, 1]} for k in range(40)},
}


@pytest.mark.parametrize("name", SHAPES)
def test_tables_of_every_shape_are_learnt(name):
    schema = Schema.from_dict({"columns": {**SHAPES[name], "y": {"type": "boolean", "role": "target"}}})
    rng = np.random.default_rng(0)
    data = {k: rng.choice(["a", "b"], 400) if k[0] == "c" else rng.random(400) for k in SHAPES[name]}
    first = data[next(iter(data))]
    data["y"] = (first == "a") if first.dtype.kind == "U" else first > 0.5
    fitted = fit_table(pd.DataFrame(data), schema, epsilon=20.0, delta=1e-4, model="grids", epochs=40, test_seed=0)
    assert (fitted.predict(pd.DataFrame(data)) == data["y"].astype(str)).mean() > 0.8
