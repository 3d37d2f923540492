"""One release, paid, of sensitivity 1: what is counted, and that nothing else can be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.metrics import counts
from dpilot.metrics.counts import EDGES, Layout, Scored, counts_event, exact_counts, noisy_counts
from dpilot.metrics.objective import OBJECTIVES, objective, place_objective
from dpilot.metrics.ranking import auc, average_precision
from dpilot.metrics.scores import scores
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from tests.metrics.helpers import LAYOUT, MANY, drawn, noisy, pairs_auc


@pytest.mark.parametrize("layout", [LAYOUT, MANY, Layout(("only",))])
def test_neighbours_move_the_release_by_no_more_than_its_bound(replay, layout, monkeypatch):
    monkeypatch.setattr(counts, "_ROWS", 8)  # the record that is added begins a block

    def run(data):
        scored = Scored(data[0], data[1], data[2] if len(layout.groups) > 1 else None)
        paid = Receipt(counts_event(2.0))
        return scores(noisy_counts(scored, layout, noise_multiplier=2.0, receipt=paid))

    records = drawn(40, 0, layout)
    group = np.zeros(40) if records.group is None else records.group
    results = replay(run, (records.target, records.probabilities, group))
    assert max(result.largest for result in results) == pytest.approx(1.0)


def test_it_does_not_matter_how_many_records_are_counted_at_a_time():
    records = drawn(40, 0, MANY)
    whole = exact_counts(records, MANY).predictions
    assert np.array_equal(counts._tables(records, MANY, rows=7)[0], whole)
    assert whole.sum() == 40


def test_counts_without_a_receipt_are_refused():
    empty = Receipt(Gaussian(1.0), drawn=Gaussian(1.0))
    with pytest.raises(BudgetExceeded):
        noisy_counts(drawn(10, 0), LAYOUT, noise_multiplier=1.0, receipt=empty)


def test_the_event_is_one_gaussian_of_the_stated_noise():
    assert counts_event(3.0) == Gaussian(3.0)
    counts = noisy(drawn(10, 0), LAYOUT, 3.0, 0)
    assert counts.deviation == counts.score_deviation == pytest.approx(3.0 * math.sqrt(2))
    spread = np.std([noisy(drawn(10, 0), LAYOUT, 3.0, seed).predictions for seed in range(400)], axis=0)
    assert np.allclose(spread, counts.deviation, rtol=0.15)


def test_null_records_are_in_no_cell():
    good = drawn(50, 2)
    extra = [(np.nan, 0.5, 0), (2, 0.5, 0), (0.5, 0.5, 0), (-1, 0.5, 1), (1, np.nan, 0), (1, 0.5, 9), (1, 0.5, np.inf)]
    for target, probability, group in extra:
        more = Scored(
            np.append(good.target, target),
            np.vstack([good.probabilities, [probability, 1 - probability]]),
            np.append(good.group, group),
        )
        found, wanted = exact_counts(more, LAYOUT), exact_counts(good, LAYOUT)
        assert np.array_equal(found.predictions, wanted.predictions)
        binned = [noisy(each, LAYOUT, 1.0, 7).scores for each in (more, good)]
        assert np.array_equal(*binned)


def test_public_records_are_scored_exactly_and_say_so():
    scored = drawn(500, 4)
    figures = {(each.name, each.of): each for each in scores(exact_counts(scored, LAYOUT))}
    right = scored.probabilities.argmax(1) == scored.target
    for each in figures.values():
        assert each.exact
        assert each.noise_interval == pytest.approx((each.value, each.value))
    assert figures["accuracy", ""].value == pytest.approx(right.mean())
    assert figures["group accuracy", "site = b"].value == pytest.approx(right[scored.group == 1].mean())
    recalls = [right[scored.target == place].mean() for place in (0, 1)]
    assert figures["macro accuracy", ""].value == pytest.approx(np.mean(recalls))
    assert figures["worst-class accuracy", ""].value == pytest.approx(min(recalls))
    positive = [(scored.probabilities.argmax(1)[scored.group == place] == 1).mean() for place in (0, 1)]
    assert figures["demographic parity", "site"].value == pytest.approx(min(positive) / max(positive))
    true_no = scored.target == 0
    for place, name in enumerate(LAYOUT.classes):
        predicted = scored.probabilities.argmax(1) == place
        assert figures["recall", name].value == pytest.approx(recalls[place])
        assert figures["precision", name].value == pytest.approx((scored.target[predicted] == place).mean())
    share = (scored.probabilities.argmax(1)[true_no] == 1).mean()
    assert figures["confusion", "no predicted yes"].value == pytest.approx(share)


def test_the_area_of_public_records_is_that_of_all_pairs():
    scored = drawn(2_000, 6)
    exact = auc(exact_counts(scored, LAYOUT))
    assert exact.value == pytest.approx(pairs_auc(scored.probabilities[:, 1], scored.target), rel=1e-12)
    sklearn = pytest.importorskip("sklearn.metrics")
    wanted = sklearn.roc_auc_score(scored.target, scored.probabilities[:, 1])
    assert exact.value == pytest.approx(wanted)
    assert exact.sampling_interval[0] < exact.value < exact.sampling_interval[1]


def test_the_average_precision_of_public_records_is_scikit_learns():
    sklearn = pytest.importorskip("sklearn.metrics")
    scored = drawn(2_000, 6)
    exact = average_precision(exact_counts(scored, LAYOUT))
    assert exact.value == pytest.approx(sklearn.average_precision_score(scored.target, scored.probabilities[:, 1]))
    assert exact.sampling_interval[0] < exact.value < exact.sampling_interval[1]


@pytest.mark.parametrize("base", [-1.0, -4.0], ids=["common", "rare"])
@pytest.mark.parametrize("slope", [1.0, 2.0, 3.0])
def test_the_binned_average_precision_is_close_to_the_exact_one(slope, base):
    rng = np.random.default_rng(0)
    logits = rng.normal(base, 1.5, 200_000)
    target = (rng.random(logits.size) < 1 / (1 + np.exp(-logits))).astype(float)
    chance = 1 / (1 + np.exp(-slope * logits))
    scored, layout = Scored(target, np.column_stack([1 - chance, chance])), Layout(("no", "yes"))
    binned = average_precision(noisy(scored, layout, 1e-6, 0))
    wanted = average_precision(exact_counts(scored, layout)).value
    assert binned.value == pytest.approx(wanted, abs=0.03)
    assert binned.noise_interval[0] < wanted < binned.noise_interval[1]


def test_an_average_precision_of_too_few_records_is_not_known():
    scored = Scored(np.append(np.zeros(500), 1.0), np.tile([0.45, 0.55], (501, 1)))
    assert average_precision(noisy(scored, Layout(("no", "yes")), 5.0, 0)).noise_interval == (0.0, 1.0)


@pytest.mark.parametrize("slope", [1.0, 2.0, 3.0])
def test_the_binned_area_is_close_to_that_of_all_pairs(slope):
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.0, 1.5, 200_000)
    target = (rng.random(logits.size) < 1 / (1 + np.exp(-logits))).astype(float)
    chance = 1 / (1 + np.exp(-slope * logits))  # calibrated, or overconfident
    scored = Scored(target, np.column_stack([1 - chance, chance]))
    binned, wanted = auc(noisy(scored, Layout(("no", "yes")), 1e-6, 0)), pairs_auc(chance, target)
    assert binned.value == pytest.approx(wanted, abs=0.008)
    assert binned.noise_interval[0] < wanted < binned.noise_interval[1] + 5e-4
    assert EDGES[len(EDGES) // 2] == 0.5


def test_a_score_that_says_nothing_has_an_interval_with_one_half():
    scored = Scored(np.arange(1000) % 2.0, np.tile([0.45, 0.55], (1000, 1)))
    low, high = auc(noisy(scored, Layout(("no", "yes")), 0.1, 0)).noise_interval
    assert low <= 0.5 <= high


def test_a_noisy_figure_does_not_call_itself_exact():
    assert not any(each.exact for each in scores(noisy(drawn(100, 1), LAYOUT, 1.0, 0)))


def test_three_classes_have_no_area_and_one_group_no_parity():
    names = {each.name for each in scores(noisy(drawn(100, 1, MANY), MANY, 1.0, 0))}
    common = {"share of the most common class", "accuracy above that share"}
    assert names == {"accuracy", *common, "macro accuracy", "worst-class accuracy", "recall", "precision", "confusion"}


def test_objectives_agree_with_the_figures():
    counts = exact_counts(drawn(500, 8), LAYOUT)
    right = counts.predictions[:, [0, 1], [0, 1]]
    by_class = np.column_stack([counts.predictions.sum((0, 2)) - right.sum(0), right.sum(0)])
    by_group = np.column_stack([counts.predictions.sum((1, 2)) - right.sum(1), right.sum(1)])
    figures = {each.name: each.value for each in scores(counts)}
    names = ("accuracy", "macro accuracy", "worst-class accuracy", "worst-group accuracy")
    for objective_name, name in zip(OBJECTIVES, names, strict=True):
        table = by_group if objective_name == "worst_group" else by_class
        assert objective(objective_name, table) == pytest.approx(figures[name])
    recalls = [each.value for each in scores(counts) if each.name == "recall"]
    for place, name in enumerate(LAYOUT.classes):
        assert objective(place_objective(f"recall:{name}", LAYOUT.classes), by_class) == pytest.approx(recalls[place])


def test_wrong_shapes_and_names_are_refused():
    with pytest.raises(InvalidInput, match="probabilities"):
        exact_counts(Scored(np.zeros(3), np.zeros((3, 3))), LAYOUT)
    with pytest.raises(InvalidInput, match="classes"):
        Layout(())
    with pytest.raises(InvalidInput, match="table"):
        objective("macro", np.zeros((3, 3)))
    with pytest.raises(InvalidInput, match="objective"):
        objective("best", np.zeros((3, 2)))
    for wrong in ("recall:3", "recall:yes", "recall:"):
        with pytest.raises(InvalidInput, match=r"recall|objective"):
            objective(wrong, np.zeros((3, 2)))
    with pytest.raises(InvalidInput, match="two classes"):
        average_precision(noisy(drawn(20, 0, MANY), MANY, 1.0, 0))
    with pytest.raises(InvalidInput, match="two classes"):
        auc(noisy(drawn(20, 0, MANY), MANY, 1.0, 0))


def test_noise_is_fresh_in_every_cell():
    nobody = Scored(np.empty(0), np.empty((0, 2)), np.empty(0))
    counts = noisy(nobody, LAYOUT, 1.0, 3)
    noise = np.concatenate([counts.predictions.ravel(), counts.scores.ravel()])
    assert len(set(noise.tolist())) == noise.size == 2 * 2 * 2 + 2 * (len(EDGES) + 1)
