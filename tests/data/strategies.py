"""Schemas and cells of all kinds, for properties that must hold for every one."""

from __future__ import annotations

import datetime
import math
from typing import Any

from hypothesis import strategies as st

from dpilot.data.column import Column
from dpilot.data.schema import Schema

TEXTS = [
    "",
    "NA",
    "a",
    "b",
    " a ",
    "A",
    "1",
    "1.0",
    "007",
    "true",
    "False",
    "nan",
    "inf",
    "2020-01-01",
    "1,000",
    "ü",
    "-5",
]

cells = st.one_of(
    st.sampled_from(TEXTS),
    st.integers(-10, 10),
    st.floats(-10, 10),
    st.sampled_from([None, math.nan, math.inf, True, False, 2**53, 1e300, 1 + 0j, 2j, b"a", [1], object()]),
    st.dates(datetime.date(2019, 12, 30), datetime.date(2020, 1, 2)),
)


@st.composite
def used_columns(draw: st.DrawFn, name: str, role: str = "feature") -> Column:
    """A column with a domain, of a given role."""
    missing = None if role in ("target", "protected") else draw(st.sampled_from(["indicator", "null"]))
    if role != "protected" and draw(st.booleans()):
        lower = draw(st.floats(-20, 20))
        bounds = (lower, lower + draw(st.floats(0.5, 20)))
        return Column(
            name, "numeric", bounds, role=role, missing=missing, outside=draw(st.sampled_from(["null", "clamp"]))
        )
    least = 2 if role == "target" else 1
    chosen = draw(
        st.lists(st.sampled_from(["", "a", "b", "A", "1", "007", "2020-01-01", "NA"]), min_size=least, unique=True)
    )
    return Column(name, "categorical", categories=tuple(chosen), role=role, missing=missing)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """One feature or more, perhaps a target, and up to two protected columns."""
    roles = {"x": "feature", "c": "feature"}
    roles |= {"t": "target"} if draw(st.booleans()) else {}
    roles |= dict.fromkeys(("g", "h")[: draw(st.integers(0, 2))], "protected")
    columns = {name: draw(used_columns(name, role)) for name, role in roles.items()}
    return Schema(columns, tuple(draw(st.lists(st.sampled_from(["", "NA", "-5", "1"]), unique=True))))


@st.composite
def tables(draw: st.DrawFn, schema: Schema) -> dict[str, list[Any]]:
    """Cells of any kind for the columns of a schema."""
    rows = draw(st.integers(0, 6))
    return {column.name: draw(st.lists(cells, min_size=rows, max_size=rows)) for column in schema.used}
