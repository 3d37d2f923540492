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
from dpilot.errors import InvalidInput
from dpilot.linear import AutoRegressor, LinearRegression, LogisticRegression, PrivacyWarning, PrivateStandardScaler
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.methods import METHODS
from tests.linear.helpers import line

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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", TABLES)
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
