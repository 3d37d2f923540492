"""What one cell is worth: the number it holds, and the text it is compared by, whatever type a container gave it.

A container has one type for a whole column, and one record can change it: whole numbers become floats, complex numbers
or texts, dates become times. A value keeps its ``number`` and its ``key`` through all of these.

>>> [key(value) for value in (1, 1.0, "1", "1.0", True, "true", 1 + 0j, b"1", np.float32(1))] == ["1"] * 9
True
>>> [number(value) for value in (2, "2.5", 2 + 0j, "true", None, "two", 2j)]
[2.0, 2.5, 2.0, 1.0, nan, None, None]
>>> [text(value) for value in ("a", 1, 1.0, 0.5, True, [1, 2])]
['a', '1', '1', '0.5', 'True', None]
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from decimal import Decimal
from numbers import Complex, Integral, Real
from typing import Any, Final, TypeVar

import numpy as np

Made = TypeVar("Made")
Else = TypeVar("Else")

WHOLE: Final = 2**53  # floats below hold every whole number; from here on two of them may be one float

_TRUTH: Final = {"True": "1", "true": "1", "False": "0", "false": "0"}
_SPELLED: Final = re.compile(r"-?(0|[1-9]\d*)(\.(0|\d*[1-9]))?([eE][+-]\d{1,3})?")  # as libraries write numbers
_TIME: Final = re.compile(r"(\d{4})-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?)?")

# a real number, as numpy and Python write it among complex ones
_COMPLEX: Final = re.compile(r"\(([-+.\deE]+|[-+]?nan|[-+]?inf)[+-]0j\)|-?(0)j")
_ZONED: Final = re.compile(r"\d{4}-\d\d-\d\d[T ].*(Z|[+-]\d\d(:?\d\d)?)")
_MASKED: Final = np.ma.masked  # what an array with a mask gives of a hidden cell
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # without a zone


def attempt(read: Callable[..., Made], *arguments: Any, otherwise: Else) -> Made | Else:
    """What ``read`` makes of a record or a cell, and ``otherwise`` if that raises.

    Guarantee:
        A record's own object never raises, and never ends the process by SystemExit: either would tell of that record.
        KeyboardInterrupt is the user's, and passes.
    """
    try:
        return read(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return otherwise


def number(cell: Any) -> float | None:
    """The number a cell holds, nan where it is missing, None where it holds none.

    Edge cases:
        A text is a number if Python's ``float`` reads it: "1e3", " 12 " and "nan" are, "1,000" and "12 years" are not.
        True, and the text of it, is 1. A complex number is one where its imaginary part is 0. A date is none.
        Nothing raises, whatever the cell is.
    """
    return attempt(_number, cell, otherwise=None)


def key(value: Any) -> str | None:
    """The text by which a value is compared with categories and classes: equal values of any type have one key.

    None for what is no single value or cannot be compared. A missing value has the key "nan".

    Edge cases:
        Texts are compared without the blanks around them, as the number, truth value or time that they spell: "1.0"
        and 1 are one, and so are "2020-01-01" and that day's midnight. "007" and "1.10" spell no number. A time with a
        zone is that of UTC, and a complex number without an imaginary part its real part, as texts too.
        A fraction that float32 holds is the one that float32 writes: 0.1 has one key in every precision.
        A whole number from 2^53 on has none, as a float would not tell it from the next.

    Example:
        >>> key(" a "), key("2020-01-01 00:00:00.000000"), key(datetime.date(2020, 1, 1)), key("007"), key([1])
        ('a', '2020-01-01', '2020-01-01', '007', None)
    """
    found = attempt(_key, value, otherwise=None)
    return found if type(found) is str else None  # a text of a class of its own may raise when it is compared


def moment(cell: Any) -> float | None:
    """The time a cell holds, in seconds from 1970 on; nan where it is missing, None where it holds none.

    Edge cases:
        A text is a time in the form that libraries write: 2020-01-31, 2020-01, 2020-01-31 12:30:00.5. No number is a
        time, nor is its text. A time with a zone (or Z, or +02:00) is that of UTC; one without is as it is written.
        Parts of a second below 1e-6 are cut. Nothing raises, whatever the cell is.

    Example:
        >>> moment("1970-01-02"), moment(datetime.date(1970, 1, 2)), moment("1970-01-02T02:00+02:00")
        (86400.0, 86400.0, 86400.0)
    """
    return attempt(_moment, cell, otherwise=None)


def moment_text(seconds: float) -> str:
    """A time as ``moment`` reads it: the day alone at midnight.

    >>> moment_text(86400.0), moment_text(86400.5)
    ('1970-01-02', '1970-01-02T00:00:00.500000')
    """
    return _time_key(_EPOCH + datetime.timedelta(seconds=seconds))


def text(value: object) -> str | None:
    """The text of one cell or category; None for what is no single value, or cannot be written.

    Edge cases:
        A whole float is written as the whole number it equals: one missing value turns a file's integers into floats,
        and must not change what the others are.
        Nothing raises, whatever the value is.
    """
    return attempt(_text, value, otherwise=None)


def is_missing(cell: Any) -> bool:
    """None and nan; pandas' NA and NaT by name, as the first does not compare and the package need not be loaded."""
    if cell is None or cell is _MASKED or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating | Decimal) and bool(cell != cell)


def _number(cell: Any) -> float | None:
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8")
    if isinstance(cell, str):
        written = _real_part(cell.strip())
        return float(_TRUTH.get(written, written))
    if is_missing(cell):
        return math.nan
    if isinstance(cell, Real | np.bool_ | Decimal):
        return float(cell)
    return float(cell.real) if isinstance(cell, Complex) and cell.imag == 0 else None


def _moment(cell: Any) -> float | None:
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8")
    if is_missing(cell):
        return math.nan
    if isinstance(cell, np.datetime64):
        cell = cell.astype("M8[us]").item()  # None, which is missing, for NaT
        return math.nan if cell is None else _moment(cell)
    if isinstance(cell, str):
        cell = _time_of(str(cell).strip())
    if not isinstance(cell, datetime.date):
        return None
    if not isinstance(cell, datetime.datetime):
        cell = datetime.datetime(cell.year, cell.month, cell.day)
    if cell.tzinfo is not None:
        cell = cell.astimezone(datetime.UTC)
    parts = (cell.year, cell.month, cell.day, cell.hour, cell.minute, cell.second, cell.microsecond)
    return (datetime.datetime(*parts) - _EPOCH).total_seconds()


def _time_of(written: str) -> datetime.datetime | None:
    spelled = _TIME.fullmatch(written)
    if spelled:
        return datetime.datetime.fromisoformat(written if spelled[3] else f"{written}-01")
    return datetime.datetime.fromisoformat(written) if _ZONED.fullmatch(written) else None


def _key(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if isinstance(value, str):
        return _text_key(str(value).strip())
    if is_missing(value):
        return "nan"
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, Integral):
        return str(int(value)) if abs(int(value)) < WHOLE else None
    if isinstance(value, Real | Decimal):
        return _number_key(float(value))
    if isinstance(value, Complex):
        return _number_key(float(value.real)) if value.imag == 0 else None
    if isinstance(value, datetime.date | datetime.time):
        return _time_key(value)
    return None


def _real_part(written: str) -> str:
    """The text of a complex number that is real, as that of its real part; any other as it is.

    >>> _real_part("(1.5+0j)"), _real_part("0j"), _real_part("(1+2j)")
    ('1.5', '0', '(1+2j)')
    """
    spelled = _COMPLEX.fullmatch(written)
    return spelled[1] or spelled[2] if spelled else written


def _text_key(written: str) -> str | None:
    written = _real_part(written)
    if written in _TRUTH:
        return _TRUTH[written]
    if written in ("nan", "NaN", "NaT"):  # how libraries write a missing number or time
        return "nan"
    if _SPELLED.fullmatch(written):
        return _number_key(float(written))
    spelled = _TIME.fullmatch(written)
    if spelled:
        return _time_from_text(written, spelled)
    zoned = attempt(_time_of, written, otherwise=None) if _ZONED.fullmatch(written) else None
    return written if zoned is None else _time_key(zoned)


def _number_key(value: float) -> str | None:
    if not math.isfinite(value):
        return repr(value)
    if value == int(value):
        return str(int(value)) if abs(value) < WHOLE else None
    single = np.float32(value) if abs(value) < float(np.finfo(np.float32).max) else np.float32(0)
    return repr(float(str(single))) if float(single) == value else repr(value)


def _time_key(value: datetime.date | datetime.time) -> str:
    if not isinstance(value, datetime.datetime):
        return value.isoformat()
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)  # polars gives a day beside it the zone UTC
    if value.time() == datetime.time():
        return value.date().isoformat()
    return datetime.datetime.isoformat(value.replace(fold=0))


def _time_from_text(written: str, spelled: re.Match[str]) -> str:
    year, month, day, hour, minute, second = (int(part) if part else None for part in spelled.groups()[:6])
    micro = int((spelled[7] or "").ljust(9, "0")[:6])
    try:
        time = datetime.datetime(year or 0, month or 0, day or 1, hour or 0, minute or 0, second or 0, micro)
    except ValueError:  # a day that is in no calendar is a text like any other
        return written
    return _time_key(time)


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        number = float(value)
        whole = math.isfinite(number) and number == int(number) and abs(number) < WHOLE
        return str(int(number)) if whole else repr(number)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return None
