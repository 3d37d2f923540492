"""Linear scaling: what it costs, what it decides and why, and that nothing else leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpilot import Budget, Ledger
from dpilot.audit.neighbours import Pair, neighbours
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy import gdp_epsilon, gdp_mu
from dpilot.privacy.events import Gaussian, Repeated, leaves
from dpilot.privacy.receipt import Receipt
from dpilot.tune import ProbeTask, SearchBox, linear_scaling, plan_scaling, train_at
from dpilot.tune.scoring import TrialScore, rankable, score
from dpilot.tune.task import HELD_OUT, TRAIN, Trial, fixed_noise
from tests.privacy import second_accountant
from tests.tune.helpers import BOX, BUDGET, LOUD, PretendedTask, arrays, probe, seen


def plan(budget=BUDGET, **options):
    return plan_scaling(budget, box=options.pop("box", BOX), **{"held_out_size": 5000, **options})


def of_part(stages, part):
    return [stage.event for stage in stages if stage.part == part]


def test_the_papers_example_costs_what_was_computed():
    mus = [gdp_mu(Budget(epsilon, 1e-5)) for epsilon in (0.1, 0.2, 0.88)]
    made = plan(mus=mus[:2], final_mu=mus[2])
    assert made.mu == pytest.approx(0.267157, abs=5e-7)
    assert gdp_epsilon(made.mu, 1e-5) == pytest.approx(0.99634, abs=5e-6)
    assert made.epsilons == pytest.approx((0.1, 0.2), abs=1e-7)
    assert plan(mus=mus[:2]).final_epsilon == pytest.approx(0.88405, abs=1e-5)


def squared_mu(events):
    """The sum of 1 / sigma^2, all of them full-batch Gaussians."""
    parts = [part for event in events for part in leaves(event)]
    assert all(isinstance(event, Gaussian) for event, _ in parts)
    return sum(times / event.noise_multiplier**2 for event, times in parts)


def second_delta(events, epsilon):
    return second_accountant.delta(1.0, squared_mu(events) ** -0.5, 1, epsilon, grid=2**15, points=20_000)


@pytest.mark.parametrize(("epsilon", "trials"), [(0.3, 2), (4.0, 5)])
def test_receipts_of_each_part_fit_the_budget_by_a_second_accountant(epsilon, trials):
    stages = plan(Budget(epsilon, 1e-5), trials=trials, held_out_size=1e6).stages(None)
    assert second_delta(of_part(stages, TRAIN), epsilon) == pytest.approx(1e-5, rel=1e-3)
    assert second_delta(of_part(stages, HELD_OUT), epsilon) < 0.5e-5  # the rest is for metrics


def test_the_reported_total_is_that_of_the_receipts():
    tuned = linear_scaling(PretendedTask(rates=lambda model, candidate: 0.8), BUDGET, box=BOX)
    train = [entry.event for entry in tuned.entries if entry.part == TRAIN]
    assert second_delta(train, tuned.spent.epsilon) == pytest.approx(1e-5, rel=1e-3)
    assert 0.9999 < tuned.spent.epsilon <= 1.0
    assert [entry.state for entry in tuned.entries] == ["committed"] * 13


def sampled_delta(parts, epsilon, grid=2**17):
    """The second accountant for several (rate, multiplier, steps), composed."""
    worst = 0.0
    for remove in (True, False):
        reach, total = 60.0, 1.0
        width = 2 * reach / grid
        for rate, sigma, steps in parts:
            value, weight = second_accountant.losses(rate, sigma, 100_000, remove)
            position = value / width
            low = np.floor(position).astype(int)
            pmf = np.zeros(grid)
            np.add.at(pmf, low % grid, weight * (1 - position + low))
            np.add.at(pmf, (low + 1) % grid, weight * (position - low))
            total = total * np.fft.rfft(pmf) ** steps
        pmf = np.fft.irfft(total, grid)
        where = np.fft.fftfreq(grid, 1 / grid) * width
        above = where > epsilon
        worst = max(worst, float(np.sum(pmf[above] * -np.expm1(epsilon - where[above]))))
    return worst


@pytest.mark.slow
def test_sampled_stages_fit_the_budget_by_a_second_accountant():
    made = plan(Budget(2.0, 1e-5), box=SearchBox.fixed((0.1, 10.0), 20), sample_rate=0.1, shares=(0.05, 0.1))
    parts = [(0.1, each.outlay.noise_multiplier, 20 * each.count) for each in made.rounds]
    parts.append((0.1, made.final.noise_multiplier, 20))
    assert 0.97e-5 < sampled_delta(parts, 2.0) < 1.03e-5


def test_everything_is_in_the_ledger_before_a_record_is_read(tmp_path):
    path, states = tmp_path / "ledger", []

    class Watching(PretendedTask):
        def train(self, trials):
            states.append([entry.state for entry in Ledger.read(path).entries()])
            return super().train(trials)

    book = Ledger.open(path, dataset="d", budget=BUDGET, mode="precommitted")
    linear_scaling(Watching(rates=lambda model, candidate: 0.8), BUDGET, box=BOX, ledger=book)
    assert [len(each) for each in states] == [13, 13, 13]
    assert states[0] == ["reserved"] * 3 + ["planned"] * 10
    assert book.spent().epsilon <= 1.0
    with pytest.raises(BudgetExceeded):
        linear_scaling(PretendedTask(), BUDGET, box=BOX, ledger=book)


def peaked(best):
    """Scores that are best where r is ``best`` times the trial's budget."""
    return lambda epsilon, r: 0.9 - 0.1 * abs(math.log(r / (best * epsilon)))


class Landscape(PretendedTask):
    """A task whose best r is in proportion to epsilon."""

    def train(self, trials):
        models = super().train(trials)
        for trial in trials:  # the mu of a run is that of its steps
            mu = math.sqrt(trial.candidate.steps) / trial.noise_multiplier
            self.epsilons.append(gdp_epsilon(mu, 1e-5))
        return models

    def __init__(self, slope):
        super().__init__(rates=lambda model, c: min(max(peaked(slope)(self.epsilons[model], c.r), 0.1), 1.0))
        self.epsilons = []


def test_a_law_in_proportion_is_found_and_used():
    """Within the grid's own coarseness: three trials a stage, a factor of five apart in the second."""
    task = Landscape(slope=1000.0)
    tuned = linear_scaling(task, BUDGET, box=SearchBox((0.1, 100.0), (10, 100)), degree=0)
    assert 300 < tuned.law.predict(1.0) < 3000
    assert tuned.candidate.r == pytest.approx(tuned.law.predict(tuned.epsilon))
    assert "extrapolated from" in tuned.decisions[-1]
    assert "about 5 % of the training part's budget" in tuned.decisions[-1]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_trial_of_a_stage_makes_its_point(sign):
    tuned = linear_scaling(
        PretendedTask(rates=lambda model, candidate: 0.5 + sign * 0.1 * math.log10(candidate.r)), BUDGET, box=BOX
    )
    for stage, (_, r) in enumerate(tuned.law.points):
        tried = [each.candidate.r for each in tuned.trials if each.stage == stage]
        assert r == pytest.approx(max(tried) if sign == 1 else min(tried))
    assert len(tuned.law.points) == 2


def test_trials_too_noisy_to_rank_are_left_out_and_the_fallback_is_said():
    tuned = linear_scaling(PretendedTask(), BUDGET, box=BOX, fallback=5.0)
    assert tuned.law.points == ()
    assert tuned.candidate.r == pytest.approx(5.0)
    assert sum("no score is told from the others" in each for each in tuned.decisions) == 2
    assert any("data-free" in each for each in tuned.decisions)


def test_diverged_trials_score_worst():
    tuned = linear_scaling(
        PretendedTask(rates=lambda model, candidate: None if candidate.r > 2 else 0.9 - 0.1 * candidate.r),
        BUDGET,
        box=BOX,
    )
    assert all(point[1] <= 2 for point in tuned.law.points)
    assert any("diverged" in each for each in tuned.decisions)
    json_ready = [each.score.value for each in tuned.trials]
    assert -math.inf in json_ready


def test_hopeless_trials_are_not_made_and_cost_nothing():
    task = PretendedTask(held_out_size=50.0)
    tuned = linear_scaling(task, Budget(0.1, 1e-5), box=BOX)
    assert len(task.trained) == 1
    assert task.scored == []
    assert [entry.purpose for entry in tuned.entries] == ["final run"]
    assert tuned.epsilon == pytest.approx(0.1, rel=1e-6)
    assert "no trials" in tuned.decisions[0]


def test_pay_once_train_at_many_epsilons(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="d", budget=Budget(8.0, 1e-5), bound="gdp")
    task = Landscape(slope=1000.0)
    box = SearchBox((0.1, 100.0), (10, 100))
    tuned = linear_scaling(task, BUDGET, box=box, ledger=book)
    spent, runs = book.spent().epsilon, len(task.trained)
    for epsilon in (0.5, 2.0):
        more = train_at(task, tuned.law, Budget(epsilon, 1e-5), box=box, ledger=book)
        assert more.candidate.r == pytest.approx(tuned.law.predict(more.epsilon))
        assert len(more.entries) == 1
    assert len(task.trained) == runs + 2
    total = math.sqrt(sum(gdp_mu(Budget(each, 1e-5)) ** 2 for each in (spent, 0.5, 2.0)))
    assert book.spent().epsilon == pytest.approx(gdp_epsilon(total, 1e-5), rel=1e-5)


def test_wrong_configurations_are_refused_before_anything_is_paid(tmp_path):
    for options in (
        {"degree": 2},
        {"shares": (0.2, 0.1)},
        {"shares": (0.5, 0.6)},
        {"trials": 1},
        {"split": "other"},
        {"objective": "loss"},
        {"final_mu": 1.0},
        {"sample_rate": 0.1},
    ):
        with pytest.raises(InvalidInput):
            plan(**options)
    with pytest.raises(InvalidInput, match="without groups"):
        linear_scaling(probe(), BUDGET, box=BOX, objective="worst_group")


def test_a_score_is_drawn_from_its_receipt_and_is_noisy():
    task = PretendedTask(rates=lambda model, candidate: 0.5)
    task.train([Trial(BOX.candidate(4.0), 1.0, Receipt(Repeated(Gaussian(1.0), 100)))])
    receipt = Receipt(Repeated(Gaussian(100.0), 200))
    scores = [score(task, 0, "accuracy", noise_multiplier=100.0, receipt=receipt) for _ in range(200)]
    with pytest.raises(BudgetExceeded):
        score(task, 0, "accuracy", noise_multiplier=100.0, receipt=receipt)
    spread = np.std([each.value for each in scores])
    assert spread == pytest.approx(100.0 * math.sqrt(0.5) / 10_000, rel=0.25)
    assert np.mean([each.noise for each in scores]) == pytest.approx(spread, rel=0.25)


def test_equal_trials_are_rarely_called_rankable():
    made = np.random.default_rng(0)
    called = [rankable([TrialScore(x, 1.0) for x in made.normal(size=3)]) for _ in range(1000)]
    assert 0.02 < np.mean(called) < 0.09
    assert rankable([TrialScore(0.5, 0.1), TrialScore(-math.inf, 0.0)])
    assert not rankable([TrialScore(-math.inf, 0.0)] * 2)


AWKWARD = ("of 1e30 added", "last one again added", "last record removed")


def pairs(place):
    """The neighbours of one part, the other one fixed."""
    parts = [arrays(10), arrays(8, seed=1)]
    made = []
    for pair in neighbours(parts[place]):
        if len(pair.data[0]) > 1 and any(word in pair.name for word in AWKWARD):
            both = [[parts[0], parts[1]], [parts[0], parts[1]]]
            both[0][place], both[1][place] = pair.data, pair.neighbour
            made.append(Pair(pair.name, *map(tuple, both)))
    return made


@pytest.mark.parametrize(("place", "objective"), [(0, "accuracy"), (1, "worst_class")], ids=["train", "held-out"])
def test_one_record_moves_nothing_but_what_goes_into_the_door(place, objective, replay):
    def run(parts):
        task = probe(*parts)
        return seen(linear_scaling(task, LOUD, box=BOX, trials=2, objective=objective, too_noisy=math.inf))

    results = replay(run, pairs=pairs(place))
    assert max(result.largest for result in results) > 0.3  # the replay can fail: a record does move releases


def test_trials_of_a_stage_have_noise_of_their_own():
    """On no records at all, weights are noise: two equal candidates of one stage, and of two stages, share none."""
    empty = (np.zeros((0, 40), dtype=np.float32), np.zeros(0, dtype=np.int64))
    for noise in ({}, {"noise": fixed_noise(3)}):
        task: ProbeTask = probe(empty, (np.zeros((1, 40), dtype=np.float32), np.zeros(1, dtype=np.int64)), **noise)
        tuned = []
        made = plan(trials=2)
        for _ in range(2):
            outlay = made.rounds[0].outlay
            candidate = BOX.candidate(4.0)
            tuned += task.train([outlay.trial(candidate, Receipt(outlay.event)) for _ in range(2)])
        flat = np.stack([each.numpy().ravel() for each in tuned])
        shared = np.corrcoef(flat)[np.triu_indices(4, 1)]
        assert np.abs(shared).max() < 5 / math.sqrt(flat.shape[1])
