"""Attacks on models of tables: records that are scored, whoever else is there and whatever the caller set."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

from dpilot.audit.neighbours import Pair
from dpilot.data.schema import Schema
from dpilot.fit.classifier import AutoClassifier
from dpilot.fit.regressor import AutoRegressor
from dpilot.fit.table import fit_table
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema
from tests.fit.test_replay import OPAQUE, run
from tests.fit.test_units import NEWCOMERS, UNIT, joined, persons

pytestmark = pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")

SMALLEST = 1e-320  # whose share of a range underflows


def test_the_scores_of_a_record_are_the_same_whoever_else_is_scored():
    """To the last bit, by which a class is decided: kernels are chosen by the number of rows."""
    columns = {name: {"type": "numeric", "bounds": [0, 1]} for name in "ab"}
    target = {"type": "categorical", "categories": [f"c{k}" for k in range(20)], "role": "target"}
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.random((300, 2)), columns=list("ab"))
    data["y"] = rng.choice(target["categories"], 300)
    schema = Schema.from_dict({"columns": {**columns, "y": target}})
    fitted = fit_table(data, schema, epsilon=3.0, delta=1e-4, model="grids", epochs=1)
    rows = fitted.reader.encode_features(data)
    whole = fitted.predictor.outputs(rows)
    for few in (1, 3, 9, 129, 299):
        assert np.array_equal(fitted.predictor.outputs(rows[:few]), whole[:few])


@pytest.mark.parametrize("how", ["raise", "warn"])
@pytest.mark.parametrize("model", ["grids", "additive", "logistic"])
def test_a_private_score_neither_raises_nor_warns_whatever_the_caller_set(replay, model, how):
    data = frame(200)
    features, labels = data.drop(columns="outcome"), data["outcome"]
    clf = AutoClassifier(epsilon=1.0, delta=1e-4, size=2_000, model=model, epochs=2, schema=SCHEMA).fit(
        features, labels
    )
    more = pd.concat([data, data.iloc[:1].assign(number=str(SMALLEST))], ignore_index=True)

    def score(table):
        with np.errstate(all=how):
            found = clf.private_score(table.drop(columns="outcome"), table["outcome"], epsilon=1.0)
        return [each.record() for each in found.metrics]

    replay(score, pairs=[Pair("the smallest number", data, more)])


@pytest.mark.parametrize("how", ["raise", "warn"])
def test_a_private_score_of_numbers_does_neither(replay, how):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = X @ [1.0, 2.0]
    model = AutoRegressor(epsilon=3.0, size=200).fit(X, y)

    def score(data):
        with np.errstate(all=how):
            return [each.record() for each in model.private_score(*data, epsilon=1.0).metrics]

    more = np.vstack([X, [SMALLEST, 1e300]]), np.append(y, SMALLEST)
    replay(score, pairs=[Pair("numbers of all sizes", (X, y), more)])


@pytest.mark.parametrize("name", ["a thousand rows", "hostile rows", "opposite rows"])
def test_a_person_whose_targets_are_numbers_moves_only_what_is_released(replay, name):
    targets = ["10", "-10", "nan", "1e300"]
    rows = [{**row, "outcome": targets[place % 4]} for place, row in enumerate(NEWCOMERS[name])]
    data, given = persons(make=numeric_frame), {"schema": numeric_schema(), "model": "grids", "epochs": 3, "size": 40}
    fit = partial(run, **given, **UNIT)
    replay(fit, pairs=[Pair(name, data, joined(data, rows))], opaque=OPAQUE)
