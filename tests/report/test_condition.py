"""The health of the data on the page: the largest flaw first, loud where records are lost, silent in old records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.report import page
from dpilot.report.condition import condition, is_health
from tests.report.samples import fitted, health, noisy_share
from tests.report.test_page import seen

shares = st.tuples(st.floats(0, 1), st.floats(0, 0.6))


@given(st.lists(shares, max_size=40), st.floats(0, 1))
def test_flaws_are_sorted_and_loud_where_they_are_sure(found: list[tuple[float, float]], usable: float) -> None:
    flaws = [noisy_share("missing", f"c{i}", value, room) for i, (value, room) in enumerate(found)]
    told = condition(health(usable, *flaws))
    assert told is not None
    values = {flaw["column"]: flaw for flaw in flaws}
    shown = [values[flaw.column]["value"] for flaw in told.flaws]
    sure = sorted((f["value"] for f in flaws if f["value"] > 1.7 * (f["high"] - f["value"])), reverse=True)
    assert shown == sure[:20]
    assert told.rest.startswith(f"{len(flaws) - len(shown)} ") == (len(flaws) > len(shown))
    for flaw in told.flaws:
        assert flaw.loud == (values[flaw.column]["low"] > 0.1)
        assert flaw.share.startswith("at most") == (values[flaw.column]["low"] <= 0)
    assert told.loud == (min(usable + 0.01, 1) < 0.9)
    assert len(told.alarms) == told.loud + sum(flaw.loud for flaw in told.flaws)


def test_lost_records_are_an_alarm_on_the_page() -> None:
    record = fitted(health=health(0.3, noisy_share("unknown category", "smokes", 0.68)))
    text = seen(page.render(record))
    assert "Many records could not be used" in text
    assert "Only about 30 % of the records could be used (29 to 31 %)." in text
    assert "Column 'smokes': unknown category in about 68 % of the records (67 to 69 %)." in text
    assert "Many records" not in seen(page.render(fitted()))


@pytest.mark.parametrize(
    ("usable", "judged", "said"),
    [
        ({"value": 0.6, "low": 0.1, "high": 1.0}, False, "Too few records for this budget"),
        ({"value": 0.6, "low": 0.4, "high": 0.8}, True, "Only 40 to 80 % of the records could be used."),
        ({"value": 0.97, "low": 0.95, "high": 0.99}, True, "About 97 % of the records could be used (95 to 99 %)."),
    ],
)
def test_a_share_that_is_not_known_is_no_number(usable: dict[str, float], judged: bool, said: str) -> None:
    told = condition({**health(judged=judged), "usable": {"what": "usable", "column": "", **usable}})
    assert told is not None
    assert told.sentence.startswith(said)


def test_a_record_without_health_has_no_such_section() -> None:
    assert condition(None) is None
    text = page.render(fitted(health=None))
    assert 'id="health"' not in text
    assert "#health" not in text


@pytest.mark.parametrize(
    "broken",
    [
        3,
        {},
        {"usable": None, "columns": []},
        {**health(), "columns": {}},
        {**health(), "columns": [{"what": "missing"}]},
        {**health(), "usable": {**noisy_share("usable", "", 0.5), "high": float("nan")}},
        {**health(), "usable": {**noisy_share("usable", "", 0.5), "what": 1}},
    ],
)
def test_another_form_is_refused(broken: Any) -> None:
    assert not is_health(broken)
    assert page.faults(fitted(health=broken)) == ["health has another form than fits write"]


def test_what_a_fit_writes_has_the_form() -> None:
    from dpilot.fit.health import Health, NoisyShare

    made = Health(NoisyShare("usable", "", 0.9, 0.8, 1.0), (NoisyShare("missing", "age", 0.1, 0.0, 0.2),), 0.5, True)
    assert is_health(made.to_dict())
    told = condition(made.to_dict())
    assert told is not None
    assert told.flaws == ()
    assert "none is in more than 20 % of the records (age: missing)" in told.rest
