"""A private step in a loop of one's own that is stopped, and goes on as if it had not been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dpilot import Budget, Ledger, Plan, PrivateStep, poisson_loader
from dpilot.errors import InvalidInput

SIZE, STEPS = 40, 6
LOSS = nn.CrossEntropyLoss(reduction="none")


class Drawn(Dataset[Any]):
    """A data set that draws as it is read, as one that augments does."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(3) + index, torch.tensor(index % 2)

    def __len__(self) -> int:
        return SIZE


def plan() -> Plan:
    return Plan.calibrate(Budget(4.0, 1e-4), size=SIZE, batch_size=10, steps=STEPS, clipping="slack")


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def begin(folder: Path, data: Any, stop: int | None = None, store: tuple[int, ...] = (2,)) -> PrivateStep:
    """Take the steps before ``stop``, and store the run where told."""
    model, optimizer = fresh()
    step = PrivateStep(
        model, LOSS, optimizer, made := plan(), ledger=folder / "a.ledger", secret=folder / "secret", test_seed=5
    )
    for place, batch in enumerate(poisson_loader(data, made)):
        if place == stop:
            break
        step(batch)
        if place + 1 in store:
            step.save_checkpoint(folder / f"at-{place + 1}")
    return step


@pytest.mark.parametrize("data", [Drawn(), TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE) % 2)])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, data: Any) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = begin(tmp_path / "whole", data, store=(2, STEPS))
    cut = begin(tmp_path / "cut", data, stop=4)
    cut.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    model, optimizer = fresh()
    step = PrivateStep.resume(tmp_path / "cut" / "at-2", model, LOSS, optimizer)
    assert len(step.record.steps) == 2
    for batch in poisson_loader(data, step.plan, num_workers=1):  # which draws what this process drew
        step(batch)
    step.save_checkpoint(tmp_path / "cut" / "end")
    same = zip(whole.run.model.state_dict().values(), model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
    assert step.record.steps == whole.record.steps
    assert len(Ledger.read(tmp_path / "cut" / "a.ledger").entries()) == 1
    assert not list((tmp_path / "cut").glob("secret*"))
    with pytest.raises(InvalidInput, match="is complete"):
        PrivateStep.resume(tmp_path / "cut" / "end", model, LOSS, optimizer)


def test_other_data_are_refused_where_their_sum_was_released_with_the_same_noise(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE) % 2)
    begin(tmp_path, data, stop=4).__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    other = TensorDataset(data.tensors[0] + 1, data.tensors[1])
    model, optimizer = fresh()
    step = PrivateStep.resume(tmp_path / "at-2", model, LOSS, optimizer)
    with pytest.raises(InvalidInput, match="another sum"), step:
        step(next(iter(poisson_loader(other, step.plan))))


def test_an_older_checkpoint_and_another_plan_are_refused_and_a_secret_is_kept_from_folders(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE) % 2)
    with pytest.raises(InvalidInput, match="without a ledger"):
        PrivateStep((made := fresh())[0], LOSS, made[1], plan(), secret=tmp_path / "secret")
    step = begin(tmp_path, data, stop=5, store=(2, 4))
    with pytest.raises(InvalidInput, match="inside"):
        step.save_checkpoint(tmp_path)
    step.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    model, optimizer = fresh()
    with pytest.raises(InvalidInput, match="the secret of the run stands at step 4"):
        PrivateStep.resume(tmp_path / "at-2", model, LOSS, optimizer)
    with pytest.raises(InvalidInput, match="not that of the run"):
        PrivateStep.resume(tmp_path / "at-4", model, LOSS, optimizer, plan=replace(plan(), steps=STEPS - 1))
    with pytest.raises(InvalidInput, match="keeps no secret"), PrivateStep(model, LOSS, optimizer, plan()) as other:
        other.save_checkpoint(tmp_path / "b")
