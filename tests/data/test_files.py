"""Tables in files: only facts of the file raise, and a line is a record whatever is in it."""

from __future__ import annotations

import codecs
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpilot.data import column_types, lines
from dpilot.data.encoder import Encoder
from dpilot.data.files import Table
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"type": "numeric", "bounds": [0, 100]},
            "town": {"type": "categorical", "categories": ["Ulm", "Köln", "a,b"], "missing": "null"},
            "note": {"role": "ignored"},
            "ill": {"type": "categorical", "categories": ["no", "yes"], "role": "target"},
        }
    }
)
HEADER = b"age,town,note,ill\n"
GOOD = b"50,Ulm,x,no\n"


def written(tmp_path: Path, content: bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def encoded(path: Path, schema: Schema = SCHEMA, **options: str) -> np.ndarray:
    """All records as rows of numbers, features and target, in pieces of seven."""
    encoder = Encoder(schema)
    parts = [encoder.encode(frame) for frame in Table.open(path, schema, **options).frames(rows=7)]
    return np.concatenate([np.column_stack([part.features, part.target]) for part in parts])


def of(tmp_path: Path, body: bytes, **options: str) -> list[list[float]]:
    return encoded(written(tmp_path, HEADER + body), **options).tolist()


ONE = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
NULL = [None] * 6


def same(rows: list[list[float]], expected: list[list[float | None]]) -> bool:
    return np.array_equal(np.array(rows, dtype=float), np.array(expected, dtype=float), equal_nan=True)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"50,Ulm,x,no", ONE),
        (b"5e1, Ulm ,,no", ONE),
        (b'"50","Ulm","x, y ""z""",no', ONE),
        (b',"a,b",x,yes', [0.0, 1.0, 0.0, 0.0, 1.0, 1.0]),
        (b"  ,Ulm,x,no", [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
        ("100,Köln,x,no".encode(), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
        (b"101,Ulm,x,no", NULL),
        (b"-1,Ulm,x,no", NULL),
        (b"nan,Ulm,x,no", [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
        (b"inf,Ulm,x,no", NULL),
        (b"1e999,Ulm,x,no", NULL),
        (b"True,Ulm,x,no", [float(np.float32(-0.98)), 0.0, 1.0, 0.0, 0.0, 0.0]),
        (b"2020-01-01,Ulm,x,no", NULL),
        (b'"1,000",Ulm,x,no', NULL),
        (b"fifty,Ulm,x,no", NULL),
        (b"50,ulm,x,no", NULL),
        (b"50,,x,no", NULL),
        (b"50,Ulm,x,", NULL),
        (b"50,Ulm,x,maybe", NULL),
        (b"50,Ulm,x", NULL),
        (b"50,Ulm,x,no,no", NULL),
        (b"50,Ulm,x,no,", NULL),
        (b"1,000,Ulm,x,no", NULL),
        (b"", NULL),
        (b"   ", NULL),
        (b",,,", NULL),
        (b'50,Ulm,"open,no', NULL),
        (b'50,Ulm,"a"b,no', NULL),
        (b"50,K\xf6ln,x,no", NULL),
        (b"50,Ulm,\xff\xfe,no", NULL),
        (b"50,Ulm,a\rb,no", ONE),
        (b'50,Ulm,"a\rb",no', ONE),
        (b"50,Ulm,\x00,no", ONE),
        (b"5\x000,Ulm,x,no", NULL),
        (b"50,Ulm," + b"x" * 300_000 + b",no", ONE),
        (b"50," + b"x" * 300_000 + b",x,no", NULL),
        (b"9" * 20_000 + b",Ulm,x,no", NULL),
    ],
)
def test_a_line_is_a_record_and_a_bad_one_is_null(line: bytes, row: list[float | None], tmp_path: Path) -> None:
    assert same(of(tmp_path, GOOD + line + b"\n" + GOOD), [ONE, row, ONE])
    assert same(of(tmp_path, GOOD + line + b"\r\n" + GOOD), [ONE, row, ONE])


@given(
    st.one_of(st.binary(max_size=60), st.text('0123456789,"\r\t.eUlmxnoys \x00\x85\u2028', max_size=40).map(str.encode))
)
@settings(max_examples=300, deadline=None)
def test_no_bytes_in_a_line_raise_or_change_another_record(line: bytes) -> None:
    line = line.replace(b"\n", b"")
    rows = _among_others(line)
    assert len(rows) == 21
    assert same(rows[:10] + rows[11:], [ONE] * 20)
    assert np.isfinite(rows[10]).all() or np.isnan(rows[10]).all()


_FOLDER: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    _FOLDER[:] = [tmp_path_factory.mktemp("lines")]


def _among_others(line: bytes) -> list[list[float]]:
    return of(_FOLDER[0], GOOD * 10 + line + b"\n" + GOOD * 10)


def test_a_quoted_newline_makes_null_records_and_no_more(tmp_path: Path) -> None:
    assert same(of(tmp_path, GOOD + b'50,Ulm,"two\nlines",no\n' + GOOD), [ONE, NULL, NULL, ONE])


def test_every_line_counts_as_a_record_and_keeps_its_place(tmp_path: Path) -> None:
    for body, records in [
        (b"", 0),
        (GOOD, 1),
        (GOOD[:-1], 1),
        (GOOD + b"\n", 2),
        (GOOD + b"\n\n" + GOOD, 4),
        (b"x", 1),
    ]:
        path = written(tmp_path, HEADER + body)
        assert len(encoded(path)) == records
        assert Table.open(path, SCHEMA).length() == records


def test_a_line_too_long_to_hold_is_null_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 64)
    for length in (*range(40, 70), 127, 128, 129, 500):
        long = b"50,Ulm," + b"x" * length + b",no\n"
        row = ONE if len(long) <= 64 else NULL
        assert same(of(tmp_path, GOOD + long + GOOD), [ONE, row, ONE])


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_marks_and_line_ends_are_no_part_of_the_values(mark: bytes, end: bytes, last: bool, tmp_path: Path) -> None:
    content = mark + HEADER.replace(b"\n", end) + (GOOD * 3).replace(b"\n", end)
    path = written(tmp_path, content if last else content.removesuffix(end))
    assert same(encoded(path).tolist(), [ONE] * 3)
    assert Table.open(path, SCHEMA).frame()["ill"].tolist() == ["no"] * 3


def test_latin_text_is_read_if_it_is_declared(tmp_path: Path) -> None:
    body = "50,Köln,x,no\n".encode("latin-1") + GOOD
    assert same(of(tmp_path, body), [NULL, ONE])
    assert same(of(tmp_path, body, encoding="latin-1"), [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0], ONE])


def test_other_delimiters_are_declared(tmp_path: Path) -> None:
    path = written(tmp_path, (HEADER + GOOD).replace(b",", b"\t"))
    assert same(encoded(path, delimiter="\t").tolist(), [ONE])
    with pytest.raises(InvalidInput, match=r"not in t\.csv"):
        Table.open(path, SCHEMA)


def test_columns_in_another_order_and_without_ignored_ones(tmp_path: Path) -> None:
    path = written(tmp_path, b" ill , town,age\nno,Ulm,50\n")
    assert same(encoded(path).tolist(), [ONE])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\n50\n", "no header"),
        (b"\r\n", "no header"),
        (b"age,town,ill\r50,Ulm,no\r", "no header"),
        (b"age,t\xf6wn,ill\n", "no header"),
        (b'age,"town,ill\n', "no header"),
        (b"age,town\n", "['ill'] of the schema are not in"),
        (b"Age,Town,Ill\n", "['age', 'town', 'ill'] of the schema are not in"),
        (b"age,town,ill,extra\n", "['extra'] of t.csv have no entry"),
        (b"age,town,ill,age\n", "columns 1 and 4"),
        (codecs.BOM_UTF16_LE + "age".encode("utf-16-le"), "UTF-16"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_a_fault_of_the_file_is_refused(content: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        Table.open(written(tmp_path, content), SCHEMA)
    assert told in str(refused.value)


def test_a_record_in_the_place_of_a_header_is_not_told(tmp_path: Path) -> None:
    for content in (b"50,SECRET,SECRET,no\n", b"SECRET\xff\n", b'"SECRET\n', b"SECRET\rSECRET"):
        with pytest.raises(InvalidInput) as refused:
            Table.open(written(tmp_path, content), SCHEMA)
        assert "SECRET" not in str(refused.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv", "a\0b"):
        with pytest.raises(InvalidInput, match="expected a readable csv or parquet file"):
            Table.open(path, SCHEMA)
    for content in (b"age,town,ill\n", b"PAR1", b"PAR1" + bytes(50) + b"PAR1"):
        with pytest.raises(InvalidInput, match="parquet file"):
            Table.open(written(tmp_path, content, "t.parquet"), SCHEMA)


def test_a_table_without_records_is_one_empty_frame(tmp_path: Path) -> None:
    frames = list(Table.open(written(tmp_path, HEADER), SCHEMA).frames())
    assert [frame.shape for frame in frames] == [(0, 3)]
    empty = pa.table(
        {"age": pa.array([], pa.int64()), "town": pa.array([], pa.string()), "ill": pa.array([], pa.string())}
    )
    parquet.write_table(empty, tmp_path / "e.parquet")
    assert encoded(tmp_path / "e.parquet").shape == (0, 6)


def stored(tmp_path: Path, **columns: pa.Array) -> np.ndarray:
    length = len(next(iter(columns.values())))
    base = {"age": pa.array([50] * length), "town": pa.array(["Ulm"] * length), "ill": pa.array(["no"] * length)}
    parquet.write_table(pa.table({**base, **columns}), tmp_path / "t.parquet")
    return encoded(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "ages",
    [
        pa.array([50, 50], pa.int8()),
        pa.array([50, 50], pa.uint64()),
        pa.array([50, None], pa.int64()),
        pa.array([50.0, float("inf")], pa.float16()),
        pa.array([50.0, 1e300], pa.float64()),
        pa.array(["50", "fifty"]),
        pa.array(["5e1", None], pa.large_string()),
        pa.array([b"50", b"\xff"], pa.binary()),
        pa.array(["50", "x"]).dictionary_encode(),
        pa.array([50, None]).dictionary_encode(),
        pa.array([50, 3], pa.decimal128(10, 2)),
        pa.array([50, 10**70], pa.decimal256(76, 2)),
    ],
    ids=lambda array: str(array.type),
)
def test_any_type_of_a_parquet_column_is_read_cell_by_cell(ages: pa.Array, tmp_path: Path) -> None:
    assert same(stored(tmp_path, age=ages)[:1].tolist(), [ONE])


def test_a_large_whole_number_is_null_and_so_is_a_text_of_its_digits(tmp_path: Path) -> None:
    number = 2**60 + 1
    schema = Schema.from_dict({"columns": {"c": {"type": "categorical", "categories": ["x"]}}})
    for cells in ([number, None, number - 1], [str(number), None, str(number - 1)]):
        parquet.write_table(pa.table({"c": pa.array(cells)}), tmp_path / "t.parquet")
        rows = Encoder(schema).encode(next(Table.open(tmp_path / "t.parquet", schema).frames())).features
        assert rows[1].tolist() == [0.0, 1.0]
        assert np.isnan(rows[[0, 2]]).all()


def test_text_that_is_no_text_is_a_null_record(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 3, 4, 7], np.int32).tobytes()), pa.py_buffer(b"Ulm\xffUlm")]
    )
    assert same(stored(tmp_path, town=broken).tolist(), [ONE, NULL, ONE])


def test_times_beyond_the_calendar_do_not_raise(tmp_path: Path) -> None:
    schema = Schema.from_dict({"columns": {"t": {"type": "categorical", "categories": ["2020-01-01T00:00:00"]}}})
    for unit, second in (("ms", 10**3), ("us", 10**6)):
        column = pa.array([1577836800 * second, 2**62], pa.timestamp(unit))
        parquet.write_table(pa.table({"t": column}), tmp_path / "t.parquet")
        frames = list(Table.open(tmp_path / "t.parquet", schema).frames())
        features = Encoder(schema).encode(frames[0]).features
        assert features[0].tolist() == [1.0, 0.0]
        assert np.isnan(features[1]).all()


@pytest.mark.parametrize(
    ("age", "told"),
    [
        (pa.array([[50]]), "lists or records"),
        (pa.array([{"a": 1}]), "lists or records"),
        (pa.array([0], pa.timestamp("s")), "dates or times"),
        (pa.array([0], pa.date32()), "dates or times"),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_a_type_that_holds_no_such_values_is_refused(age: pa.Array, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=told):
        stored(tmp_path, age=age)


def test_a_damaged_parquet_file_is_refused_without_its_text(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = {"age": list(range(100)) * 500, "town": ["Ulm"] * 50_000, "ill": ["no"] * 50_000}
    parquet.write_table(pa.table(table), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"t\.parquet"):
        encoded(path)


def test_names_with_dots_are_plain_names_in_parquet(tmp_path: Path) -> None:
    names = ["a", "a.b", "a.b.c", ""]
    schema = Schema.from_dict({"columns": {name: {"type": "numeric", "bounds": [0, 9]} for name in names}})
    parquet.write_table(pa.table({name: [place] for place, name in enumerate(names)}), tmp_path / "t.parquet")
    (frame,) = Table.open(tmp_path / "t.parquet", schema).frames()
    assert frame.iloc[0].tolist() == [0, 1, 2, 3]


def test_csv_and_parquet_and_chunks_of_any_size_agree(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": random.integers(-10, 120, 500),
            "town": random.choice(["Ulm", "Köln", "a,b", "?"], 500),
            "note": "n",
            "ill": random.choice(["no", "yes"], 500),
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    whole = encoded(tmp_path / "t.csv")
    assert 0 < np.isnan(whole).all(axis=1).sum() < 500
    assert np.array_equal(whole, encoded(tmp_path / "t.parquet"), equal_nan=True)
    for path in (tmp_path / "t.csv", tmp_path / "t.parquet"):
        table = Table.open(path, SCHEMA)
        assert table.length() == 500
        assert np.array_equal(Encoder(SCHEMA).encode(table.frame()).features, whole[:, :-1], equal_nan=True)
        assert [len(part) for part in table.frames(rows=200)] == [200, 200, 100]


def test_a_wide_table_is_read_in_fewer_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_types, "_CELLS", 100)  # ten a record: four cells, and what three of them become
    table = Table.open(written(tmp_path, HEADER + GOOD * 25), SCHEMA)
    assert [len(frame) for frame in table.frames()] == [10, 10, 5]


@pytest.mark.slow
def test_ten_thousand_columns(tmp_path: Path) -> None:
    names = [f"c{place}" for place in range(10_000)]
    schema = Schema.from_dict(
        {"columns": {name: {"type": "numeric", "bounds": [0, 9], "missing": "null"} for name in names}}
    )
    line = ",".join(["3"] * 10_000)
    path = written(tmp_path, (",".join(names) + f"\n{line}\n{line},4\n{line}\n").encode())
    features = np.concatenate([Encoder(schema).encode(frame).features for frame in Table.open(path, schema).frames()])
    assert features.shape == (3, 10_000)
    assert np.isnan(features).all(axis=1).tolist() == [False, True, False]


MEASURE = """
import resource, sys
from dpilot.data.encoder import Encoder
from dpilot.data.files import Table
from dpilot.data.schema import Schema
schema = Schema.from_dict({"columns": {
    "age": {"type": "numeric", "bounds": [0, 100]},
    "town": {"type": "categorical", "categories": ["Ulm", "Bonn"]},
    "note": {"role": "ignored"},
    "ill": {"type": "categorical", "categories": ["no", "yes"], "role": "target"}}})
total = 0
for frame in Table.open(sys.argv[1], schema).frames(rows=20_000):
    total += len(Encoder(schema).encode(frame).features)
print(total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(path: Path) -> tuple[int, int]:
    """The records read and the most memory held, in KiB, by a process of its own."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    records, memory = map(int, done.stdout.split())
    return records, memory


def many(path: Path, megabytes: int) -> Path:
    block = b"50,Ulm,some words that nobody reads,no\n" * 25_000
    with path.open("wb") as file:
        file.write(HEADER)
        for _ in range(megabytes):
            file.write(block)
    return path


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    small, large = (peak(many(tmp_path / f"{size}.csv", size)) for size in (2, 16))
    assert (small[0], large[0]) == (50_000, 400_000)
    assert large[1] - small[1] < 6 * 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_a_file_of_hundreds_of_megabytes(tmp_path: Path) -> None:
    small, large = (peak(many(tmp_path / f"{size}.csv", size)) for size in (2, 400))
    assert large[0] == 10_000_000
    assert large[1] - small[1] < 12 * 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_a_parquet_file(tmp_path: Path) -> None:
    piece = pa.table({"age": [50] * 100_000, "town": ["Ulm"] * 100_000, "ill": ["no"] * 100_000})
    found = []
    for pieces in (4, 64):
        path = tmp_path / f"{pieces}.parquet"
        with parquet.ParquetWriter(path, piece.schema, compression="none", use_dictionary=False) as writer:
            for _ in range(pieces):
                writer.write_table(piece)
        found.append(peak(path))
    assert found[1][0] == 6_400_000
    assert found[1][1] - found[0][1] < 24 * 1024
