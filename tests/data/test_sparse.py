"""Rows held by their entries: the same numbers as dense rows, each from its own record, whatever is beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows, SparseRowsBuilder, is_usable, null_out
from dpilot.fit.expansion import features_of
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits
from dpilot.transfer.probe import scores

RNG = np.random.default_rng(0)
COLUMNS = {
    "a": {"type": "text", "features": 512},
    "n": {"type": "numeric", "bounds": [0, 1]},
    "b": {"type": "text", "features": 600},
    "v": {"type": "vector", "width": 3},
    "few": {"type": "text", "features": 32},
}
SCHEMA = Schema.from_dict({"columns": COLUMNS})
WORDS = np.array("the film was good bad fine great poor dull a of word".split())  # noqa: SIM905
SIZE = 700


def table(size: int = SIZE) -> dict[str, object]:
    texts = [" ".join(RNG.choice(WORDS, RNG.integers(0, 30))) for _ in range(3 * size)]
    numbers = np.where(RNG.random(size) < 0.1, np.nan, RNG.random(size))
    a = [None if place % 50 == 1 else b"\xff" if place % 50 == 2 else each for place, each in enumerate(texts[:size])]
    return {
        "a": a, "b": texts[size : 2 * size], "few": texts[2 * size :], "n": numbers,
        "v": RNG.normal(size=(size, 3)),
    }  # fmt: skip


TABLE = table()
DENSE = Encoder(SCHEMA).encode(TABLE).features
ROWS = Encoder(SCHEMA).encode_features(TABLE)


def test_hashed_texts_are_the_same_rows_sparse_and_dense() -> None:
    assert isinstance(ROWS, SparseRows)
    assert np.array_equal(ROWS.toarray(), DENSE, equal_nan=True)
    assert np.array_equal(is_usable(ROWS), is_usable(DENSE))
    assert 0 < (~is_usable(ROWS)).sum() < 30
    assert ROWS.nbytes < DENSE.nbytes / 4


@pytest.mark.parametrize("places", [slice(3, 90), RNG.permutation(SIZE), np.arange(0, SIZE, 2), np.zeros(0, int)])
def test_some_rows_share_the_entries_of_all(places: object) -> None:
    some = ROWS[places]
    assert np.shares_memory(some.values, ROWS.values)
    assert np.array_equal(some.toarray(), DENSE[places], equal_nan=True)
    expected = (DENSE[places][:, ROWS_ENTRIES].astype(float) ** 2).sum(axis=1)
    assert np.allclose(some.square_lengths(), expected, equal_nan=True)


ROWS_ENTRIES = np.setdiff1d(np.arange(ROWS.width), ROWS.places)


def test_pieces_are_joined_in_their_order() -> None:
    builder = SparseRowsBuilder()
    for start in range(0, SIZE, 100):
        part = {name: column[start : start + 100] for name, column in TABLE.items()}  # type: ignore[index]
        builder.append(Encoder(SCHEMA).encode_features(part))
    assert np.array_equal(builder.build().toarray(), DENSE, equal_nan=True)


def test_rows_are_widened_and_scaled_as_dense_ones() -> None:
    wide = features_of(SCHEMA)
    expected = wide.widen(DENSE)
    found = wide.widen(ROWS)
    assert isinstance(found, SparseRows)
    assert np.allclose(found.toarray(), expected, equal_nan=True)
    labels = RNG.integers(-1, 3, SIZE).astype(float)
    dense, sparse = Features.of(expected, labels, 3).unit(), Features.of_sparse(found, labels, 3)
    assert torch.equal(dense.labels, sparse.labels)
    assert torch.allclose(dense.values, sparse.values[:], atol=1e-6)
    places = RNG.permutation(SIZE)[:300]
    assert torch.equal(sparse.take(places).values[:], sparse.values[:][places])


def test_no_record_moves_another_and_none_sends_more_than_its_threshold() -> None:
    """Sums and scores are those of the very rows that slices give, to the last bit."""
    found = features_of(SCHEMA).widen(ROWS)
    sparse = Features.of_sparse(found, RNG.integers(0, 3, SIZE), 3)
    dense = Features(sparse.values[:], sparse.labels, 3)
    weights = torch.from_numpy(RNG.normal(size=(2, 3, sparse.width)).astype(np.float32))
    sums = []
    for each in (sparse, dense):
        made = FeatureBlocks.of(each)
        limits = residual_limits(made.lengths, torch.tensor([0.5, 0.1]), 3)
        sums.append(made.clip_and_sum(weights, limits))
    assert torch.equal(*sums)
    whole = scores(sparse, weights[0].T.contiguous())
    assert torch.equal(whole[:400], scores(sparse.take(range(400)), weights[0].T.contiguous()))
    assert torch.equal(whole, scores(dense, weights[0].T.contiguous()))
    one = FeatureBlocks.of(sparse.take([5]))
    limit = residual_limits(one.lengths, torch.tensor([0.5, 0.1]), 3)
    assert (one.clip_and_sum(weights, limit).flatten(1).norm(dim=1) <= torch.tensor([0.5, 0.1])).all()


def test_a_null_record_is_a_row_of_zeros_that_counts_for_nothing() -> None:
    rows = Encoder(SCHEMA).encode_features(table(20))
    null = np.arange(20) % 3 == 0
    null_out(rows, null)
    assert np.isnan(rows.toarray()[null]).all()
    found = Features.of_sparse(features_of(SCHEMA).widen(rows), np.zeros(20), 2)
    assert (found.labels[torch.from_numpy(null)] == -1).all()
    assert not found.values[:][torch.from_numpy(null)].any()
