"""A plan is public, frozen, and trains wherever it is taken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dpilot import Budget, Ledger, Plan, clipping
from dpilot.errors import InvalidInput
from dpilot.privacy import epsilon
from tests.train.helpers import plan

FORMS = [clipping.get("slack", groups=2), clipping.get("auto-s", normalized=True)]


@pytest.mark.parametrize("rule", [*clipping.names(), *FORMS], ids=str)
def test_it_reads_back_bit_for_bit(rule):
    first = plan(rule)
    again = Plan.from_json(first.to_json())
    assert again == first
    assert (again.event, again.cost) == (first.event, first.cost)


def test_its_cost_is_within_the_budget_by_the_accountant():
    chosen = Plan.calibrate(Budget(1.0, 1e-5), size=1000, batch_size=100, epochs=3)
    spent = epsilon(
        noise_multiplier=chosen.noise_multiplier, sample_rate=chosen.sample_rate, steps=chosen.steps, delta=1e-5
    )
    assert 0.99 < spent <= 1.0
    assert (chosen.steps, chosen.sample_rate, chosen.expected_batch_size) == (30, 0.1, 100.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": None}, "one of batch_size and sample_rate"),
        ({"sample_rate": 0.1}, "one of batch_size and sample_rate"),
        ({"batch_size": 1001}, "at most the size"),
        ({"batch_size": None, "sample_rate": 1.5}, "sample_rate is 1.5"),
        ({"epochs": 1}, "one of epochs and steps"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"size": 0}, "size is 0"),
        ({"size": "public"}, "size is 'public'"),
        ({"clipping": "nonsense"}, "name is 'nonsense'"),
        ({"clipping": clipping.Group(thresholds=(1.0, 2.0))}, "a rule that needs norms alone"),
    ],
)
def test_bad_numbers_are_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        Plan.calibrate(Budget(1.0, 1e-5), **{"size": 1000, "batch_size": 100, "steps": 3, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format is 99"),
        ({"extra": 1}, "has the fields"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"noise_multiplier": None}, "noise_multiplier is None"),
        ({"cost": {"epsilon": 99.0, "delta": 1e-5}}, "expected no more than"),
        ({"clipping": {"name": "os.system"}}, "os.system"),
        ({"budget": {"epsilon": 1.0, "delta": 1e-5, "x": 1}}, "not what to_json wrote"),
    ],
)
def test_an_altered_plan_is_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        Plan.from_json(json.dumps({**plan().to_dict(), **change}))
    with pytest.raises(InvalidInput):
        Plan.from_json("not json")


def test_it_must_fit_the_ledger_it_is_made_for(tmp_path):
    ledger = Ledger.open(tmp_path / "a", dataset="a", budget=Budget(1.0, 1e-5))
    with pytest.raises(InvalidInput, match="does not fit the ledger"):
        Plan.calibrate(Budget(2.0, 1e-5), size=100, batch_size=100, steps=1, ledger=ledger)


SCRIPT = """
import sys
sys.modules["dp_accounting"] = None
from torch import nn
from dpilot import Plan, Trainer
from tests.train.helpers import LOSS, data, model
run = Trainer(model(), LOSS, Plan.from_json(open(sys.argv[1]).read()), lr=0.5, chunk_size=16).fit(data())
(entry,) = run.ledger.entries()
assert type(entry.event).__name__ == "ApproxDP" and entry.state == "committed"
assert len(run.record.steps) == 8
print(run.epsilon, run.record.notes[0])
"""


@pytest.mark.slow
def test_a_stored_plan_trains_where_no_accountant_is_installed(tmp_path):
    (tmp_path / "plan.json").write_text(plan().to_json())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "plan.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5.0 priced at the cost that the plan was certified for")
