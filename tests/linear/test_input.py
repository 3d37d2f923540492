"""Bad input gives a clear error about the table, or a sane model; never an error about a record."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

from dpilot import Budget, Ledger
from dpilot.audit.replay import replay
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.linear import (
    AutoRegressor,
    LinearRegression,
    LogisticRegression,
    PrivacyWarning,
    PrivateStandardScaler,
    rows,
)
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.methods import METHODS
from tests.data.raising import raising_cells
from tests.linear.helpers import line
from tests.thin import thin_product

RNG = np.random.default_rng(0)
X, Y, _ = line(200, 3)
TABLES = {
    "one row": (X[:1], Y[:1]),
    "one column": (X[:, :1], Y),
    "constant column": (np.column_stack([X, np.full(200, 7.0)]), Y),
    "zero columns": (np.zeros((200, 3)), Y),
    "more columns than rows": (RNG.normal(size=(10, 30)), Y[:10]),
    "duplicated columns": (np.column_stack([X, X]), Y),
    "nothing but null": (np.full((50, 3), np.nan), Y[:50]),
    "infinite": (np.where(X > 1, np.inf, X), Y),
    "null target": (X, np.full(200, np.nan)),
    "constant target": (X, np.full(200, 3.0)),
    "zero target": (X, np.zeros(200)),
    "scales": (X * [1e-12, 1.0, 1e12], Y * 1e12),
    "extreme scales": (X * [1e-300, 1.0, 1e300], Y * 1e300),
    "objects": (X.astype(object), Y.astype(object)),
    "words": (np.where(X > 1, "word", X.astype(object)), Y),
    "booleans": (X > 0, Y > 0),
    "integers": (np.round(10 * X).astype(int), np.round(Y).astype(int)),
    "frame": (pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(Y)),
    "lists": (X.tolist(), Y.tolist()),
}


@pytest.mark.parametrize(("what", "method"), thin_product(5, TABLES, METHODS))
def test_every_table_gives_a_finite_model(method, what):
    features, target = TABLES[what]
    model = LinearRegression(method=method).fit(features, target)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.intercept_)
    assert np.isfinite(model.predict(features)).all()


@pytest.mark.parametrize("size", [3, "private", 100_000])
def test_sizes_far_from_the_truth_give_a_finite_model(size):
    model = LinearRegression(size=size, delta=1e-6).fit(X, Y)
    assert np.isfinite(model.predict(X)).all()


REFUSED = {
    "epsilon": ({"epsilon": 0.0}, "epsilon"),
    "delta": ({"delta": 1.0}, "delta"),
    "method": ({"method": "ols"}, "method"),
    "size": ({"size": "secret"}, "size"),
    "size 0": ({"size": 0}, "size"),
    "intercept": ({"fit_intercept": "yes"}, "fit_intercept"),
    "bounds": ({"bounds": [0, 1]}, "bounds"),
    "bounds of a column": ({"bounds": {"X": (1.0, 0.0)}}, "bounds"),
    "bounds of other columns": ({"bounds": {"X": ([0.0, 0.0], 1.0)}}, "bounds"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_settings_are_refused_by_name(what):
    options, name = REFUSED[what]
    with pytest.raises(InvalidInput, match=name):
        LinearRegression(**options).fit(X, Y)


def test_sparse_matrices_are_refused_clearly():
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        LinearRegression().fit(csr_matrix(X), Y)


def test_rows_and_targets_must_be_as_many():
    with pytest.raises(ValueError, match="inconsistent"):
        LinearRegression().fit(X, Y[:-1])


def test_the_input_is_not_written_to():
    features, target = X.copy(), Y.copy()
    LinearRegression().fit(features, target)
    assert np.array_equal(features, X)
    assert np.array_equal(target, Y)


NAMED = {
    "pandas": lambda values: pd.DataFrame(values, columns=["a", "b", "c"]),
    "polars": lambda values: pl.DataFrame(values, schema=["a", "b", "c"]),
}
ESTIMATORS = [
    AutoRegressor(),
    LinearRegression(),
    LinearRegression(method="adassp", bounds={"X": (-9.0, 9.0)}),
    LogisticRegression(classes=[False, True]),
    PrivateStandardScaler(),
]


def outputs(model, features):
    return model.predict(features) if hasattr(model, "predict") else np.asarray(model.transform(features))


@pytest.mark.parametrize("library", NAMED)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_names_of_columns_are_kept(estimator, library):
    frame = NAMED[library](X)
    target = Y > 0 if isinstance(estimator, LogisticRegression) else Y
    model = clone(estimator).fit(frame, target)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert outputs(model, frame).shape[0] == X.shape[0]
    with pytest.raises(ValueError, match="feature names"):
        outputs(model, frame[["b", "a", "c"]])


@pytest.mark.parametrize("library", NAMED)
def test_frames_give_the_numbers_of_arrays(library):
    values = np.where(X > 1.5, np.nan, X)
    made = {"random_state": 3, "bounds": "standardised"}
    with pytest.warns(PrivacyWarning):
        plain = LinearRegression(**made).fit(values, Y)
    with pytest.warns(PrivacyWarning):
        named = LinearRegression(**made).fit(NAMED[library](values), Y)
    assert np.array_equal(plain.coef_, named.coef_)


def test_polars_columns_of_whole_numbers_with_holes_are_read():
    frame = pl.DataFrame({"a": [1, None, 3] * 50, "b": [True, False, None] * 50, "c": [0.5, 1.5, 2.5] * 50})
    target = pl.Series("y", [1.0, 2.0, None] * 50)
    model = LinearRegression().fit(frame, target)
    assert np.isfinite(model.predict(frame)).all()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_clones_are_unfitted_and_copies_give_the_same(estimator):
    target = Y > 0 if isinstance(estimator, LogisticRegression) else Y
    model = clone(estimator).fit(X, target)
    assert clone(model).get_params() == estimator.get_params()
    assert not hasattr(clone(model), "privacy_")
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(outputs(again, X), outputs(model, X))
    assert again.privacy_.entries == model.privacy_.entries


def test_clones_keep_the_ledger(tmp_path):
    assert clone(LinearRegression(ledger=tmp_path / "x")).ledger == tmp_path / "x"
    ledger = Ledger.open(tmp_path / "one.ledger", dataset="one", budget=Budget(1.0, 1e-5))
    assert clone(LinearRegression(ledger=ledger)).ledger is ledger


def test_declared_bounds_are_outer_limits_of_what_is_bought():
    bounds = {"X": ([-5.0, np.nan, -1e6], [5.0, np.nan, 1e6]), "y": (-9.0, 9.0)}
    rows, target = np.repeat(X, 20, axis=0), np.repeat(Y, 20)
    model = LinearRegression(bounds=bounds).fit(rows, target)
    assert "scale" in [entry.purpose for entry in model.privacy_.entries]
    low, high = model.target_range_
    assert -9.0 <= low < high <= 9.0
    assert -5.0 <= model.lower_[0] < model.upper_[0] <= 5.0
    assert (np.abs(model.scale_ - 1) < 0.7).all()  # whatever was declared


def test_declared_as_standardised_nothing_is_bought():
    model = LinearRegression(bounds="standardised").fit(X, Y)
    assert not {"scale", "target"} & {entry.purpose for entry in model.privacy_.entries}


def test_where_bounds_scale_their_columns_intervals_with_zero_keep_zeros():
    found = parse_bounds({"X": ([0.0, 10.0], [1.0, 30.0])}, 2, target=False).scaling(
        np.zeros(3), np.ones(3), centred=True
    )
    assert found.center.tolist() == [0.0, 20.0, 0.0]
    assert found.scale.tolist() == [1.0, 10.0, 1.0]


@pytest.mark.parametrize("center", [-1e9, 0.0, 3.0, 1e9])
@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e9])
def test_whatever_is_bought_intervals_lie_inside_the_declared_ones(center, scale):
    declared = parse_bounds({"X": (1.0, 9.0), "y": (2.0, 4.0)}, 1)
    found = declared.scaling(np.full(2, center), np.full(2, scale), centred=True)
    assert (found.lower <= found.upper).all()
    assert (found.lower >= declared.lower).all()
    assert (found.upper <= declared.upper).all()
    low, high = found.target_range
    assert 2.0 <= low <= high <= 4.0


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
    features = [*FLAGS, odd[what] if what in odd else [ODD[what], 0.0]]
    target = [*ROWS[:, 1].tolist(), 0.0]
    LinearRegression(size=300).fit(features, target)
    LinearRegression(size=300, bounds={"X": ([-9.0, -9.0], 9.0)}).fit(features[::-1], target[::-1])
    PrivateStandardScaler(size=300).fit(features)
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


MALFORMED = {
    "complex": (ROWS + 1j, LABELS, "Complex"),
    "one dimension": (ROWS[:, 0], LABELS, "2D"),
    "lengths": (ROWS, LABELS[:-1], "inconsistent"),
    "two targets": (ROWS, ROWS, "1d"),
    "no columns": (np.empty((300, 0)), LABELS, "0 feature"),
    "no rows": ([1.0, 2.0], [0, 1], "first entry"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", MALFORMED)
def test_no_message_tells_values_or_the_number_of_records(what):
    features, target, match = MALFORMED[what]
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        LogisticRegression(classes=[0, 1]).fit(features, target)
    assert not any(word in str(caught.value) for word in ("300", "299", "[", "array("))
    assert caught.value.__context__ is None


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
    features, target = np.concatenate([ROWS, np.full((1, 2), value)]), np.append(ROWS[:, 0], value)
    with np.errstate(all="raise"):
        FITS[what](features, target)
        assert np.geterr() == dict.fromkeys(("divide", "over", "under", "invalid"), "raise")
