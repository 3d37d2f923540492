"""Grids and random search compose; the oracle says what it is; comparisons are free and agree with the runs."""

from __future__ import annotations

import pytest

from dpilot.errors import InvalidInput
from dpilot.privacy import gdp_epsilon, gdp_mu
from dpilot.tune import Always, Candidate, LogUniform, Space, budget_split_grid, compare, grid_oracle, random_search
from dpilot.tune.rivals.data_free import one_step, wosm, wosm_lr
from dpilot.tune.rivals.hyfree import better_lr, hyfree
from dpilot.tune.rivals.subset import subset_search
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.tune.helpers import BUDGET, LOUD, PretendedTask, probe, seen
from tests.tune.test_scaling import pairs, second_delta

GRID = [Candidate(lr, 4) for lr in (0.1, 1.0, 10.0)]
SPACE = Space(LogUniform(0.1, 10.0), Always(4))


def best_at_one(model, candidate):
    return 0.8 if candidate.lr == 1.0 else 0.3


def check_total(tuned, epsilon=1.0):
    for part in (TRAIN, HELD_OUT):
        events = [entry.event for entry in tuned.entries if entry.part == part]
        assert second_delta(events, epsilon) == pytest.approx(1e-5, rel=1e-3)
    assert 0.999 * epsilon < tuned.spent.epsilon <= epsilon


def test_a_grid_takes_its_share_and_the_best_gets_the_rest():
    task = PretendedTask(rates=best_at_one)
    tuned = budget_split_grid(task, GRID, BUDGET)
    assert tuned.candidate == GRID[1]
    assert [trial.candidate for trial in task.trained] == [*GRID, GRID[1]]
    assert tuned.epsilon == pytest.approx(gdp_epsilon(gdp_mu(BUDGET) * (2 / 3) ** 0.5, 1e-5), rel=1e-6)
    check_total(tuned)


def test_random_search_releases_its_best_run_as_it_is():
    task = PretendedTask(rates=lambda model, candidate: 0.8 if model == 2 else 0.3)
    tuned = random_search(task, SPACE, BUDGET, trials=4)
    assert tuned.model == 2
    assert len(task.trained) == 4
    assert len(tuned.trials) == 4
    check_total(tuned)


def test_scores_that_cannot_be_ranked_are_said_to_be():
    assert "noise alone" in budget_split_grid(PretendedTask(), GRID, BUDGET).decisions[0]
    assert "noise alone" not in budget_split_grid(PretendedTask(rates=best_at_one), GRID, BUDGET).decisions[0]


def test_the_oracle_must_be_asked_for_and_stamps_its_record():
    task = PretendedTask(rates=best_at_one)
    with pytest.raises(InvalidInput, match="unsafe=True"):
        grid_oracle(task, GRID, BUDGET)
    assert task.trained == []
    tuned = grid_oracle(task, GRID, BUDGET, unsafe=True)
    assert tuned.candidate == GRID[1]
    assert not tuned.private
    assert "not private" in tuned.to_dict()["stamps"][0]
    assert budget_split_grid(task, GRID, BUDGET).private


def test_comparison_agrees_with_the_runs():
    rows = {row.method: row for row in compare(BUDGET, size=90_000, trials=3).rows}
    task = PretendedTask(rates=best_at_one)
    assert rows["budget_split_grid"].epsilon == pytest.approx(budget_split_grid(task, GRID, BUDGET).epsilon, rel=1e-6)
    search = random_search(task, SPACE, BUDGET, trials=3)
    assert rows["random_search"].epsilon == pytest.approx(search.epsilon, rel=1e-6)
    left = {name: row.epsilon for name, row in rows.items()}
    assert left["data-free default"] > left["linear_scaling"] > left["budget_split_grid"] > left["random_search"]
    assert rows["grid_oracle"].remark == "not private"


def test_comparison_has_curves_and_a_table():
    made = compare(BUDGET, size=1000)
    assert all(len(curve) > 5 for curve in made.curves.values())
    falling = [epsilon for _, epsilon in made.curves["private_selection"]]
    assert falling == sorted(falling, reverse=True)
    assert str(made).count("\n") == len(made.rows)


def test_the_papers_step_sizes():
    assert wosm_lr(noise_multiplier=2.0, expected_batch_size=100.0, threshold=0.5, alpha=0.01) == pytest.approx(0.1)
    task = PretendedTask()
    tuned = wosm(task, BUDGET, steps=4)
    each = 2 / gdp_mu(BUDGET)
    assert tuned.candidate.lr == pytest.approx(0.1 * 1e-3 * task.size / each)
    assert one_step(task, BUDGET).candidate.steps == 1
    for made in (tuned, one_step(task, BUDGET)):
        assert [entry.purpose for entry in made.entries] == ["final run"]
        assert 0.999 < made.spent.epsilon <= 1.0


@pytest.mark.slow
def test_a_sample_of_the_records_replays_and_fits(replay):
    def run(parts):
        return seen(subset_search(probe(*parts), GRID[:2], BUDGET, rate=0.5, share=0.5))

    for place in (0, 1):
        results = replay(run, pairs=pairs(place)[1:2])
        assert results[0].releases == 2 * 4 // 2 + 2 + 4  # two heads a step, two scores, a final run
    tuned = subset_search(probe(), GRID[:2], BUDGET, rate=0.1)
    assert all(each.epsilon < tuned.epsilon for each in tuned.trials)  # what a trial cost, not the final run
    assert tuned.candidate.lr in {each.lr / 0.1 for each in GRID[:2]}
    assert 0.98 < tuned.spent.epsilon <= 1.0


def test_step_sizes_from_private_losses_replay_and_fit(replay):
    def run(parts):
        return seen(hyfree(probe(*parts), LOUD, steps=4, every=2, share=0.2, loss_bound=0.05))

    for place in (0, 1):
        results = replay(run, pairs=pairs(place))
        assert {result.releases for result in results} == {4 + 2}
    tuned = hyfree(probe(), BUDGET, steps=6, every=2)
    assert second_delta([entry.event for entry in tuned.entries], 1.0) == pytest.approx(1e-5, rel=1e-3)
    assert {entry.part for entry in tuned.entries} == {TRAIN}


def test_a_parabola_decides_the_step_size_and_noise_does_not():
    assert better_lr(0.5, (4.0, 1.0, 0.0)) == pytest.approx(0.5 * 2.0 / 2.0)
    assert better_lr(0.5, (100.0, 50.0, 1.0)) == pytest.approx(0.5 * 4.0)
    assert better_lr(0.5, (1.0, 2.0, 0.5)) == 0.5
    assert better_lr(0.5, (0.0, 1.0, 4.0)) == 0.5


def test_trials_are_made_on_the_sample_and_the_final_run_on_all_records():
    class Whole(PretendedTask):
        def subsample(self, rate):
            self.rate, self.part = rate, PretendedTask()
            return self.part

    task = Whole()
    tuned = subset_search(task, GRID[:2], BUDGET, rate=0.1)
    assert task.rate == 0.1
    assert [trial.candidate for trial in task.part.trained] == GRID[:2]
    assert [trial.candidate for trial in task.trained] == [tuned.candidate]
    (step,) = {trial.noise_multiplier for trial in task.part.trained}
    (entry,) = (entry for entry in tuned.entries if entry.purpose == "trials on a sample")
    assert step == pytest.approx(entry.event.event.noise_multiplier * (2 * 4) ** 0.5)
