"""Private selection: the receipt comes first, K decides nothing that is seen, and the winner is released as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from dpilot import Budget, Ledger, tune
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.privacy import accountant, selection
from dpilot.privacy.events import Gaussian, OneOf, RepeatAndSelect, Repeated
from dpilot.privacy.trials import law_of
from dpilot.tune import Always, Choice, LogUniform, Space, Uniform, private_selection
from dpilot.tune.select import plan_selection
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.tune.helpers import BOX, BUDGET, LOUD, PretendedTask, module_task, probe, seen, with_keys
from tests.tune.test_scaling import pairs

SPACE = Space(LogUniform(0.1, 10.0), Choice((2, 5)))


def trials_of(number, **law):
    """K, as the announced law draws it from a key."""
    event = RepeatAndSelect(Gaussian(1.0), **{"mean_trials": 4.0, **law})
    return law_of(event).draw(Chain(number.to_bytes(KEY_BYTES, "little")).generator("trials"))


def selected(task, number=1, **options):
    return with_keys(number, lambda: private_selection(task, SPACE, BUDGET, **{"mean_trials": 4.0, **options}))


def numbers(wanted, **law):
    """Keys under which K is as wanted."""
    return next(number for number in range(1000) if wanted(trials_of(number, **law)))


def test_each_part_has_a_selection_whose_price_is_the_budget():
    tuned = selected(PretendedTask())
    assert [(entry.part, type(entry.event)) for entry in tuned.entries] == [
        (TRAIN, RepeatAndSelect),
        (HELD_OUT, RepeatAndSelect),
    ]
    for entry in tuned.entries:
        found = selection.selection(entry.event.event, 1e-5, mean_trials=4.0).epsilon
        assert 0.999 < found <= 1.0
    assert tuned.spent.epsilon <= 1.0
    assert tuned.epsilon == pytest.approx(accountant.epsilon(tuned.entries[0].event.event, 1e-5))
    assert tuned.epsilon < 0.8


@pytest.mark.parametrize("wanted", [1, 9])
def test_all_trials_run_and_are_scored_and_the_best_itself_is_released(wanted):
    number = numbers(lambda count: count == wanted)
    task = PretendedTask(rates=lambda model, candidate: 0.9 if model == wanted // 2 else 0.3)
    tuned = selected(task, number)
    assert len(task.trained) == wanted
    assert task.scored == list(range(wanted))
    assert tuned.model == wanted // 2
    assert tuned.candidate == task.trained[wanted // 2].candidate
    assert tuned.score.value == pytest.approx(0.9, abs=0.02)


def test_a_good_first_trial_does_not_stop_the_others():
    number = numbers(lambda count: count > 10)
    task = PretendedTask(rates=lambda model, candidate: 1.0 if model == 0 else 0.1)
    tuned = selected(task, number)
    assert len(task.trained) == len(task.scored) == trials_of(number) > 10
    assert tuned.model == 0


def test_nothing_that_is_handed_out_depends_on_the_number_of_trials(tmp_path, capsys):
    shown = []
    for wanted in (1, 6):
        path = tmp_path / str(wanted)
        book = Ledger.open(path, dataset="d", budget=BUDGET, mode="precommitted")
        task = PretendedTask(rates=lambda model, candidate: 0.9)
        tuned = selected(task, numbers(lambda count, wanted=wanted: count == wanted), ledger=book)
        outside, _ = seen(tuned)
        for released in ("candidate", "score", "decisions"):
            outside.pop(released)
        (story,) = tuned.decisions
        shown.append((outside, story.split(":")[1], len(book._book.rows()), capsys.readouterr()))
    assert shown[0] == shown[1]


def test_candidates_are_drawn_anew_for_each_trial():
    number = numbers(lambda count: count > 20)
    task = PretendedTask()
    selected(task, number)
    lrs = np.log([trial.candidate.lr for trial in task.trained])
    assert len(set(lrs)) == len(lrs)
    assert {trial.candidate.steps for trial in task.trained} == {2, 5}


def test_no_trial_gives_the_data_free_default():
    number = numbers(lambda count: count == 0, mean_trials=1.0, law="poisson")
    task = PretendedTask()
    tuned = selected(task, number, mean_trials=1.0, law="poisson")
    assert (tuned.model, tuned.candidate, tuned.score, task.trained) == ("untrained", None, None, [])
    assert "untrained" in tuned.decisions[0]
    assert tuned.spent.epsilon > 0.99  # paid all the same


def test_diverged_trials_lose_and_one_is_released_if_all_did():
    number = numbers(lambda count: count == 6)
    task = PretendedTask(rates=lambda model, candidate: None if model != 4 else 0.2)
    assert selected(task, number).model == 4
    assert selected(PretendedTask(rates=lambda model, candidate: None), number).score.diverged


@pytest.mark.slow
def test_sampled_candidates_are_priced_by_the_worst_of_them():
    plan = plan_selection(Budget(3.0, 1e-5), SPACE, sample_rate=0.2, mean_trials=3.0)
    assert isinstance(plan.trials.event, OneOf)
    assert {event.times for event in plan.trials.event.events} == {2, 5}
    assert all(isinstance(event, Repeated) for event in plan.trials.event.events)
    assert selection.epsilon(plan.trials, 1e-5) <= 3.0
    with pytest.raises(InvalidInput, match="price of its own"):
        plan_selection(BUDGET, Space(Always(1.0), Uniform(2, 9)), sample_rate=0.2)


def test_a_winner_trained_again_finds_no_receipt():
    """Also not by a task that trains more than it was asked to."""
    number = numbers(lambda count: count == 2)

    class Greedy(PretendedTask):
        def train(self, trials):
            super().train(trials)
            return super().train(trials)

    with pytest.raises(BudgetExceeded):
        selected(Greedy(), number)


def test_a_task_that_tells_of_its_steps_is_refused():
    task = PretendedTask()
    task.watch = print
    with pytest.raises(InvalidInput, match="how many trials"):
        selected(task)
    assert task.trained == []


def test_what_does_not_fit_the_ledger_is_refused_before_any_trial(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="d", budget=Budget(0.5, 1e-5), mode="precommitted")
    task = PretendedTask()
    with pytest.raises(BudgetExceeded):
        selected(task, ledger=book)
    assert (task.trained, book.entries()) == ([], ())


@pytest.mark.parametrize("place", [0, 1], ids=["train", "held-out"])
def test_one_record_moves_nothing_but_what_goes_into_the_door(place, replay):
    def run(parts):
        return seen(private_selection(probe(*parts), SPACE, LOUD, mean_trials=3.0))

    results = replay(run, pairs=pairs(place))
    assert max(result.largest for result in results) > 0.2


class Spy:
    """A task that remembers what the steps of each model released."""

    def __init__(self, task):
        self._task, self.kept = task, []

    def __getattr__(self, name):
        return getattr(self._task, name)

    def train(self, trials):
        steps = []
        kept = [
            replace(trial, keep=lambda records, mine=trial: (steps.append(records), mine.keep(records)))
            for trial in trials
        ]
        models = self._task.train(kept)
        self.kept += zip(models, steps, strict=True)
        return models


@pytest.mark.parametrize("options", [{}, {"together": True}], ids=["alone", "together"])
def test_only_the_selected_runs_steps_are_kept(options):
    number = numbers(lambda count: count == 4)
    task = Spy(module_task(lambda: nn.Linear(3, 2), clipping="slack", **options))
    tuned = selected(task, number)
    assert len(task.kept) == 4
    (mine,) = (steps for model, steps in task.kept if model is tuned.model)
    assert tuned.released == mine
    assert len(tuned.steps()) == tuned.candidate.steps
    assert tuned.to_dict()["steps"]["length"] == [step.length for step in mine]
    held = [steps for model, steps in task.kept if model is not tuned.model]
    assert not {step.length for steps in held for step in steps} & set(tuned.to_dict()["steps"]["length"])


def test_other_tuners_keep_the_steps_of_the_run_they_hand_out():
    task = module_task(lambda: nn.Linear(3, 2), clipping="slack")
    grid = [tune.Candidate(0.1, 2), tune.Candidate(1.0, 3)]
    for tuned in (
        tune.budget_split_grid(task, grid, LOUD),
        tune.linear_scaling(task, LOUD, box=BOX),
    ):
        assert [step.step for step in tuned.released] == list(range(tuned.candidate.steps))
        assert all(step.length > 0 for step in tuned.released)
