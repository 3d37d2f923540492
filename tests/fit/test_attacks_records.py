"""Attacks by what a record holds: it moves sums by no more than their bound, and nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit.classifier import AutoClassifier
from dpilot.fit.declaration import declare_fit
from dpilot.fit.regressor import AutoRegressor
from dpilot.fit.table import fit_table
from dpilot.keys import Chain
from tests.fit.helpers import SCHEMA, frame, numeric_frame
from tests.thin import thin

pytestmark = pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")

Pair = pytest.importorskip("dpilot.audit.neighbours").Pair
QUICK = {"epsilon": 2.0, "stop_below": 0.0, "epochs": 8}
GOOD = {"number": "77", "signal": "0.5", "kind": "a", "site": "north", "outcome": "yes"}


class Hostile:
    """A cell of which nothing can be asked."""

    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = __array__ = __eq__ = __str__
    __hash__ = None


class HostileText(str):
    __slots__ = ()

    def strip(self, *characters):
        raise OSError

    lower = casefold = encode = strip


CELLS = {
    "hostile": Hostile(),
    "hostile text": HostileText("a"),
    "huge": 10**5000,
    "digits": "9" * 5000,
    "complex": 1j,
    "array": np.arange(3),
    "surrogate": "\ud800",
    "missing": pd.NA,
    "denormal": 5e-324,
}


def fit(data, schema=SCHEMA, **options):
    fitted = fit_table(data, schema, **{**QUICK, "delta": 1e-5, "size": 120, **options})
    predicted = fitted.predict(frame(20))
    facts = fitted.record
    return facts.metrics, facts.plan, facts.decisions, fitted.health, predicted, fitted.predictor.state()


@pytest.mark.parametrize("null", ["x", None])
@pytest.mark.parametrize("cells", [{"signal": None, "kind": None}, {}, {"number": None}, {"outcome": "maybe"}])
def test_where_the_size_is_public_a_record_may_become_null(replay, null, cells):
    data = frame(120)
    data.loc[119] = {**GOOD, **cells}
    empty = data.copy()
    empty.loc[119] = [null] * 5
    replay(lambda table: fit(table, size="public"), pairs=[Pair("made null", data, empty)])


@pytest.mark.parametrize("column", ["signal", "kind", "outcome"])
@pytest.mark.parametrize("name", CELLS)
def test_a_hostile_cell_moves_only_sums(replay, name, column):
    data = {key: list(values) for key, values in frame(120).items()}
    more = {key: [*values, {**GOOD, column: CELLS[name]}[key]] for key, values in data.items()}
    replay(fit, pairs=[Pair(name, data, more)])


TYPED = {
    "note": ({"type": "text", "features": 16}, "some words"),
    "vector": ({"type": "vector", "width": 2}, [1.0, 2.0]),
    "day": ({"type": "date", "range": ["2020-01-01", "2021-01-01"]}, "2020-05-05"),
    "flag": ({"type": "boolean"}, True),
    "city": ({"type": "categorical", "levels": "hash:8"}, "Ulm"),
    "picture": ({"type": "image", "size": [4, 4], "backbone": "pixels"}, np.full((4, 4, 3), 7, dtype=np.uint8)),
}


@pytest.mark.parametrize("column", thin(TYPED, 2))
@pytest.mark.parametrize("name", ["hostile", "hostile text", "digits", "array", "surrogate"])
def test_a_hostile_cell_of_every_type_moves_only_sums(replay, name, column):
    columns = {"x": TYPED[column][0], "outcome": {"type": "boolean", "role": "target"}}
    schema = Schema.from_dict({"columns": columns})

    def run(data):
        made = fit_table(data, schema, delta=1e-5, size=40, **QUICK)
        return made.record.metrics, made.record.plan, made.health, made.predictor.state()

    data = {"x": [TYPED[column][1], None] * 20, "outcome": [True, False] * 20}
    replay(run, pairs=[Pair(name, data, {"x": [*data["x"], CELLS[name]], "outcome": [*data["outcome"], True]})])


@pytest.mark.parametrize("name", ["hostile", "hostile text", "digits", "array"])
def test_a_hostile_cell_of_a_range_of_columns_moves_only_sums(replay, name):
    columns = {"x": {"type": "vector", "columns": "a..b"}, "outcome": {"type": "boolean", "role": "target"}}
    schema = Schema.from_dict({"columns": columns})

    def run(data):
        made = fit_table(data, schema, delta=1e-5, size=40, **QUICK)
        return made.record.metrics, made.record.plan, made.health, made.predictor.state()

    data = {"a": [1.0, 2] * 20, "b": [None, 3.0] * 20, "outcome": [True, False] * 20}
    more = {"a": [*data["a"], 1.0], "b": [*data["b"], CELLS[name]], "outcome": [*data["outcome"], True]}
    replay(run, pairs=[Pair(name, data, more)])


@pytest.mark.parametrize("kind", [AutoClassifier, AutoRegressor])
@pytest.mark.parametrize("name", CELLS)
def test_a_hostile_cell_of_an_array_moves_only_sums(replay, name, kind):
    numbers = np.random.default_rng(0).normal(size=(121, 2)).astype(object)
    target = (numbers[:, 0] > 0).astype(object) if kind is AutoClassifier else numbers[:, 1].copy()
    numbers[120, 0] = CELLS[name]

    def run(records):
        options = {**QUICK, "classes": [False, True]} if kind is AutoClassifier else {"epsilon": 2.0, "stop_below": 0.0}
        model = kind(size=120, **options).fit(*records)
        return model.coef_, model.record_.metrics, model.health_, model.predict(records[0][:20])

    replay(run, pairs=[Pair(name, (numbers[:120], target[:120]), (numbers, target))])


@pytest.mark.parametrize(
    "line",
    ['1,"0.5,a,north,yes\n', "1\n", "1,2,3,4,5,6,7\n", "\0,\0\n", "1,0.5,a,north,yes", "\n", '"""\n', "\x1a"],
)
@pytest.mark.parametrize("records", [0, 60])
def test_a_line_of_a_file_moves_only_sums(replay, tmp_path, line, records):
    text = frame(60).iloc[:records].to_csv(index=False)
    paths = []
    for name, content in (("one", text), ("two", text + line)):
        paths.append(tmp_path / name / "d.csv")
        paths[-1].parent.mkdir()
        paths[-1].write_text(content)
    replay(fit, pairs=[Pair("a line", *paths)])


def test_the_health_check_and_training_agree_on_which_records_can_be_used():
    number = {"type": "numeric", "bounds": "buy"}
    columns = {"number": number, "signal": number, "outcome": {**number, "role": "target"}}
    data = numeric_frame(2000)[list(columns)]
    data.loc[::2, "signal"] = None
    data.loc[1::2, "number"] = None
    fitted = fit_table(data, Schema.from_dict({"columns": columns}), epsilon=5.0, delta=1e-5)
    assert fitted.health.usable.value > 0.9
    assert all(value is not None for value in fitted.predict(data))
    strict = {name: {**column, "missing": "null"} for name, column in columns.items()}
    with pytest.raises(InvalidInput, match="can be used"):
        fit_table(data, Schema.from_dict({"columns": strict}), epsilon=5.0, delta=1e-5)


def test_no_cell_of_a_file_without_a_header_is_told_where_wildcards_match_it(tmp_path):
    (tmp_path / "a.csv").write_text("5.1,3.5,1.4,defaulted\n1.1,1.5,3.4,paid\n")
    target = {"type": "categorical", "categories": ["defaulted", "paid"], "role": "target"}
    schema = Schema.from_dict({"columns": {"[0-9]*": {"type": "numeric", "bounds": [0, 10]}, "default": target}})
    with pytest.raises(InvalidInput) as refused:
        declare_fit(tmp_path / "a.csv", schema, epsilon=1.0)
    assert "defaulted" not in str(refused.value)


def test_no_stream_is_used_twice_and_no_key_leaves(monkeypatch, tmp_path):
    real, used, told = Chain.generator, [], []

    def generator(self, purpose):
        used.append((self.key, purpose))
        return real(self, purpose)

    monkeypatch.setattr(Chain, "generator", generator)
    for name in ("one", "two"):
        options = {"size": "private", "stop_below": 0.0, "run_folder": tmp_path / name, "tell": told.append}
        fit_table(frame(400), SCHEMA, epsilon=8.0, delta=1e-5, **options).report(tmp_path / name / "report.html")
    assert len(used) > 100
    assert len(set(used)) == len(used)
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()) + "".join(told).encode()
    assert not any(key in left or key.hex().encode() in left for key, _ in used)
