"""What a cell of each type may not be: it is cut, or its record is null, no other row moves, and nothing is said."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpilot.data.cells import objects
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from tests.data.pictures import SIDE, encoded, pixels

TEXT = {"type": "text", "features": 64, "length": 20}
VECTOR = {"type": "vector", "width": 3}
PICTURE = {"type": "image", "size": [SIDE, SIDE], "backbone": "pixels"}
DAY = {"type": "date", "range": ["2020-01-01", "2023-01-01"]}
NULL: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "bytes that are no UTF-8": (TEXT, "good words", b"\xff\xfe\x00"),
    "half of a character": (TEXT, "good words", "caf\xe9".encode("latin-1")),
    "a list of words": (TEXT, "good words", ["good", "words"]),
    "a short vector": (VECTOR, [1.0, 2.0, 3.0], [1.0, 2.0]),
    "a long vector": (VECTOR, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]),
    "a vector with NaN": (VECTOR, [1.0, 2.0, 3.0], [1.0, np.nan, 3.0]),
    "a vector with inf": (VECTOR, [1.0, 2.0, 3.0], [1.0, np.inf, 3.0]),
    "a vector of words": (VECTOR, [1.0, 2.0, 3.0], ["a", "b", "c"]),
    "a number for a vector": (VECTOR, [1.0, 2.0, 3.0], 7.0),
    "a vector as half of its JSON": (VECTOR, "[1, 2, 3]", "[1, 2, 3"),
    "a grey picture": (PICTURE, "good.png", "grey.png"),
    "a picture with alpha": (PICTURE, "good.png", "alpha.png"),
    "half of a picture": (PICTURE, "good.png", "half.png"),
    "a picture that is not there": (PICTURE, "good.png", "nowhere.png"),
    "a name of a picture with a null byte": (PICTURE, "good.png", "good.png\0"),
    "a day beyond the range": (DAY, "2021-05-01", "2031-05-01"),
    "a day that is none": (DAY, "2021-05-01", "2021-02-30"),
    "a number for a day": (DAY, "2021-05-01", 20210501),
    "an infinite number": ({"type": "numeric", "bounds": [0, 9]}, 4, np.inf),
    "a number beyond the bounds": ({"type": "numeric", "bounds": [0, 9]}, 4, 10),
    "a number of hashed levels that floats confuse": ({"type": "categorical", "levels": "hash:8"}, "Ulm", 2**60 + 1),
    "an unknown category": ({"type": "categorical", "categories": ["a", "b"]}, "a", "c"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("pictures")
    good = encoded(pixels(0))
    files = {"good": good, "grey": encoded(pixels(0)[..., 0]), "half": good[: len(good) // 2]}
    files["alpha"] = encoded(np.dstack([pixels(0), pixels(1)[..., 0]]))
    for name, content in files.items():
        (where / f"{name}.png").write_bytes(content)
    return where


def rows_of(declared: dict[str, Any], cells: list[Any]) -> np.ndarray:
    """Rows of cells beside good numbers: what becomes of a record as a whole."""
    columns = {"cell": declared, "number": {"type": "numeric", "bounds": [0, 2]}}
    reader = Encoder(Schema.from_dict({"columns": columns}))
    return np.asarray(reader.encode_features({"cell": objects(cells), "number": np.ones(len(cells))}))


@pytest.mark.parametrize("case", NULL)
def test_it_is_null_and_silent_and_moves_no_other(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    declared, good, bad = NULL[case]
    monkeypatch.chdir(folder)
    expected = rows_of(declared, [good, good])
    assert np.isfinite(expected).all()
    capfd.readouterr()
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rows_of(declared, [good, bad, good])
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], expected)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_text_over_its_length_is_cut() -> None:
    cut, whole, more = rows_of(TEXT, ["good words " * 500, ("good words " * 500)[:20], "good words"])
    assert np.array_equal(cut, whole)
    assert not np.array_equal(cut, more)
