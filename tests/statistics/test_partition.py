"""Thresholded partition selection: its law, its price, and what estimators make of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from dpilot import AutoClassifier, Ledger, audit
from dpilot.errors import InvalidInput
from dpilot.linear import LogisticRegression
from dpilot.noise import seeded_noise
from dpilot.privacy import Budget, accountant
from dpilot.privacy.events import ApproxDP, Composed, Gaussian
from dpilot.statistics import partitions, partitions_event, threshold_for
from tests.statistics.helpers import Anything

SIGMA = 2.0
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4000, 2))
Y = np.where(X[:, 0] > 0, "yes", "no").tolist()


def chances(values, threshold, runs=4000, sigma=SIGMA):
    """How often each value is released."""
    noise, seen = seeded_noise(1), dict.fromkeys(values, 0)
    for _ in range(runs):
        found = partitions(values, noise_multiplier=sigma, threshold=threshold, receipt=Anything(), noise=noise)
        for value in found:
            seen[value] += 1
    return seen, runs


def agrees(count, runs, chance):
    return binomtest(count, runs, chance).pvalue > 1e-6


def test_each_value_is_released_with_the_chance_that_the_proof_says():
    values, threshold = ["a"] * 5 + ["b"] * 2 + ["alone"], 4.0
    seen, runs = chances(values, threshold)
    for value, count in {"a": 5, "b": 2, "alone": 1}.items():
        assert agrees(seen[value], runs, norm.sf((threshold - count) / SIGMA))
    delta = partitions_event(SIGMA, threshold).events[1].delta
    assert agrees(seen["alone"], runs, delta)


def test_half_the_noise_or_a_lower_threshold_would_be_seen():
    values, threshold = ["a"] * 5 + ["alone"], 4.0
    told = partitions_event(SIGMA, threshold).events[1].delta
    for wrong in ({"threshold": 3.0}, {"threshold": threshold, "sigma": SIGMA / 2}):
        seen, runs = chances(values, **wrong)
        assert not agrees(seen["alone"], runs, told)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_a_threshold_costs_no_more_than_the_delta_it_is_for(delta):
    threshold = threshold_for(SIGMA, delta)
    gaussian, chance = partitions_event(SIGMA, threshold).events
    assert gaussian == Gaussian(SIGMA)
    assert 0.99 * delta < chance.delta <= delta


@pytest.mark.filterwarnings("ignore")
def test_both_neighbours_are_within_the_price_exactly():
    """Of one value held by nobody else, and of one held by others: by the exact law of the two-point outputs."""
    epsilon, delta, threshold = 0.5, 1e-4, threshold_for(SIGMA, 1e-4)
    whole = accountant.delta(Composed((Gaussian(SIGMA), ApproxDP(0.0, delta))), epsilon)
    for count in (0, 1, 5, 9, 20):
        before = norm.sf((threshold - count) / SIGMA) if count else 0.0
        after = norm.sf((threshold - count - 1) / SIGMA)
        for p, q in ((after, before), (before, after), (1 - after, 1 - before), (1 - before, 1 - after)):
            assert p <= np.exp(epsilon) * q + whole + 1e-15


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_ledger", [True, False])
def test_classes_are_bought_within_the_total_and_one_record_shows_none(tmp_path, with_ledger):
    path = tmp_path / "a.ledger"
    labels = [*Y[:-1], "a name"]
    model = LogisticRegression(epsilon=3.0, delta=1e-5, classes="buy", ledger=path if with_ledger else None)
    model.fit(X, labels)
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.privacy_.spent.epsilon, model.privacy_.spent.delta) == pytest.approx((3.0, 1e-5))
    assert model.privacy_.entries[0].purpose == "classes"
    assert model.classes == "buy"
    assert model.score(X, Y) > 0.8
    if with_ledger:
        spent = Ledger.read(path).spent()
        assert spent.epsilon <= 3.0
        assert spent.delta <= 1e-5
        assert Ledger.read(path).budget == Budget(3.0, 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_labels_that_are_equal_are_one_class_and_none_is_an_error():
    labels = [(1, "1", 1.0)[place % 3] if row > 0 else 0 for place, row in enumerate(X[:, 0])]
    labels[:3] = [None, float("nan"), [1, 2]]
    assert LogisticRegression(epsilon=3.0, delta=1e-5, classes="buy").fit(X, labels).classes_.tolist() == [0, 1]
    with pytest.raises(InvalidInput, match="no class was found"):
        LogisticRegression(epsilon=0.1, delta=1e-5, classes="buy").fit(X[:300], Y[:300])
    with pytest.raises(InvalidInput, match="beside units"):
        LogisticRegression(classes="buy").fit(X, Y, units=list(range(4000)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_classifier_that_tunes_itself_buys_classes_too():
    model = AutoClassifier(epsilon=3.0, delta=1e-5, classes="buy").fit(X, Y)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.record_.privacy["epsilon"] == model.privacy_.spent.epsilon == pytest.approx(3.0)
    assert model.score(X, Y) > 0.9


@pytest.mark.filterwarnings("ignore")
def test_a_record_more_changes_no_release_by_more_than_its_bound(replay):
    def run(rows):
        table = np.array(rows)
        labels = [str(int(value)) for value in table[:, 2]]
        LogisticRegression(epsilon=30.0, delta=1e-3, classes="buy", size=60).fit(table[:, :2], labels)

    table = np.column_stack([np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2])
    table[-1, 2] = 7  # a label that nobody else has
    replay(run, pairs=audit.neighbours(table)[:1])


def test_a_value_of_another_type_is_no_value_and_moves_no_text():
    values = ["1"] * 90

    def run(data):
        return partitions(data, noise_multiplier=SIGMA, threshold=12.0, receipt=Anything())

    for odd in (1, True, 1.0, [1], {}, b"1"):
        assert run([*values, odd]) == ["1"]
