"""``dpilot audit``: each kind holds on what is sound, and finds the fault it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Ledger, Plan, Trainer, audit
from dpilot.audit.neighbours import neighbours
from dpilot.audit.replay import audit_replays
from dpilot.cli.main import main
from dpilot.errors import InvalidInput
from dpilot.mechanism import release
from dpilot.noise import SystemNoise
from dpilot.privacy import accountant, lower_estimate
from dpilot.privacy.events import Composed, Gaussian, PoissonSampled, PureDP, RepeatAndSelect, Repeated
from dpilot.privacy.receipt import Receipt
from tests.audit import own_runs


def found(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["audit", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")
def test_replay_finds_nothing_in_a_sound_model_and_names_what_it_tried(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = found(["replay", "tests.audit.own_runs:Net"], capsys)
    assert (code, shown["held"], len(shown["checks"])) == (0, True, 19)
    assert "bounds at most" in shown["checks"][0]["found"]


def few(data: Any, unit: int | None = None) -> list[Any]:
    named = ("the last one again added", "the person of the last row removed")
    return [pair for pair in neighbours(data, unit=unit) if pair.name.endswith(named)]


@pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")
def test_a_record_used_twice_and_a_split_by_row_are_found() -> None:
    twice = audit_replays(own_runs.use_records_twice, few(own_runs.RECORDS))
    assert all(not each.held for each in twice)
    assert "more than its bound" in twice[0].found
    by_row = audit_replays(own_runs.split_persons_by_row, few(own_runs.PERSONS, unit=2))
    assert not all(each.held for each in by_row)
    assert all(each.held for each in audit_replays(own_runs.keep_persons_whole, few(own_runs.PERSONS, unit=2)))


def test_runs_that_raise_alike_show_nothing() -> None:
    """Equal errors were no difference, and what the run would have returned was never looked at."""

    def run(data: Any) -> None:
        release(np.zeros(1), bound=1.0, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))
        raise ValueError("no such option")

    checks = {each.name: each for each in audit_replays(run, few(own_runs.RECORDS))}
    assert checks["ending"].held is False
    assert "no such option" in checks["ending"].found


def test_a_run_that_releases_nothing_is_no_success() -> None:
    checks = audit_replays(lambda data: 1, few(own_runs.RECORDS))
    assert [each.name for each in checks if not each.held] == ["releases"]


def test_the_noise_and_the_batches_of_this_machine_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = found(["mechanism", "--samples", "20000", "--confidence", "0.999999"], capsys)
    assert (code, shown["held"]) == (0, True)
    assert len(shown["checks"]) == 22


def test_half_the_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SystemNoise.gaussian

    def halve(self: SystemNoise, values: Any, *, bound: float, noise_multiplier: float) -> Any:
        return sound(self, values, bound=bound / 2, noise_multiplier=noise_multiplier)

    monkeypatch.setattr(SystemNoise, "gaussian", halve)
    failed = {each.name for each in audit.audit_mechanism(samples=1000) if not each.held}
    assert failed == {
        f"system noise, {kind}: {law}"
        for kind in ("float64", "float32")
        for law in ("its law is the normal one", "its variance is the declared one")
    }


def test_noise_that_repeats_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpilot.noise.system_generator", lambda: np.random.default_rng(0))
    failed = {each.name for each in audit.audit_mechanism(samples=1000) if not each.held}
    assert "system noise, float64: two releases are independent" in failed


@pytest.fixture
def paid(tmp_path: Path) -> tuple[Ledger, Path]:
    """A ledger with one run, and the folder of that run."""
    ledger = Ledger.open(tmp_path / "d.ledger", dataset="d", budget=Budget(3.0, 1e-4), mode="adaptive", bound="basic")
    data = TensorDataset(torch.randn(20, 2), torch.zeros(20, dtype=torch.long))
    plan = Plan.calibrate(Budget(1.0, 1e-5), size=20, batch_size=5, steps=4, clipping="constant", ledger=ledger)
    run = Trainer(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), plan, ledger=ledger).fit(data)
    return ledger, run.save(tmp_path / "run")


def test_prices_total_and_runs_of_a_sound_ledger_hold(paid: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, folder = paid
    code, shown = found(["ledger", str(ledger.path), str(folder)], capsys)
    assert (code, shown["held"]) == (0, True)
    assert [each["name"] for each in shown["checks"]] == [
        "chain",
        "price of row 1, training",
        "total",
        "run run: its events",
    ]


def test_a_run_that_was_paid_once_and_shown_twice_is_found(paid: Any, tmp_path: Path) -> None:
    ledger, folder = paid
    failed = [each for each in audit.audit_ledger(ledger, [folder, folder]) if not each.held]
    assert [each.name for each in failed] == ["run run: its events"]


def test_an_unpaid_selection_is_found(paid: Any, tmp_path: Path) -> None:
    """Ten trials, of which the ledger knows the winner only: their scores are in the record of the fit."""
    import shutil

    from dpilot.records import FitRecord, MetricRecord

    ledger, folder = paid
    trials = tuple(MetricRecord("accuracy", f"lr {i}", 0.5, (0.4, 0.6), (0.4, 0.6)) for i in range(10))
    shutil.copytree(folder, tmp_path / "fit")
    nothing: dict[str, Any] = dict.fromkeys(
        ("metrics", "decisions", "thresholds", "ledger", "stamps", "unprotected"), ()
    )
    record = FitRecord(privacy={}, data={}, plan={}, trials=trials, **nothing)
    (tmp_path / "fit" / "fit.json").write_text(record.to_json())
    failed = [each for each in audit.audit_ledger(ledger, [tmp_path / "fit"]) if not each.held]
    assert [each.name for each in failed] == ["run fit: its trials"]
    elsewhere = Ledger.open(
        tmp_path / "e.ledger", dataset="e", budget=Budget(3.0, 1e-4), mode="adaptive", bound="basic"
    )
    failed = [each for each in audit.audit_ledger(elsewhere, [folder]) if not each.held]
    assert "1 of 1 events are no rows" in failed[0].found


def test_a_price_below_what_the_event_costs_is_found(paid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, _ = paid
    monkeypatch.setattr(lower_estimate, "epsilon", lambda event, delta: 1.5)
    failed = [each.name for each in audit.audit_ledger(ledger) if not each.held]
    assert failed == ["price of row 1, training", "total"]


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(2.0),
        Repeated(PoissonSampled(0.1, Gaussian(1.0)), 50),
        Composed([Gaussian(5.0), Repeated(PoissonSampled(0.05, Gaussian(2.0)), 100), PureDP(0.1)]),
    ],
    ids=["gaussian", "sampled", "composed"],
)
def test_the_second_accountant_stays_below_the_first_and_near_it(event: Any) -> None:
    low, price = lower_estimate.epsilon(event, 1e-5), accountant.epsilon(event, 1e-5, "pld")
    assert 0.85 * price < low <= price


def test_a_private_selection_has_no_second_price(tmp_path: Path) -> None:
    """Of few candidates on average it may cost less than one does: nothing is claimed of it."""
    selection = RepeatAndSelect(Gaussian(2.0), mean_trials=0.5, law="poisson", shape=0.0)
    with pytest.raises(InvalidInput, match="no Gaussian part"):
        lower_estimate.epsilon(selection, 1e-5)


def test_disjoint_parts_of_several_splits_are_not_added_up(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "s.ledger", dataset="s", budget=Budget(9.0, 1e-4), mode="adaptive", bound="basic")
    for split in ("one", "two"):
        for part in ("a", "b", "c"):
            with ledger.reserve(Gaussian(4.0), purpose="score", part=part, split=split):
                pass
    assert all(each.held for each in audit.audit_ledger(ledger))


def test_canaries_of_a_stored_run_are_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.audit.test_canaries import train

    folder = train(audit.Canaries(200), seed=1).save(tmp_path / "run")
    code, shown = found(["run", str(folder)], capsys)
    assert (code, shown["held"]) == (0, True)
    assert shown["lower_bound"]["epsilon"] <= shown["claimed"]
    assert main(["audit", "run", str(train(None, seed=1).save(tmp_path / "none"))]) == 2
