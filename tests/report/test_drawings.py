"""Axes, curves and figures: every number of a picture lies inside it, whatever came in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.errors import InvalidInput
from dpilot.metrics.counts import Counts, Layout
from dpilot.metrics.scores import scores
from dpilot.privacy import events as known
from dpilot.records import FitRecord, MetricRecord, StepRecord
from dpilot.report import curves, entries
from dpilot.report.confusion import confusion
from dpilot.report.course import course
from dpilot.report.curves import tradeoff
from dpilot.report.entries import spending
from dpilot.report.figures import families
from dpilot.report.groups import groups
from dpilot.report.scale import Scale
from tests.report.samples import STEP, metric, metrics

anything = st.floats(allow_nan=True, allow_infinity=True)
EXTREMES = [
    [],
    [0.0],
    [5e-324],
    [1.7e308, -1.7e308],
    [1e16, 1e16 + 2],
    [5e-324, 1.7e308],
    [1e-320, 2e-320],
    [-0.0, 0.0],
]


def _holds(axis: Scale, values: list[float]) -> None:
    assert axis.low < axis.high
    places = [axis.place(value) for value in values if math.isfinite(value)]
    ticks = axis.ticks()
    assert all(0 <= place <= 100 for place in [*places, *(tick.place for tick in ticks)])
    assert 1 <= len(ticks) <= 9
    assert not any(word in tick.label for tick in ticks for word in ("nan", "inf", "not"))


@given(st.lists(anything, max_size=8))
def test_an_axis_holds_its_values(values: list[float]) -> None:
    _holds(Scale.over(values), values)


@pytest.mark.parametrize("values", EXTREMES)
def test_an_axis_holds_extreme_values(values: list[float]) -> None:
    _holds(Scale.over(values), values)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(0, 1), st.floats(0, 1))
def test_an_axis_keeps_order_and_proportion(low: float, span: float, a: float, b: float) -> None:
    axis = Scale(low, low + span)
    assert axis.place(low + a * span) == pytest.approx(100 * a, abs=1e-3)
    assert (axis.place(low + a * span) <= axis.place(low + b * span)) == (low + a * span <= low + b * span) or a == b


def test_a_wide_range_is_drawn_by_decades() -> None:
    axis = Scale.over([1e-3, 1e3])
    assert axis.logarithmic
    assert axis.place(1.0) == pytest.approx(50)
    assert not Scale.over([-1e-3, 1e3]).logarithmic


def test_thinning_keeps_every_peak_and_the_ends() -> None:
    points = [(float(x), 0.0) for x in range(50_000)]
    points[31_337] = (31_337.0, 9.0)
    points[40_001] = (40_001.0, -9.0)
    kept = curves.thin(points)
    assert {points[0], points[31_337], points[40_001], points[-1]} <= set(kept)
    assert kept == sorted(kept)
    assert len(kept) <= 602


@pytest.mark.parametrize("thresholds", [(), (math.nan,), (math.inf, -math.inf)])
def test_nothing_to_draw_gives_no_picture(thresholds: tuple[float, ...]) -> None:
    assert course(FitRecord({"epsilon": 0, "delta": 0}, {}, {}, (), (), thresholds, (), (), ())) in (
        None,
        ((), None, ""),
    )


def test_one_threshold_is_a_mark_and_no_line() -> None:
    chart = curves.chart("threshold", "step", "threshold", {"threshold": [(1, 0.7)]})
    assert chart is not None
    (series,) = chart.series
    assert (series.path, len(series.marks)) == ("", 1)
    assert chart.summary == "Threshold: 0.7 at step 1."


def test_series_of_one_chart_differ_by_shape_and_dash() -> None:
    named = {f"loss against step: {name}": ((0.0, 1.0), (1.0, float(i))) for i, name in enumerate("abcd")}
    (chart,) = curves.charts(named, steps=True)
    assert len({series.shape for series in chart.series}) == len({series.dash for series in chart.series}) == 4


def test_a_line_has_no_marks_among_points() -> None:
    fitted, tried = ((0.0, 0.0), (1.0, 1.0)), ((0.2, 0.3), (0.4, 0.4))
    (chart,) = curves.charts({"r against epsilon: fitted": fitted, "r against epsilon: trials": tried}, steps=False)
    assert [(bool(series.path), len(series.marks)) for series in chart.series] == [(True, 0), (False, 2)]


def test_the_picture_of_a_figure_is_in_proportion() -> None:
    (family,) = families([MetricRecord("accuracy", "", 0.5, (0.45, 0.55), (0.4, 0.6))])
    (row,) = family.rows
    assert row.at == pytest.approx(50)
    assert row.noise_at is not None
    assert row.sampling_at is not None
    inner, outer = (right - left for left, right in (row.noise_at, row.sampling_at))
    assert outer == pytest.approx(2 * inner)


def test_an_exact_figure_has_no_noise_interval() -> None:
    (family,) = families([MetricRecord("accuracy", "", 0.5, (0.5, 0.5), (0.3, 0.7), exact=True)])
    assert (family.rows[0].noise, family.rows[0].noise_at) == ("none: exact", None)


def test_figures_on_other_scales_do_not_share_an_axis() -> None:
    found = families([metric("accuracy", 0.8), MetricRecord("rmse", "", 4711.0, (4000, 5000), (3000, 6000))])
    assert [(family.title, family.rows[0].value) for family in found] == [
        ("Overall", "80 %"),
        ("Root mean squared error", "4,711"),
    ]


def test_the_names_that_scores_writes_are_known() -> None:
    titles = [family.title for family in families(metrics(("a", "b"), ("x", "y")))]
    assert titles == ["Overall", "Extremes and gaps", "Accuracy by group", "By class"]


def test_a_confusion_table_has_each_cell_in_its_place() -> None:
    names = ("a", "b predicted c", "c")
    values = {(true, other): (3 * i + j) / 10 for i, true in enumerate(names) for j, other in enumerate(names)}
    cells = [metric("confusion", value, f"{a} predicted {b}") for (a, b), value in values.items()]
    table = confusion([*(metric("recall", 0.5, name) for name in names), *cells])
    assert table is not None
    assert table.classes == names
    assert [[cell.text for cell in row] for _, row in table.rows] == [
        ["0 %", "10 %", "20 %"],
        ["30 %", "40 %", "50 %"],
        ["60 %", "70 %", "80 %"],
    ]
    assert [[cell.right for cell in row].index(True) for _, row in table.rows] == [0, 1, 2]


def test_a_wide_confusion_table_becomes_its_largest_mistakes() -> None:
    names = [f"class {i}" for i in range(200)]
    cells = [
        metric("confusion", (i * 200 + j) / 40_000, f"{a} predicted {b}")
        for i, a in enumerate(names)
        for j, b in enumerate(names)
    ]
    table = confusion(cells)
    assert table is not None
    assert table.rows == ()
    assert len(table.mistakes) == 20
    assert table.mistakes[0][:2] == ("class 199", "class 198")


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), min_size=9, max_size=9))
def test_no_cell_is_drawn_that_may_be_nothing_but_noise(figures: list[tuple[float, float]]) -> None:
    names = [f"{a} predicted {b}" for a in "abc" for b in "abc"]
    cells = [metric("confusion", value, of, room, room) for of, (value, room) in zip(names, figures, strict=True)]
    table = confusion(cells)
    assert table is not None
    hidden = [not (cell.sampling[0] > 0 or _width(cell) <= 0.1) or _width(cell) > 0.3 for cell in cells]
    drawn = [cell for _, row in table.rows for cell in row]
    assert table.untold == sum(hidden)
    if drawn:
        assert [cell.text == "" for cell in drawn] == hidden
        assert all(cell.shade == 0 for cell in drawn if not cell.text)
    else:
        assert all(hidden)


def test_cells_of_public_records_are_always_drawn() -> None:
    cells = [MetricRecord("confusion", f"a predicted {b}", 0.5, (0.5, 0.5), (0.0, 1.0), exact=True) for b in "ab"]
    table = confusion(cells)
    assert table is not None
    assert table.untold == 0


def _width(figure: MetricRecord) -> float:
    return figure.sampling[1] - figure.sampling[0]


def test_mistakes_of_a_wide_table_are_not_noise() -> None:
    names = [f"class {i}" for i in range(20)]
    wide = [metric("confusion", 0.9, f"{a} predicted {b}", drawn=0.4) for a in names for b in names]
    table = confusion([*wide[:-2], metric("confusion", 0.2, "class 19 predicted class 18"), wide[-1]])
    assert table is not None
    assert [each[:3] for each in table.mistakes] == [("class 19", "class 18", "20 %")]
    assert table.untold == 399


@pytest.mark.parametrize(
    "event", [None, 3, {}, {"type": "Gaussian"}, {"type": "New", "x": [1]}, {"type": "Composed", "events": 1}]
)
def test_an_event_that_is_not_known_is_told_so_and_is_no_code(event: object) -> None:
    assert entries.describe(event)
    assert not set("{}[]=") & set(entries.describe(event))


_gaussian = st.builds(known.Gaussian, st.floats(0.1, 100))
_plain = st.one_of(
    _gaussian,
    st.builds(known.PureDP, st.floats(0.1, 3)),
    st.builds(known.PoissonSampled, st.floats(0.001, 0.999), _gaussian),
)
_events = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.builds(known.Repeated, inner, st.integers(1, 1000)), st.lists(inner, max_size=60).map(known.Composed)
    ),
    max_leaves=80,
)


@given(_events)
def test_words_of_any_event_are_words(event: known.Event) -> None:
    assert not set("{}[]=_") & set(entries.describe(known.to_dict(event)))


def test_equal_steps_are_told_once_with_their_number() -> None:
    steps = [*[known.Gaussian(57.9)] * 28, known.Composed([known.Gaussian(57.9), known.Gaussian(28.95)])]
    assert entries.describe(known.to_dict(known.Composed(steps))) == (
        "Gaussian noise, 57.9 times the most that one record can add, repeated 29 times; then "
        "Gaussian noise, 28.95 times the most that one record can add"
    )
    many = known.Composed([known.Gaussian(float(i)) for i in range(1, 60)])
    assert "53 more like these" in entries.describe(known.to_dict(many))


def test_every_event_has_words() -> None:
    all_of_them = [
        STEP,
        known.Repeated(STEP, 3),
        known.Composed([known.PureDP(0.5), known.ApproxDP(0.5, 1e-6)]),
        known.OneOf([known.ExponentialMechanism(0.25), STEP]),
        known.RepeatAndSelect(STEP, 10.0),
    ]
    told = [entries.describe(known.to_dict(event)) for event in all_of_them]
    assert not any("{" in text for text in told)
    assert set(known._ALLOWED) <= set(entries._SENTENCES)


def test_several_attributes_share_the_tables_of_their_figures() -> None:
    names = ("group accuracy", "worst-group accuracy", "demographic parity", "equal opportunity gap")
    groups, both = {"group accuracy": ("sex = f", "sex = m", "race = x")}, ("sex", "race")
    found = families([metric(name, 0.8, of) for name in names for of in groups.get(name, both)])
    assert [(family.title, [row.label for row in family.rows]) for family in found] == [
        ("Accuracy by group", ["sex = f", "sex = m", "race = x"]),
        (
            "Extremes and gaps",
            [f"{name}: {of}" for name in ("Worst group", "Demographic parity", "Equal opportunity gap") for of in both],
        ),
    ]


def gap(name: str, of: str, value: float, room: float = 0.02) -> MetricRecord:
    around = (value - room, value + room)
    return MetricRecord(name, of, value, around, around)


def two_classes(predicted: float, missed: float = 0.0, wrong: float = 0.0, room: float = 0.02) -> list[MetricRecord]:
    """Figures of two sexes and the classes "well" and "ill": those of "f", and of "m" the same with the other sign."""
    gaps = {
        "group against others": -wrong,
        "predicted against others": predicted - missed,
        "true positives against others": -missed,
        "false positives against others": predicted,
    }
    return [
        *(gap(name, f"sex = {who}{'' if name.startswith('group') else ', class ill'}", sign * value, room)
          for name, value in gaps.items() for who, sign in (("f", 1), ("m", -1))),
        *(recall(f"sex = {who}", true, told=True) for who in "fm" for true in ("well", "ill")),
    ]  # fmt: skip


def test_who_is_worse_off_follows_from_what_is_good_to_get() -> None:
    metrics = two_classes(predicted=0.1, missed=-0.2)
    well, ill, open_ = (groups(metrics, good) for good in ("well", "ill", ""))
    assert well is not None
    assert ill is not None
    assert open_ is not None
    assert well.short == "Yes, surely: for sex = f."
    assert well.sentences[0] == (
        "sex: surely worse for f: of those truly “well”, more are wrongly predicted “ill” than of all others, by 8 to "
        "12 points."
    )
    assert ill.short == "Yes, surely: for sex = m."
    assert "more are wrongly predicted “well” than of all others, by 18 to 22 points" in ill.sentences[0]
    assert open_.short == "Yes, surely; for whom depends on what is good to get, which was not filled in."
    first, second, *_ = open_.sentences
    assert first == well.sentences[0].replace("sex:", "sex, if “well” is good to get:")
    assert second == ill.sentences[0].replace("sex:", "sex, if “ill” is good to get:")
    assert [table.columns[0] for each in (well, ill) for table in each.tables] == [
        "Truly “well”, predicted “ill”",
        "Truly “ill”, predicted “well”",
    ]


def test_who_is_worse_off_in_both_kinds_of_mistakes_is_so_whatever_is_good_to_get() -> None:
    found = groups(two_classes(predicted=0.1, missed=0.2, wrong=0.15))
    assert found is not None
    assert found.short == "Yes, surely: for sex = f, whatever is good to get."
    assert "sex, also sure: for f it is wrong more often than for all others, both kinds" in found.sentences[2]


def test_mistakes_alone_are_worse_in_part() -> None:
    metrics = two_classes(predicted=0.01, missed=0.01, wrong=0.1)
    known, open_ = groups(metrics, "well"), groups(metrics)
    assert known is not None
    assert open_ is not None
    assert known.short == (
        "Partly: mistakes in all are surely more for sex = f, but being wrongly predicted “ill” is not surely more for "
        "any group."
    )
    assert known.sentences[0] == (
        "sex: no sure difference in how often those truly “well” are wrongly predicted “ill” (f 20 %, m 20 %); the "
        "largest, 1 points for f, may in truth be anything from −1 to 3 points."
    )
    assert known.sentences[1] == (
        "sex, but sure: for f it is wrong more often than for all others, both kinds of mistakes together, by 8 to 12 "
        "points."
    )
    assert open_.short == (
        "Partly: mistakes in all are surely more for sex = f, but each kind of mistake alone is not surely more for "
        "any group."
    )
    quiet = groups(two_classes(predicted=0.01))
    assert quiet is not None
    assert quiet.short.startswith("Not surely: no difference that is to the worse of a group")


def test_no_two_numbers_of_a_group_seem_to_contradict_each_other() -> None:
    """The one interval beside a group is that of its verdict; the share itself stands without one."""
    found = groups(two_classes(predicted=0.1, missed=-0.2), "well")
    assert found is not None
    (table,) = found.tables
    for row in table.rows:
        for cell in row.cells:
            assert cell.ends is not None
            low, high = cell.ends
            assert (cell.verdict == "surely more") == (low > 50) == (cell.side == "more")
            assert (cell.verdict == "surely less") == (high < 50) == (cell.side == "less")
    assert [cell.rate for cell in table.rows[0].cells] == ["20 %", "20 %", "", ""]


def test_predictions_that_are_too_high_or_too_low_for_a_group_are_said_to_be() -> None:
    metrics = [gap("group mean residual", f"sex = {who}", value, 1.0) for who, value in (("f", 3.0), ("m", -2.0))]
    high, open_ = groups(metrics, "high"), groups(metrics)
    assert high is not None
    assert open_ is not None
    assert high.sentences == ("sex: surely worse for m: predictions are too low on average, by 1 to 3.",)
    assert open_.sentences[1] == (
        "sex, if a low prediction is good to get: surely worse for f: predictions are too high on average, by 2 to 4."
    )
    with pytest.raises(InvalidInput, match="expected one of 'high', 'low'"):
        groups(metrics, "yes")


def test_the_pareto_line_goes_from_the_model_to_what_treats_all_alike() -> None:
    top = [metric("accuracy", 0.86), metric("share of the most common class", 0.76)]
    drawn = tradeoff([*top, gap("false positive gap", "sex", 0.08), gap("equal opportunity gap", "sex", 0.1, 0.2)])
    assert drawn is not None
    assert [series.name for series in drawn.series] == ["false positive gap, sex"]
    assert "from 0.76 at gap between groups (0 is equal) 0 to 0.86" in drawn.summary
    assert tradeoff([*top, gap("false positive gap", "sex", 0.01)]) is None  # noise alone


def test_a_lottery_with_the_common_class_lies_on_the_line() -> None:
    """What the page says of the line, on a table: giving a share p the first class makes a gap 1 - p times as large."""
    table, p = np.array([[[50.0, 10], [5, 35]], [[30, 30], [4, 16]]]), 0.3
    mixed = np.stack([table[..., 0] + p * table[..., 1], (1 - p) * table[..., 1]], axis=-1)
    first, second = (
        {each.name: each.value for each in scores(Counts(Layout(("no", "yes"), ("f", "m"), "sex"), each, 0.0))}
        for each in (table, mixed)
    )
    for name in ("equal opportunity gap", "false positive gap", "selection gap"):
        assert second[name] == pytest.approx((1 - p) * first[name])
    common = first["share of the most common class"]
    assert second["accuracy"] == pytest.approx((1 - p) * first["accuracy"] + p * common)


def test_the_health_check_is_a_share_of_epsilon_where_epsilons_add_up_and_the_rest_shares_the_rest() -> None:
    paid = [("health of fit 1", 0.02), ("final run", 0.5), ("trial 1.2", 0.5)]
    ledger = [{"purpose": name, "part": None, "cost": {"epsilon": each, "delta": 1e-6}} for name, each in paid]
    assert [(each.purpose, each.share) for each in spending(ledger, 1.0)] == [
        ("health check", "2 % of epsilon"), ("final run", "about 50 %"), ("trial", "about 50 %"),
    ]  # fmt: skip
    assert all(each.share.startswith("about") for each in spending(ledger, None))


def test_the_length_of_noise_alone_is_that_of_the_mechanism_and_the_signal_what_is_left() -> None:
    steps = tuple(StepRecord(step, 1.0, 2.0, False, length=50.0) for step in range(10))
    plan = {"parameters": 100, "noise_multiplier": 1.5, "sample_rate": 0.1, "size": 1000}
    found = course(FitRecord({"epsilon": 1.0, "delta": 1e-6}, {}, plan, (), (), (), (), (), (), steps=steps))
    assert found is not None
    (drawn,) = [each for each in found.charts if each.title.startswith("Noise beside signal")]
    assert "Released: from 50 at" in drawn.summary
    assert "Noise alone: from 30 at" in drawn.summary  # 1.5 x 2 x sqrt(100)
    assert "Signal: what is left without the noise: from 40 at" in drawn.summary


def recall(of: str, true: str, *, told: bool) -> MetricRecord:
    around = (0.75, 0.85) if told else (0.0, 1.0)
    return MetricRecord("group recall", f"{of}, class {true}", 0.8, around, around)


def test_groups_of_different_classes_are_said_to_be_and_those_that_share_one_are_not() -> None:
    gaps = [gap("group against others", "group = a", 0.02), gap("group against others", "group = b", -0.02)]
    apart = [recall(f"group = {name}", true, told=name == true) for name in "ab" for true in "ab"]
    found, shared = groups([*gaps, *apart]), groups([*gaps, *apart[1:], recall("group = a", "b", told=True)])
    assert found is not None
    assert shared is not None
    assert found.sentences[-1].startswith("In no class can two groups be compared")
    assert not any("In no class" in each for each in shared.sentences)


def test_what_cannot_be_told_of_a_group_is_said_beside_what_can() -> None:
    rate = MetricRecord("group accuracy", "race = x", 0.8, (0.5, 1.0), (0.5, 1.0))
    gaps = {"race = x": 0.1, "race = y": -0.1, "race = z": -0.05, "age = a": 0.1, "age = b": -0.1}
    found = groups([rate, *(gap("group against others", of, each, 0.02 if of == "race = y" else 0.3)
                            for of, each in gaps.items())])  # fmt: skip
    assert found is not None
    assert found.sentences == (
        "race: surely worse for y: it is wrong more often than for all others, by 8 to 12 points.",
        "race, too few records to tell: x.",
        "age: too few records to tell whether it is worse for a group.",
    )
