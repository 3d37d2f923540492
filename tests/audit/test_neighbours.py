"""Standard neighbours differ in one record, the last, in every awkward way."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot.audit import neighbours

FEATURES = np.arange(6.0, dtype=np.float32).reshape(3, 2)
LABELS = np.array([0, 1, 2], dtype=np.int16)


def parts(data):
    return data if isinstance(data, tuple) else (data,)


@pytest.mark.parametrize("data", [FEATURES, LABELS, (FEATURES, LABELS), FEATURES[:1], np.array([True, False])])
def test_one_record_apart_and_otherwise_the_same(data):
    for pair in neighbours(data):
        for original, one, other in zip(parts(data), parts(pair.data), parts(pair.neighbour), strict=True):
            assert abs(len(one) - len(other)) == 1
            shared = min(len(one), len(other))
            assert np.array_equal(one[:shared], other[:shared])
            assert one.dtype == other.dtype == original.dtype


def last(name, data):
    (pair,) = [pair for pair in neighbours(data) if pair.name == f"a record of {name} added"]
    return pair.neighbour[-1].tolist()


def test_every_awkward_record_is_there():
    wide = FEATURES.astype(float)
    assert last("zeros", wide) == [0, 0]
    assert last("1e30", wide) == [1e30, 1e30]
    assert last("-1e30", wide) == [-1e30, -1e30]
    assert last("the largest float", wide) == [1.7976931348623157e308] * 2
    assert np.isnan(last("nan", wide)).all()
    assert last("inf", wide) == [np.inf, np.inf]
    assert last("-inf", wide) == [-np.inf, -np.inf]
    assert np.isnan(last("one nan", wide)).tolist() == [True, False]
    assert last("the last one again", wide) == [4, 5]


def test_values_are_brought_into_the_range_of_the_type():
    assert last("1e30", LABELS) == 32767
    assert last("-inf", LABELS) == -32768
    assert last("the largest float", FEATURES) == [np.finfo(np.float32).max] * 2


def test_removal_and_the_empty_set_are_there():
    names = [pair.name for pair in neighbours(FEATURES)]
    assert "the last record removed" in names
    empty = [pair for pair in neighbours(FEATURES) if len(pair.data) == 0]
    assert len(empty) == 9
