"""Attacks on what reads records: one cell that makes its container write the others anew, or makes a library speak.

Each case that is open is a strict expected failure: it says how far one record moves a release, or what it emits.
"""

from __future__ import annotations

import datetime
import logging
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from sklearn.exceptions import DataConversionWarning

from dpilot import AutoRegressor, hardened
from dpilot.data.cells import plain
from dpilot.data.encoder import Encoder
from dpilot.data.parquet import ParquetDataset
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.data.units import cut_units
from dpilot.data.values import key, number
from dpilot.errors import InvalidInput, PrivacyWarning
from dpilot.linear import LinearRegression, LogisticRegression
from dpilot.linear.classifier import codes
from dpilot.linear.inputs import target_cells
from dpilot.mechanism import EXACT
from dpilot.privacy.budget import Budget
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import MOST_ROWS_PER_UNIT, PrivacyUnit
from dpilot.statistics import partitions, partitions_event, threshold_for
from dpilot.train.batches.unit_reader import check_ids
from dpilot.transfer.features import Features
from dpilot.transfer.pixels import as_pixels
from dpilot.transfer.scattering import scattered
from dpilot.tune import PrivateSearchCV
from dpilot.tune.paid_trials import SearchTerms, _scores, whole

SIZE = 60
X = np.random.default_rng(0).normal(size=(SIZE, 2))
LABELS = (X[:, 0] > 0).astype(np.int64)
TERMS = SearchTerms(Budget(5.0, 1e-4), SIZE, trials=2)
SIGNALLING = np.array([0x7FA00000], dtype=np.uint32).view(np.float32)[0]
FAR = np.longdouble("1e400")


def select(values: list[Any]) -> list[str]:
    threshold = threshold_for(2.0, 1e-6)
    paid = Receipt(partitions_event(2.0, threshold))
    return partitions(values, noise_multiplier=2.0, threshold=threshold, receipt=paid)


@pytest.mark.parametrize("odd", [1, Decimal(1)], ids=repr)
def test_a_value_of_another_type_is_no_second_partition(odd: Any) -> None:
    assert select(["1"] * 1000) == ["1"]
    assert select([*["1"] * 1000, odd]) == ["1"]


def test_a_value_that_cannot_be_hashed_is_the_null_record() -> None:
    assert select([*["1"] * 1000, ["1"]]) == ["1"]


def test_a_value_of_one_record_changes_no_noise_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardened noise covered as many numbers as values occurred, and its scale told how many: by 4 parts in 10^7."""
    laws = []

    def rounded_gaussian(size: int, scale: float, _: Any) -> Any:
        laws.append((size, scale))
        return np.zeros(size)

    monkeypatch.setattr(hardened, "rounded_gaussian", rounded_gaussian)
    for values in (["1"], ["1", "2"]):
        paid = Receipt(partitions_event(1.0, 9.0))
        partitions(values * 9, noise_multiplier=1.0, threshold=9.0, receipt=paid, noise=EXACT)
    assert laws[0] == laws[1]


def joined(column: pl.Series, more: pl.Series) -> pl.Series:
    frames = [pl.DataFrame({"a": column}), pl.DataFrame({"a": more})]
    return pl.concat(frames, how="vertical_relaxed")["a"]


TEXT = pl.Series(["x"])
DAYS = pl.Series([datetime.datetime(2020, 1, 1 + label) for label in LABELS.tolist()])
ZONED = DAYS.dt.replace_time_zone("UTC")
RETYPED = {
    "times with a zone and a text": (ZONED, TEXT, ["2020-01-01T00:00:00+00:00", "2020-01-02T00:00:00+00:00"]),
    "days and a time with a zone": (DAYS.cast(pl.Date), ZONED[:1], ["2020-01-01", "2020-01-02"]),
}


@pytest.mark.parametrize("case", RETYPED)
def test_a_label_that_retypes_a_column_of_polars_changes_no_other(case: str) -> None:
    column, more, classes = RETYPED[case]
    known = np.unique(np.asarray(classes))
    expected = codes(target_cells(column), known)
    assert np.isfinite(expected).all()
    assert np.array_equal(codes(target_cells(joined(column, more)), known)[:SIZE], expected)


IDS = np.arange(500) + np.array([0, 2**60])[:, None]
JOINED: dict[str, Callable[[Any], Any]] = {
    "missing": lambda ids: np.append(ids, np.nan),
    "a text": lambda ids: np.append(ids, "x"),
    "pandas": lambda ids: pd.concat([pd.Series(ids), pd.Series([None], dtype=object)]).astype(float),
    "objects": lambda ids: [*ids.astype(float), True],
}


@pytest.mark.parametrize("how", JOINED)
@pytest.mark.parametrize("ids", IDS, ids=["small", "large"])
def test_an_id_that_retypes_a_column_moves_no_other_to_another_part(ids: Any, how: str) -> None:
    """Coins went by the text of an id, "1" or "1.0": 2,000 of 10,000 that were trained on were scored next."""
    split = Split.draw({"train": 0.7, "held-out": 0.3}, by="id")
    before, after = (split.indices_of(each)["train"] for each in (ids, JOINED[how](ids)))
    assert np.array_equal(before, after[after < 500])


@pytest.mark.parametrize("cell", [complex("nan"), complex(0.0, -0.0), complex("inf")], ids=str)
def test_a_text_among_complex_numbers_changes_no_other(cell: complex) -> None:
    column = np.array([cell])
    before, after = (plain(each).tolist()[0] for each in (column, np.append(column, "x")))
    assert key(after) == key(before)
    assert repr(number(after)) == repr(number(before))


def test_a_text_among_complex_labels_changes_no_other() -> None:
    labels, known = LABELS.astype(complex), np.array([0, 1])
    assert np.array_equal(codes(target_cells(np.append(labels, "x")), known)[:SIZE], codes(labels, known))


def fitted_classifier() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegression(epsilon=50.0, size=SIZE, classes=[0, 1], delta=1e-4).fit(X, LABELS)


@pytest.mark.parametrize("odd", ["x", "0.5"])
def test_a_label_of_another_type_moves_no_other_score_of_a_search(odd: str) -> None:
    fitted = fitted_classifier()
    rows = np.concatenate([X, X[:1]])
    expected = _scores(fitted, X, LABELS, TERMS)
    assert (expected > 0).any()
    assert np.array_equal(_scores(fitted, rows, np.append(LABELS, odd), TERMS)[:SIZE], expected)


@pytest.mark.filterwarnings("always")
def test_a_search_warns_of_no_trial() -> None:
    """A warning for each trial would tell how many there are, which is secret: of ledger and column alone, once."""
    found = LogisticRegression(classes=[0, 1])
    search = PrivateSearchCV(found, {"fit_intercept": [True, False]}, epsilon=5.0, size=SIZE, trials=2, random_state=0)
    with warnings.catch_warnings(record=True) as shown:
        search.fit(X, LABELS[:, None])
    others = [each.category for each in shown if not issubclass(each.category, PrivacyWarning)]
    assert others == [DataConversionWarning]


@pytest.mark.parametrize("row", [[1.0], None, np.ones((2, 2))], ids=["short", "none", "square"])
def test_a_row_of_another_width_does_not_end_a_search(row: Any) -> None:
    assert whole(LogisticRegression(), [*X.tolist(), row], [0] * (SIZE + 1), None)[0].shape[1] == 2


@pytest.mark.parametrize("odd", [2j, 1 + 0j])
@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_a_complex_label_in_a_column_does_not_end_a_fit(odd: complex) -> None:
    assert len(target_cells(np.concatenate([LABELS[:, None], [[odd]]]))) == SIZE + 1


def test_ids_that_torch_made_floats_of_are_refused() -> None:
    """One missing id made float32 of 40 large ones, of which ten were left: 30 persons were parts of others."""
    ids, unit = torch.arange(2**25, 2**25 + 40), PrivacyUnit("person", rows=1)
    check_ids(range(40), ids, unit)
    with pytest.raises(InvalidInput, match="float32"):
        check_ids(range(41), torch.cat([ids, torch.tensor([torch.nan])]), unit)


def test_no_unit_has_more_rows_than_are_read_at_a_time() -> None:
    most = PrivacyUnit("person", rows=MOST_ROWS_PER_UNIT).rows or 0
    assert [place.stop for place in cut_units(np.zeros(most, dtype=np.int64))] == [most]
    with pytest.raises(InvalidInput, match="rows_per_unit"):
        PrivacyUnit("person", rows=most + 1)


HIDDEN = np.arange(SIZE)[:, None] % [3, 5] == 0
VECTOR = Schema.from_dict({"columns": {"v": {"type": "vector", "width": 2}}})
CLASSIFIER = LogisticRegression(classes=[0, 1])
READ: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a table": (X, lambda values: whole(CLASSIFIER, values, [0] * len(values), None)[0]),
    "features": (X, lambda values: Features.of(values, [0] * len(values), 2).values),
    "rows": (X, lambda values: Features.of(list(values), [0] * len(values), 2).values),
    "images": (X, lambda values: as_pixels(values[:, :, None])),
    "a vector": (X, lambda values: Encoder(VECTOR).encode({"v": values}).features),
    "labels": (LABELS, lambda values: codes(target_cells(values), np.array([0, 1]))),
    "labels of features": (LABELS, lambda values: Features.of(np.ones((len(values), 1)), values, 2).labels),
}


@pytest.mark.parametrize("odd", [1.0, 1 + 0j, None], ids=repr)
@pytest.mark.parametrize("what", READ)
def test_a_record_of_another_type_uncovers_and_hides_no_masked_cell(what: str, odd: Any) -> None:
    """In an array of numbers hidden cells were read, in one of complex numbers or objects missing: 28 of 60 records."""
    values, read = READ[what]
    masked = np.ma.array(values, mask=HIDDEN if values.ndim == 2 else HIDDEN[:, 0])
    more = np.ma.array(np.full((1, *values.shape[1:]), odd))
    shown, found, open_ = (
        np.asarray(read(each), dtype=np.float64) for each in (masked, np.ma.concatenate([masked, more]), values)
    )
    assert np.array_equal(found[:SIZE], shown, equal_nan=True)
    assert not np.array_equal(shown, open_)  # what is hidden is missing


def with_cell(values: Any, cell: Any) -> Any:
    """The same with one record of an odd number, its bits as they are."""
    made = values.copy()
    made.reshape(-1)[2:3].view(np.uint8)[:] = np.array([cell], dtype=values.dtype).view(np.uint8)
    return made


def linear(values: Any) -> None:
    LinearRegression(epsilon=1.0, size=SIZE, delta=1e-4).fit(values, LABELS)


def regressor(values: Any) -> None:
    AutoRegressor(epsilon=1.0, size=SIZE, delta=1e-4).fit(values, LABELS)


def features(values: Any) -> None:
    Features.of(values, LABELS, 2)


def features_of_list(values: Any) -> None:
    Features.of(list(values), LABELS, 2)


def images(values: Any) -> None:
    scattered(list(np.repeat(values[:, :1, None], 64, 1).reshape(SIZE, 8, 8)), LABELS, 2)


def said(work: Callable[[], Any]) -> list[str]:
    """Warnings but those that any fit without a ledger gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [str(each.message) for each in found if "no ledger" not in str(each.message)]


ODD: dict[str, tuple[Callable[[Any], None], Any, Any]] = {
    "linear, a signalling NaN": (linear, np.float32, SIGNALLING),
    "regressor, a signalling NaN": (regressor, np.float32, SIGNALLING),
    "features, a signalling NaN": (features_of_list, np.float32, SIGNALLING),
    "linear, a long double": (linear, np.longdouble, FAR),
    "regressor, a long double": (regressor, np.longdouble, FAR),
    "features, a long double": (features, np.longdouble, FAR),
    "images in a list": (images, np.float64, 1e300),
}


@pytest.mark.parametrize("case", ODD)
def test_no_number_warns(case: str) -> None:
    work, dtype, cell = ODD[case]
    assert not said(lambda: work(X.astype(dtype)))
    assert not said(lambda: work(with_cell(X.astype(dtype), cell)))


def on_disk(folder: Path, cell: float, target: int) -> ParquetDataset:
    rows, labels = X.copy(), LABELS.copy()
    rows[3, 0], labels[3] = cell, target
    parquet.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1], "y": labels}), folder / "t.parquet")
    return ParquetDataset(folder / "t.parquet", target="y")


@pytest.mark.parametrize(
    ("cell", "target"),
    [
        (1.0, 1),
        (1e300, 1),
        (1.0, 2**63 - 1),
    ],
)
def test_no_record_of_a_parquet_file_warns_or_raises(cell: float, target: int, tmp_path: Path) -> None:
    data = on_disk(tmp_path, cell, target)
    assert not said(lambda: data.save(tmp_path / "saved"))
    with np.errstate(all="raise"):  # else every record of its row group is taken for one that cannot be read: 26 bounds
        assert on_disk(tmp_path, cell, target).read(np.array([0]))[1].tolist() == LABELS[:1].tolist()


@pytest.mark.slow
def test_a_long_text_is_not_spoken_of() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from dpilot.integrations.sft import SFTDataset

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a", model_max_length=16)
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        assert len(SFTDataset([{"text": "a " * 5000}], tokenizer, max_length=8)[0]["input_ids"]) == 8
    finally:
        logger.removeHandler(handler)
    assert not heard
