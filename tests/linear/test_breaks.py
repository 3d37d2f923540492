"""Pairs of tables that differ in one record, of which one once told more than its budget, or raised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpilot.audit.replay import replay
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.linear import AutoRegressor, LinearRegression, LogisticRegression, PrivateStandardScaler, rows
from dpilot.linear.problem import LinearProblem
from dpilot.linear.scoring import noisy_scores, score_event
from dpilot.linear.streaming import parquet_rows
from dpilot.linear.tukey import _deep_point, distance, log_volumes
from dpilot.mechanism import SYSTEM
from dpilot.privacy.budget import Budget
from dpilot.privacy.receipt import Receipt
from tests.data.raising import raising_cells
from tests.linear.helpers import EXTREMES, released, table, with_record

EPSILON, DELTA = 1.0, 1e-5


@dataclass(frozen=True, slots=True)
class Passing:
    """Noise that passes every test of the mechanism, and keeps the logarithms of the weights it was to choose by."""

    weights: list[np.ndarray] = field(default_factory=list)

    def gaussian(self, values, *, bound, noise_multiplier):
        return [np.full_like(value, 7.0) for value in values]

    def choice(self, weights):
        self.weights.append(weights)
        return 0


def passes(fits):
    missing = math.log(1 / DELTA) / (EPSILON / 2) - distance(log_volumes(fits), EPSILON / 2, DELTA / 2)
    tail = 0.5 * math.exp(-EPSILON / 2 * abs(missing))
    return tail if missing > 0 else 1 - tail


def below(fits, end):
    """The exact probability of a point below ``end``, by the weights that the mechanism hands to its noise."""
    noise = Passing()
    _deep_point(fits, EPSILON / 2, DELTA / 2, noise)
    (logarithms,) = noise.weights
    ordered, models = np.sort(fits[:, 0]), fits.shape[0]
    depths = np.arange(models // 4, models // 2 + 1)
    low, high = ordered[depths - 1], ordered[-depths]
    shares = np.clip(end - low, 0, high - low) / (high - low)
    weights = np.exp(logarithms - logarithms.max())
    return passes(fits) * float(weights @ shares / weights.sum())


def lists(length, place, models=400):
    """Models on a line, one long gap ``place`` ranks above the middle; and the same with the lowest moved on top."""
    gaps = np.full(models - 1, length * 1e-3)
    gaps[models // 2 - 4 : models // 2 - 1] = length
    gaps[models // 2 - 1 + place] = 1.0
    gaps[models - (models // 4 - 22) - 1] = 1e9  # outside of every box that is drawn from
    fits = np.append(0.0, np.cumsum(gaps))[:, None]
    other = fits.copy()
    other[0] = fits[-1] + 1.0
    return fits, other, float(fits[models // 2 - 1, 0])


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("length", [1e-2, 3e-2, 0.1, 0.2, 0.3])
def test_tukey_costs_its_epsilon_where_one_model_swaps_sides(length, place):
    fits, other, middle = lists(length, place)
    here, there = below(fits, middle), below(other, middle)
    assert min(here, there) > 1e-4
    assert here <= math.exp(EPSILON) * there + DELTA
    assert there <= math.exp(EPSILON) * here + DELTA


ODD = {
    "word": "x",
    "nothing": None,
    "complex": 1j,
    "numpy complex": np.complex128(1j),
    "list": [1, 2],
    "bytearray": bytearray(b"a"),
    "set": {1},
    "large": 2**70,
    "larger than floats": 10**400,
    "array": np.ones(2),
    "a tuple without a hash": ([1], 2),
    **{f"{kind} that ends the process": cell for kind, cell in raising_cells(SystemExit).items()},
}
ROWS = np.random.default_rng(0).normal(size=(300, 2))
LABELS = (ROWS[:, 0] > 0).astype(int).tolist()
FLAGS = [[bool(row[0] > 0), float(row[1])] for row in ROWS]


@pytest.fixture
def counted(monkeypatch):
    """The number of records that count, of each fit."""
    seen = []

    def of(table, original=rows.MemoryRows.of):
        seen.append(int(np.isfinite(table).all(axis=1).sum()))
        return original(table)

    monkeypatch.setattr(rows.MemoryRows, "of", of)
    return seen


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", [list, tuple, "objects"])
def test_one_label_leaves_the_other_records_alone(kind, what, counted):
    labels = [*LABELS, ODD[what]]
    if kind == "objects":
        objects = np.empty(301, dtype=object)
        for place, label in enumerate(labels):
            objects[place] = label
        labels = objects
    else:
        labels = kind(labels)
    LogisticRegression(classes=[0, 1], size=300).fit([*ROWS.tolist(), [0.0, 0.0]], labels)
    assert counted == [300]


@pytest.mark.parametrize("what", [*ODD, "short", "long", "no row"])
def test_one_cell_or_row_leaves_the_other_records_alone(what, counted):
    odd = {"short": [1.0], "long": [1.0] * 3, "no row": 4.0}
    X = [*FLAGS, odd[what] if what in odd else [ODD[what], 0.0]]
    target = [*ROWS[:, 1].tolist(), 0.0]
    LinearRegression(size=300).fit(X, target)
    LinearRegression(size=300, bounds={"X": ([-9.0, -9.0], 9.0)}).fit(X[::-1], target[::-1])
    PrivateStandardScaler(size=300).fit(X)
    expected = 301 if what == "large" else 300
    assert counted == [expected] * 3


@pytest.mark.parametrize("what", ODD)
def test_one_target_leaves_the_other_records_alone(what, counted):
    LinearRegression(size=300).fit([*FLAGS, [True, 0.0]], [*ROWS[:, 1].tolist(), ODD[what]])
    assert counted == [301 if what == "large" else 300]


def test_labels_that_are_published_may_be_of_two_kinds(counted):
    model = LogisticRegression(classes="public", size=300).fit([*FLAGS, [True, 0.0]], [*LABELS, "x"])
    assert model.classes_.tolist() == [0, 1, "x"]
    assert LogisticRegression(classes="public").fit(FLAGS, LABELS).classes_.tolist() == [0, 1]
    assert counted == [301, 300]


def test_a_list_of_columns_of_one_is_a_target(counted):
    LinearRegression().fit(FLAGS, [[value] for value in ROWS[:, 1].tolist()])
    assert counted == [300]


REFUSED = {
    "complex": (ROWS + 1j, LABELS, "Complex"),
    "one dimension": (ROWS[:, 0], LABELS, "2D"),
    "lengths": (ROWS, LABELS[:-1], "inconsistent"),
    "two targets": (ROWS, ROWS, "1d"),
    "no columns": (np.empty((300, 0)), LABELS, "0 feature"),
    "no rows": ([1.0, 2.0], [0, 1], "first entry"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_no_message_tells_values_or_the_number_of_records(what):
    X, y, told = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=told) as caught:
        LogisticRegression(classes=[0, 1]).fit(X, y)
    assert not any(word in str(caught.value) for word in ("300", "299", "[", "array("))
    assert caught.value.__context__ is None


def test_whole_numbers_beyond_those_of_floats_are_rounded(tmp_path):
    large = [2**53 + 1, -(2**63), 7]
    for kind, values in (("int64", large), ("uint64", [2**64 - 1, 1, 2])):
        table = pa.table({"a": pa.array(values, pa.type_for_alias(kind)), "y": [1.0, 2.0, 3.0]})
        parquet.write_table(table, tmp_path / f"{kind}.parquet")
        read = parquet_rows(tmp_path / f"{kind}.parquet", "y")[0]
        assert rows.total(read, lambda chunk: chunk[:, 0].sum()) == sum(map(float, values))
        assert np.isfinite(LinearRegression(size=300).fit_parquet(tmp_path / f"{kind}.parquet", "y").coef_).all()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["string", "decimal", "time"])
def test_columns_that_are_not_numeric_are_told_without_values(kind, place, tmp_path):
    odd = {
        "string": pa.array(["4711", "word"]),
        "decimal": pa.array([Decimal("4711.1"), None]),
        "time": pa.array([4711, None], pa.timestamp("s")),
    }
    numeric = pa.table({"a": [1.0, 2.0], "y": [1.0, 2.0]})
    parquet.write_table(numeric, tmp_path / f"part{1 - place}.parquet")
    parquet.write_table(pa.table({"a": odd[kind], "y": [1.0, 2.0]}), tmp_path / f"part{place}.parquet")
    with pytest.raises(InvalidInput, match=rf"'a'.*part{place}.*not numeric") as caught:
        LinearRegression().fit_parquet(tmp_path, "y")
    assert "4711" not in str(caught.value)


SECRET = np.array([172.25, 181.5, 165.75])
FITTED = {
    "scored": (AutoRegressor(size=300), lambda model, X: model.private_score(X, SECRET, epsilon=1.0)),
    "regression": (LinearRegression(), lambda model, X: model.predict(X)),
    "classes": (LogisticRegression(classes=[0, 1]), lambda model, X: model.predict_proba(X)),
    "scaled": (PrivateStandardScaler(), lambda model, X: model.transform(X)),
}


@pytest.mark.parametrize("what", FITTED)
@pytest.mark.parametrize("shape", [(3,), (1, 1, 3), (1, 3)])
def test_a_wrong_shape_is_told_without_the_records(what, shape):
    estimator, use = FITTED[what]
    model = estimator.fit(ROWS[:, :1], LABELS)
    with pytest.raises(ValueError, match=r"2D|dim 3|features") as caught:
        use(model, SECRET.reshape(shape))
    assert not any(str(value) in str(caught.value) for value in SECRET)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("part", ["train", "held-out"])
@pytest.mark.parametrize("record", [*EXTREMES, "largest"])
def test_one_more_record_tells_nothing_in_either_part(record, part, monkeypatch):
    values = table(300, 2) * 1e-3
    drawn = Split.indices

    def forced(split, length):
        found = {name: places[places < 300] for name, places in drawn(split, length).items()}
        return {**found, part: np.append(found[part], np.arange(300, length))}

    monkeypatch.setattr(Split, "indices", forced)

    def fit(given):
        model = AutoRegressor(size=300).fit(given[:, :-1], given[:, -1])
        return released(model), model.record().metrics

    odd = {**EXTREMES, "largest": (0.0, 1.7e308)}[record]
    assert replay(fit, values, with_record(values, *odd)).differences == ()


def test_a_target_far_beyond_the_reach_gives_no_warning():
    problem = LinearProblem(1, True, 100.0, Budget(1.0, 1e-5))

    def score(target):
        options = {"center": 0.0, "width": 1e-3, "problem": problem, "receipt": Receipt(score_event(problem))}
        return [each.value for each in noisy_scores(target, np.zeros(target.size), noise=SYSTEM, **options)]

    assert replay(score, np.array([1e-3]), np.array([1e-3, 1.7e308])).differences == ()


DECLARED = Schema.from_dict({"columns": {"a": {"type": "numeric", "bounds": "buy"}}})
EMPTY = {
    "numbers": lambda n: AutoRegressor(size=300).fit(ROWS[:n], ROWS[:n, 0]),
    "bought size": lambda n: AutoRegressor(size="private").fit(ROWS[:n], ROWS[:n, 0]),
    "schema": lambda n: AutoRegressor(size=300, schema=DECLARED).fit({"a": ROWS[:n, 1]}, ROWS[:n, 0]),
    "regression": lambda n: LinearRegression(size=300).fit(ROWS[:n], ROWS[:n, 0]),
    "lists": lambda n: LinearRegression(size=300, bounds={"X": ([-9.0, -9.0], 9.0)}).fit(FLAGS[:n], LABELS[:n]),
    "classes": lambda n: LogisticRegression(classes=[0, 1], size=300).fit(ROWS[:n], LABELS[:n]),
    "scaler": lambda n: PrivateStandardScaler(size=300).fit(ROWS[:n]),
    "score": lambda n: EMPTY["numbers"](300).private_score(ROWS[:n], ROWS[:n, 0], epsilon=1.0),
    "score of lists": lambda n: EMPTY["numbers"](300).private_score(FLAGS[:n], LABELS[:n], epsilon=1.0),
}


@pytest.mark.parametrize("what", EMPTY)
def test_no_record_at_all_runs_like_one_record(what):
    def run(count):
        made = EMPTY[what](count)
        return [
            (each.purpose, each.event) for each in getattr(made, "privacy_", getattr(made, "privacy", None)).entries
        ]

    assert replay(run, 0, 1).differences == ()


def test_a_published_number_of_no_records_is_refused():
    with pytest.raises(InvalidInput, match="0 sample"):
        AutoRegressor().fit(ROWS[:0], ROWS[:0, 0])


FITS = {
    "regression": lambda X, y: LinearRegression(size=300).fit(X, y),
    "automatic": lambda X, y: AutoRegressor(size=300).fit(X, y),
    "bought size": lambda X, y: AutoRegressor(size="private").fit(X, y),
    "classes": lambda X, y: LogisticRegression(classes=[0, 1], size=300).fit(X, (y > 0).astype(int)),
    "scaler": lambda X, y: PrivateStandardScaler(size=300).fit(X),
    "score": lambda X, y: AutoRegressor(size=300).fit(ROWS, ROWS[:, 0]).private_score(X, y, epsilon=1.0),
}


@pytest.mark.parametrize("value", [5e-324, 1e-200, 1e308])
@pytest.mark.parametrize("what", FITS)
def test_no_number_raises_though_the_caller_lets_numpy_raise(what, value):
    X, y = np.concatenate([ROWS, np.full((1, 2), value)]), np.append(ROWS[:, 0], value)
    with np.errstate(all="raise"):
        FITS[what](X, y)
        assert np.geterr() == dict.fromkeys(("divide", "over", "under", "invalid"), "raise")
