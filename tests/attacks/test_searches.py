"""Attacks on searches that pay: rows that decide how a part is read, whom an estimator protects, what a trial costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpilot import AutoRegressor, Schema
from dpilot.errors import InvalidInput
from dpilot.linear import LinearRegression, LogisticRegression
from dpilot.mechanism import SYSTEM
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian
from dpilot.records import PUBLISHED_SIZE
from dpilot.tune import PrivateSearchCV
from dpilot.tune import paid_trials as trials
from dpilot.tune.paid_trials import PaidTrials, SearchTerms, whole

SIZE = 60
X = np.random.default_rng(0).normal(size=(SIZE, 2))
LABELS = (X[:, 0] > 0).astype(np.int64)
CLASSIFIER = LogisticRegression(classes=[0, 1])
TERMS = SearchTerms(Budget(50.0, 1e-4), SIZE, "composed", 1)

ODD_ROWS: dict[str, Any] = {"short": [1.0], "long": [1.0, 2.0, 3.0], "none": None, "a text": "ab", "a set": {1, 2}}


def trial(candidate: Any, X: Any, y: Any, first: int) -> Any:
    """One trial, both of whose parts begin with the row at ``first``."""
    table, target = whole(candidate, X, y, None)
    plan = PaidTrials.plan([candidate], trials.made_up(table), TERMS)
    order = np.roll(np.arange(len(target)), -first)
    with plan.commit(None, SYSTEM) as (paid, _):
        object.__setattr__(paid, "split", _Parts(order))
        return paid.fit(candidate, table, target, paid.receipt, 0)


class _Parts:
    def __init__(self, order: Any) -> None:
        self.order = order

    def indices(self, length: int) -> dict[str, Any]:
        del length
        return {"train": self.order, "held-out": self.order}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ODD_ROWS)
def test_a_row_at_the_head_of_a_part_does_not_say_how_wide_all_others_are(row: str) -> None:
    """A part of a list was read by its own first row: that row made null records of all others, or ended the search."""
    rows = X.tolist()
    rows[7] = ODD_ROWS[row]
    assert trial(CLASSIFIER, rows, LABELS.tolist(), 7).score > 0.6


@pytest.mark.filterwarnings("ignore")
def test_a_complex_row_at_the_head_of_a_part_does_not_end_a_search() -> None:
    table = X.astype(complex)
    table[7, 0] += 1j
    assert trial(CLASSIFIER, table, LABELS, 7).score > 0.6


FORMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "pandas": lambda: (pd.DataFrame(X, columns=["a", "b"], index=[0] * SIZE), pd.Series(LABELS, index=[5] * SIZE)),
    "polars": lambda: (pl.DataFrame(X, schema=["a", "b"]), pl.Series(LABELS)),
    "arrow": lambda: (pa.table({"a": X[:, 0], "b": X[:, 1]}), pa.chunked_array([LABELS])),
    "lists": lambda: (X.tolist(), LABELS.tolist()),
    "objects": lambda: (X.astype(object), LABELS.astype(str)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_split_as_the_same_numbers(form: str) -> None:
    table, target = whole(CLASSIFIER, *FORMS[form](), None)
    assert np.array_equal(np.asarray(table), X)
    assert [int(each) for each in target] == LABELS.tolist()


UNREAD: dict[str, Any] = {
    "texts": np.full((SIZE, 2), "a"),
    "images": np.zeros((SIZE, 8, 8)),
    "one dimension": np.zeros(SIZE),
    "a frame of texts": pd.DataFrame({"a": pd.Series(["x"] * SIZE, dtype="string")}),
    "shorter than its target": X[:-1],
}


@pytest.mark.parametrize("what", UNREAD)
def test_what_no_trial_could_read_is_refused_before_it_is_paid(what: str, tmp_path: Path) -> None:
    """Images were priced as a table of as many columns as they have rows of pixels."""
    path = tmp_path / "a.ledger"
    with pytest.raises(InvalidInput):
        PrivateSearchCV(CLASSIFIER, {}, epsilon=50.0, ledger=path).fit(UNREAD[what], LABELS)
    assert not path.exists()


def test_a_schema_of_persons_is_not_split_by_rows() -> None:
    """A search over rows said of its best estimator that each person was protected with all their rows."""
    numbers = {"type": "numeric", "bounds": [-3, 3]}
    schema = Schema.from_dict({"columns": {"a": numbers, "b": numbers, "person": {"role": "unit"}}})
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(person=np.arange(SIZE) // 4)
    with pytest.raises(InvalidInput, match="protects units"):
        PrivateSearchCV(AutoRegressor(schema=schema), {}, target_bounds=(-3, 3)).fit(frame, X[:, 0])


def test_trials_do_not_go_on_with_one_another(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="checkpoint"):
        PrivateSearchCV(AutoRegressor(checkpoint=tmp_path / "run"), {}, target_bounds=(-3, 3)).fit(X, X[:, 0])
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_size_taken_from_the_data_is_said_to_be_published() -> None:
    """The size, by which scores were divided and delta was found, was not among what is unprotected."""
    for size, said in (("public", True), (SIZE, False)):
        search = PrivateSearchCV(LinearRegression(), {}, trials=2, target_bounds=(-3, 3), size=size, epsilon=50.0)
        search.fit(X, X[:, 0])
        assert (PUBLISHED_SIZE in search.privacy_.unprotected) is said
        assert ("replaced by an empty one" in str(search.privacy_)) is said
        assert (PUBLISHED_SIZE in search.best_estimator_.record().unprotected) is said


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_commits_more_than_its_rehearsal_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fit of made-up records commits was taken for what the fit itself commits."""
    table, target = whole(CLASSIFIER, X, LABELS, None)
    plan = PaidTrials.plan([CLASSIFIER], trials.made_up(table), TERMS)
    monkeypatch.setattr(trials, "_committed", lambda _: Gaussian(0.1))
    monkeypatch.setattr(trials, "rehearse_quietly", lambda *_: plan.events[0])
    with plan.commit(None, SYSTEM) as (paid, _):
        assert paid.fit(CLASSIFIER, table, target, paid.receipt).score == -math.inf
