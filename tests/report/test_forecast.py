"""What another epsilon would buy: from released or declared numbers alone, and no surer than they are."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot import Budget
from dpilot.cli.main import main
from dpilot.errors import InvalidInput
from dpilot.report.forecast import EXPONENTS, KnownFigure, forecast, known_of
from tests.report.samples import fitted

BUDGET = Budget(1.0, 1e-6)


def test_exponents_are_quantiles() -> None:
    assert list(EXPONENTS) == sorted(EXPONENTS)
    assert len(EXPONENTS) == 19


@given(st.floats(0.01, 0.99), st.floats(0.1, 10), st.floats(1, 16))
def test_a_forecast_grows_with_the_budget_and_the_records(value: float, epsilon: float, factor: float) -> None:
    sure = KnownFigure("accuracy", value, (value, value), Budget(epsilon, 1e-6), 1_000)
    more, most = forecast(sure, epsilon=epsilon * factor), forecast(sure, epsilon=epsilon * factor, size=2_000)
    assert value - 1e-9 <= more.value <= most.value + 1e-9 <= 1 + 1e-9
    assert more.interval[0] - 1e-9 <= more.value <= more.interval[1] + 1e-9


def test_the_same_budget_forecasts_what_is_known() -> None:
    known = KnownFigure("accuracy", 0.8, (0.8, 0.8), BUDGET, 1_000)
    assert forecast(known).value == pytest.approx(0.8)
    assert forecast(known, size=2_000).value > 0.8
    noisy = forecast(KnownFigure("accuracy", 0.8, (0.7, 0.9), BUDGET, 1_000))
    reach = 0.1 * NormalDist().inv_cdf(0.9) / NormalDist().inv_cdf(0.975)
    assert noisy.interval == pytest.approx((0.8 - reach, 0.8 + reach), abs=0.01)


def test_a_record_tells_its_first_accuracy_and_one_without_is_refused() -> None:
    known = known_of(fitted())
    assert (known.value, known.size, known.budget.epsilon) == (0.8514, 32_561, 0.99931)
    with pytest.raises(InvalidInput, match="expected a run with figures"):
        known_of(fitted(metrics=()))
    with pytest.raises(InvalidInput, match="a share of 1"):
        KnownFigure("accuracy", 1.2, (1.2, 1.2), BUDGET, 10)


def test_the_command_takes_a_run_or_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(fitted().save(tmp_path))
    assert main(["forecast", run, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["epsilon"] for each in told["forecasts"]] == pytest.approx([0.499655, 1.99862, 3.99724, 0.99931])
    assert told["forecasts"][0]["value"] < 0.8514 < told["forecasts"][1]["value"]
    assert main(["forecast", "--value", "0.85", "--epsilon", "1", "--size", "20000", "--to-epsilon", "3"]) == 0
    assert "80% interval" in capsys.readouterr().out
    assert main(["forecast"]) == 2
    assert main(["forecast", run, "--value", "0.85"]) == 2
