"""The autopilot: what it costs by another accountant, what it decides from declared numbers, what it tells."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpilot import Budget, Ledger
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.privacy import gdp_mu
from dpilot.privacy.events import Gaussian
from dpilot.records import FitRecord
from dpilot.report import page
from dpilot.transfer.features import Features
from dpilot.tune import autopilot, pilot
from dpilot.tune.autopilot_plan import plan_heads, plan_module
from dpilot.tune.defaults import AutopilotOptions, head_defaults, head_options, head_walk, module_lr
from dpilot.tune.probe_task import THRESHOLD, ProbeTask
from dpilot.tune.scaling_plan import plan_scaling
from dpilot.tune.scoring import score_noise
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.tune.pilot_cases import (
    BUDGET,
    LOUD,
    PROMISED,
    SMALL,
    arrays,
    heads,
    module,
    second_delta,
    squared_mu,
)


def of_part(entries, part):
    """The events that the records of ``part`` pay for."""
    return [entry.event for entry in entries if entry.part in (None, part)]


@pytest.mark.parametrize("part", [TRAIN, HELD_OUT])
@pytest.mark.parametrize(
    "run",
    [
        lambda: heads(budget=BUDGET, **PROMISED),
        lambda: heads(budget=Budget(0.5, 1e-6)),
    ],
    ids=["trials", "no trials"],
)
def test_receipts_of_each_part_are_the_total_by_a_second_accountant(run, part):
    fitted = run()
    budget, spent = fitted.tuned.budget, fitted.spent
    assert spent.epsilon <= budget.epsilon
    assert second_delta(of_part(fitted.tuned.entries, part), spent.epsilon) == pytest.approx(budget.delta, rel=2e-3)
    assert {entry.state for entry in fitted.tuned.entries} == {"committed"}
    assert len({entry.seq for entry in fitted.tuned.entries}) == 1


def test_everything_is_on_disk_in_one_commitment_before_a_record_is_read(tmp_path, monkeypatch):
    path, states = tmp_path / "ledger", []
    for name in ("unit", "take"):
        plain = getattr(Features, name)

        def watched(self, *given, plain=plain):
            states.append([entry.purpose for entry in Ledger.read(path).entries()] if path.exists() else [])
            return plain(self, *given)

        monkeypatch.setattr(Features, name, watched)
    heads(ledger=path)
    assert len(states) >= 3
    assert all(len(each) == 14 and each[-1] == "held-out metrics" for each in states)


def test_a_second_run_on_the_same_ledger_is_refused_and_writes_nothing(tmp_path):
    path = tmp_path / "ledger"
    heads(ledger=path)
    before = Ledger.read(path).head()
    with pytest.raises(BudgetExceeded):
        heads(ledger=path)
    assert Ledger.read(path).head() == before


def test_hopeless_trials_are_not_made_and_the_data_free_walk_takes_all():
    budget = Budget(0.1, 1e-5)
    fitted = autopilot(Features.of(*arrays(500), 2), budget=budget)
    assert fitted.tuned.trials == ()
    assert [entry.purpose for entry in fitted.tuned.entries] == ["final run", "held-out metrics"]
    assert fitted.tuned.entries[0].event == Gaussian(1 / gdp_mu(budget))
    assert fitted.tuned.candidate.r == pytest.approx(head_walk(gdp_mu(budget), 450))
    assert "only the number of records is published" in fitted.record.privacy["unit"]
    told = " ".join(fitted.decisions)
    assert "No trials: with 50 held-out records" in told
    assert "nothing was spent on trying settings" in told


def test_the_walk_makes_the_noise_of_a_logit_five_eighths():
    """Of a unit row, after steps of pure noise: nothing but noise is learned from no records."""
    mu, size, steps = 0.5, 10_000.0, 100
    walk, found = head_walk(mu, size), []
    for seed in range(60):
        made = np.random.default_rng(seed)
        weight = velocity = 0.0
        for _ in range(steps):
            velocity = 0.9 * velocity + made.normal() * THRESHOLD * math.sqrt(steps) / mu / size
            weight -= walk / steps * velocity
        found.append(weight)
    assert 0.7 < np.std(found) / 0.625 < 1.3


def test_steps_grow_where_the_step_size_would_be_unstable():
    small, large = head_defaults(0.1, 1_000, 2), head_defaults(1.0, 20_000, 2)
    assert small.box.candidate(small.walk).steps == 100
    wide = large.box.candidate(large.walk)
    assert wide.steps > 100
    assert wide.lr * THRESHOLD <= 7.6 + 1e-9
    assert head_defaults(1.0, 1e9, 2, epochs=30).box.steps == (30, 30)


def test_what_is_bought_is_taken_from_both_parts():
    sigma = 1 / (gdp_mu(BUDGET) * math.sqrt(0.1))
    made = plan_heads(BUDGET, size=50_000, classes=2, cells=1, options=AutopilotOptions(), taken=0.1)
    stages = made.stages(None)
    for part in (TRAIN, HELD_OUT):
        spent = squared_mu([Gaussian(sigma), *(stage.event for stage in stages if stage.part == part)])
        assert gdp_mu(BUDGET) ** 2 * (1 - 1e-6) < spent <= gdp_mu(BUDGET) ** 2
    trials = squared_mu([stage.event for stage in stages if stage.purpose.startswith("trial")])
    assert made.tuning_share == pytest.approx(trials / gdp_mu(BUDGET) ** 2, rel=1e-6)


def test_the_record_explains_each_decision_and_can_be_shown():
    fitted = heads()
    record = fitted.record
    assert len(fitted.tuned.trials) == 6
    share = squared_mu([e.event for e in fitted.tuned.entries if e.purpose.startswith("trial")]) / gdp_mu(LOUD) ** 2
    told = float(re.search(r"trials took about ([0-9.]+) % of the training part's budget", record.decisions[0])[1])
    assert told == pytest.approx(100 * share, abs=0.06)
    assert any("Stage 2, 3 trials" in each for each in record.decisions)
    assert {name.partition(": ")[2] for name in record.curves} == {"fitted", "trials", "final run"}
    assert len(record.curves["step size times steps (r) against mu: trials"]) == 6
    ((mu, r),) = record.curves["step size times steps (r) against mu: final run"]
    total = Budget(fitted.tuned.epsilon, LOUD.delta)
    assert (mu, r) == pytest.approx((gdp_mu(total), fitted.tuned.candidate.r))
    assert record.privacy["head"]
    assert record.privacy["unit"] == "one record, added or removed"
    assert "dpilot" in record.privacy["versions"]
    assert FitRecord.from_json(record.to_json()).decisions == record.decisions
    assert "Trying and choosing took about " in page.render(record)


def test_an_autopilot_run_prints_its_total_its_decisions_and_its_figures():
    result = heads(budget=BUDGET, **PROMISED)
    shown = str(result)
    assert shown.startswith(f"autopilot: epsilon {result.spent.epsilon:.4g}, delta 1e-05 in all")
    assert all(decision in shown for decision in result.decisions)
    assert all(f"not protected: {what}" in shown for what in result.record.unprotected)
    assert f"{result.metrics[0].name:<46}{result.metrics[0].value:.3f}" in shown


def test_a_sampled_run_without_trials_says_that_no_tuning_was_paid():
    made, _ = plan_module(Budget(3.0, 1e-5), size=3000, cells=1, options=AutopilotOptions(tuning=0.0))
    assert made.tuning_share == 0
    assert made.scaling.final_epsilon < 3.0


def test_the_final_run_is_where_the_law_points():
    tuned = heads(arrays(2_000), Budget(2.0, 1e-5), size=2_000, epochs=8, test_seed=3).tuned
    assert len(tuned.law.points) >= 1  # of the stages that noise let one rank
    assert {epsilon for epsilon, _ in tuned.law.points} <= {each.epsilon for each in tuned.trials}
    assert tuned.law.degree == 0
    assert tuned.law.variable == "mu"
    assert tuned.candidate.r == pytest.approx(tuned.law.predict(tuned.epsilon))
    assert tuned.candidate.r > 1.5 * tuned.law.fallback


def test_trials_are_spread_about_the_data_free_walk_in_proportion_to_mu():
    tuned = heads(budget=Budget(4.0, 1e-5), size=2_000, epochs=20).tuned
    first = [each for each in tuned.trials if each.stage == 0]
    mu = gdp_mu(Budget(first[0].epsilon, 1e-5))
    centre = head_walk(mu, 1_000)
    ratios = [each.candidate.r / centre for each in first]
    assert ratios == pytest.approx([4 ** (-2 / 3), 1.0, 4 ** (2 / 3)], rel=0.04)  # the walk is of the whole mu


def test_scores_and_figures_read_held_out_records_only():
    """Held-out labels are all wrong for what the training part teaches, so an accuracy near 0 was read on them."""
    values, labels = arrays(400)
    options = {"size": 400, "held_out_share": 0.5, "epochs": 20, "test_seed": 3}
    parts = pilot.draw_split(0.5, 3).indices(400)
    turned = labels.copy()
    turned[parts[HELD_OUT]] = 1 - labels[parts[HELD_OUT]]
    fitted = autopilot(Features.of(values, turned, 2), budget=LOUD, **options)
    assert fitted.metrics[0].value < 0.2
    assert all(each.score.value < 0.3 for each in fitted.tuned.trials if each.stage == 1)


def test_no_trials_where_none_are_asked_for():
    untuned = heads(tuning_share=0.0)
    assert untuned.tuned.trials == ()
    assert any("none were asked for" in each for each in untuned.decisions)


def test_held_out_records_are_as_many_as_figures_need():
    """Noise of a tenth of a point, by the plan itself; never under 5 % of the records, nor above 10 %."""
    for size, least, most in ((5_000, 0.1, 0.1), (50_000, 0.051, 0.099), (90_000, 0.05, 0.05)):
        plan = plan_heads(BUDGET, size=size, classes=2, cells=1, options=AutopilotOptions())
        assert least <= plan.held_out <= most
        if least != most:
            assert score_noise(1, plan.held_out * size, plan.metrics_noise) == pytest.approx(0.001, rel=1e-6)
    assert plan_heads(BUDGET, size=90_000, classes=2, cells=1, options=AutopilotOptions(held_out=0.3)).held_out == 0.3


def test_options_of_heads_are_those_of_the_autopilot():
    features = Features.of(*arrays(2_000), 2).unit()
    task = ProbeTask(features, features.take([]), 1_800.0, 200.0)
    plan = plan_heads(BUDGET, size=2_000, classes=2, cells=1, options=AutopilotOptions())
    made = plan_scaling(BUDGET, held_out_size=200.0, **head_options(task, BUDGET))
    assert made.box == plan.scaling.box
    assert (made.fallback, made.band, made.law([])) == (plan.scaling.fallback, 4.0, plan.scaling.law([]))
    loose = head_options(replace(task, threshold=1.0), BUDGET)
    assert loose["fallback"] == pytest.approx(made.fallback / 2)
    assert loose["box"].lr[1] == pytest.approx(made.box.lr[1] / 2)


def test_a_module_is_batched_clipped_and_told_by_rule():
    fitted = module(size=120, epochs=1)
    assert fitted.spent.epsilon <= BUDGET.epsilon
    told = " ".join(fitted.decisions)
    assert "smallest on the plateau" in told
    assert "Clipping adapts from 1, floor 0.1" in told
    assert len(fitted.record.thresholds) == fitted.tuned.candidate.steps
    assert fitted.record.thresholds[0] == 1.0
    assert isinstance(fitted.model, torch.nn.Linear)
    assert [entry.part for entry in fitted.tuned.entries] == [TRAIN, HELD_OUT]


def test_the_step_of_a_module_moves_each_weight_by_a_fifth_in_noise():
    lr = module_lr(noise_multiplier=2.0, batch_size=256, steps=400, momentum=0.0)
    assert lr * 2.0 / 256 * math.sqrt(400) == pytest.approx(0.2)


@pytest.mark.slow
def test_a_module_at_an_ordinary_budget_fits_by_a_second_accountant():
    from tests.tune.test_scaling import sampled_delta

    made, rate = plan_module(Budget(2.0, 1e-5), size=20_000, cells=1, options=AutopilotOptions(epochs=2))
    steps = made.scaling.box.steps[0]
    parts = [(rate, each.outlay.noise_multiplier, steps * each.count) for each in made.scaling.rounds]
    assert 0.97e-5 < sampled_delta([*parts, (rate, made.scaling.final.noise_multiplier, steps)], 2.0) < 1.03e-5


def test_progress_tells_released_values_only():
    said = []
    fitted = heads(tell=said.append)
    assert said[0].startswith("2 stages of 3 trials")
    assert said[1:3] == list(fitted.tuned.decisions[4:6]) or said[1] in " ".join(fitted.decisions).lower()
    assert f"{fitted.metrics[0].value:.3f}" in said[-1]


def test_wrong_configurations_are_refused_before_anything_is_paid(tmp_path):
    path, features = tmp_path / "ledger", Features.of(*arrays(), 2)
    for given in (
        {"budget": None},
        {"budget": LOUD, "objective": "loss"},
        {"budget": LOUD, "objective": "worst_group"},
        {"budget": LOUD, "held_out_share": 1.5},
        {"budget": LOUD, "tuning_share": 1.0},
        {"budget": LOUD, "trials": 1},
        {"budget": LOUD, "epochs": 0},
        {"budget": LOUD, "size": "private"},
    ):
        with pytest.raises(InvalidInput):
            autopilot(features, ledger=path, **given)
    with pytest.raises(InvalidInput, match="classes"):
        module(classes=None, ledger=path)
    with pytest.raises(InvalidInput, match="neither"):
        autopilot("model", budget=LOUD, size=10, ledger=path)
    assert not path.exists() or not Ledger.read(path).entries()


def test_the_worst_group_can_be_the_objective():
    groups = np.arange(100) % 2
    fitted = heads(objective="worst_group", groups=groups, group_count=2, size=400)
    assert any(each.name == "group accuracy" for each in fitted.metrics)


def test_an_autopilot_run_that_dies_leaves_all_of_it_spent(tmp_path, monkeypatch):
    path = tmp_path / "ledger"

    def broken(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pilot, "final_run", broken)
    with pytest.raises(KeyboardInterrupt):
        heads(ledger=path)
    book = Ledger.open(path, dataset=Ledger.read(path).dataset)
    assert len(book.entries()) == 14
    assert not book.fits(Gaussian(1.0))


def test_fixed_noise_is_stamped_as_not_private():
    fitted = heads(test_seed=5)
    assert any("not private" in stamp for stamp in fitted.record.stamps)
    assert torch.equal(fitted.model, heads(test_seed=5).model)
    assert not torch.equal(fitted.model, heads().model)
    assert SMALL["size"] == fitted.record.data["size"]
