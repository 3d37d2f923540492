"""Figures that are told: no number stands where the interval is too wide, and what is called sure seldom is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.metrics.counts import Counts, Layout
from dpilot.metrics.scores import scores
from dpilot.records import MetricRecord
from dpilot.report import page, words
from dpilot.report.figures import families, headline
from dpilot.report.verdict import UNTOLD, find_untold, value_text, verdict
from tests.report.samples import fitted, metric
from tests.report.test_page import seen

SHARES = ["accuracy", "macro accuracy", "AUC", "worst-group accuracy", "demographic parity", "equal opportunity gap"]
TRUTH = np.array([[[0.30, 0.05], [0.06, 0.08]], [[0.30, 0.05], [0.06, 0.10]]])


def released(records: int, deviation: float, seed: int, chances: np.ndarray = TRUTH) -> tuple[MetricRecord, ...]:
    """The figures of a table of counts that is drawn and noised by ``seed``."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(records, chances.ravel()).reshape(chances.shape) + rng.normal(0, deviation, chances.shape)
    layout = Layout(("no", "yes"), ("f", "m"), "sex")
    return tuple(each.record() for each in scores(Counts(layout, counts, deviation)))


@pytest.mark.parametrize("name", SHARES)
@given(st.floats(0, 1), st.floats(0, 0.5))
def test_a_share_is_a_number_only_if_its_interval_is_narrow(name: str, value: float, room: float) -> None:
    figure = metric(name, value, drawn=room)
    (family,) = families([figure])
    (row,) = family.rows
    wide = figure.sampling[1] - figure.sampling[0] > 0.3
    assert (row.value == UNTOLD, row.told, row.at is None) == (wide, not wide, wide)
    assert row.sampling_at is not None
    top = headline([figure])
    assert top is not None
    assert top.value == row.value


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_an_accuracy_is_lost_where_it_may_be_better_or_far_worse(value: float, down: float, up: float) -> None:
    ends = max(value - down, -1.0), min(value + up, 1.0)
    above = MetricRecord("accuracy above that share", "", value, ends, ends)
    figures = [metric("accuracy", 0.8), metric("share of the most common class", 0.7), above]
    lost = ends[0] < -0.1 and ends[1] > 0
    assert (figures[0] in find_untold(figures)) == lost
    found = verdict(figures)
    assert found is not None
    assert found.sure == (ends[0] > 0 or ends[1] < 0)
    assert ("cannot be told" in found.sentence) == (not found.sure)
    assert "70 %" in found.sentence
    assert "70 %" in found.short


def test_exact_figures_are_always_told() -> None:
    figure = MetricRecord("accuracy", "", 0.6, (0.6, 0.6), (0.1, 1.0), exact=True)
    assert find_untold([figure]) == frozenset()


@pytest.mark.parametrize(
    ("name", "value", "ends", "told"),
    [
        ("RMSE", 3.7, (0.0, 12.5), "at most 12.5"),
        ("RMSE", 3.7, (1.0, 12.5), "3.7"),
        ("group records", 4.0, (0.0, 31.0), "at most 31"),
        ("R^2", 0.4, (-0.3, 0.8), UNTOLD),
        ("R^2", 0.4, (0.1, 0.8), "0.4"),
        ("R^2", 0.01, (-0.1, 0.1), "0.01"),
        ("group mean residual", 4.0, (-30.0, 31.0), "4"),
    ],
)
def test_figures_of_numbers_are_told_as_far_as_they_are_known(
    name: str, value: float, ends: tuple[float, float], told: str
) -> None:
    figure = MetricRecord(name, "", value, ends, ends)
    assert value_text(figure, find_untold([figure]), words.number) == told


@pytest.mark.parametrize(("ends", "said"), [((0.1, 0.6), "surely better"), ((-0.9, -0.1), "surely worse")])
def test_a_model_of_numbers_is_judged_against_the_mean(ends: tuple[float, float], said: str) -> None:
    error = MetricRecord("RMSE", "", 3.0, (2.0, 4.0), (2.0, 4.0))
    record = fitted(metrics=(error, MetricRecord("R^2", "", sum(ends) / 2, ends, ends)))
    assert said in seen(page.render(record))


def test_a_record_that_does_not_say_is_not_judged() -> None:
    assert verdict([metric("accuracy", 0.9)]) is None
    text = seen(page.render(fitted(metrics=(metric("accuracy", 0.9),))))
    assert "90 %" in text
    assert "most common class" not in text


def test_hopeless_noise_leaves_no_number_at_the_top() -> None:
    tops = [headline(released(40, 40.0, seed)) for seed in range(100)]
    assert not any(top is not None and top.told for top in tops)


@pytest.mark.parametrize(("records", "deviation"), [(100, 3.0), (300, 15.0), (1000, 20.0)])
def test_an_accuracy_that_is_told_is_near_the_truth(records: int, deviation: float) -> None:
    truth = float(TRUTH[:, 0, 0].sum() + TRUTH[:, 1, 1].sum())
    found = [released(records, deviation, seed) for seed in range(200)]
    far = [each[0] for each in found if each[0] not in find_untold(each) and abs(each[0].value - truth) > 0.15]
    assert len(far) <= 20


def test_a_model_that_is_no_better_is_seldom_called_better() -> None:
    chances = np.array(
        [[[0.30, 0.05], [0.05, 0.10]], [[0.30, 0.05], [0.10, 0.05]]]
    )  # accuracy and share are 0.75, 0.70
    even = np.array([[[0.32, 0.03], [0.05, 0.10]], [[0.23, 0.12], [0.10, 0.05]]])  # both 0.70
    sure = {
        name: sum(bool(found and found.sure and "above" in found.short) for found in map(verdict, figures))
        for name, figures in {
            "better": [released(20_000, 10.0, seed, chances) for seed in range(200)],
            "even": [released(2_000, 10.0, seed, even) for seed in range(200)],
        }.items()
    }
    assert sure["better"] >= 195
    assert sure["even"] <= 14
