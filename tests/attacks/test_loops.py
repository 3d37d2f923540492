"""Attacks on runs and loops of one's own: batches that are used twice, tables read by columns, lines that tell."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, PrivateStep, Trainer, audit, clipping, poisson_loader
from dpilot.errors import InvalidInput
from dpilot.privacy.ledger import Ledger
from dpilot.records import StepRecord
from dpilot.train.run import Run
from tests.attacks.case import normal
from tests.attacks.judge import TOLERANCE

LOSS = nn.CrossEntropyLoss(reduction="none")
STEPS = 6


class Drawing(nn.Module):
    """Draws once for all records, which is told."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + 0 * random.random()


def own_loop(rate: float, ledger: Ledger) -> tuple[PrivateStep, torch.utils.data.DataLoader]:
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=64, sample_rate=rate, steps=STEPS, clipping="constant")
    model, records = nn.Linear(2, 2), TensorDataset(normal(64, 2), torch.zeros(64, dtype=torch.long))
    loader = poisson_loader(records, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateStep(model, LOSS, optimizer, plan, ledger=ledger, example=records[:2]), loader


def test_a_batch_from_before_the_loader_began_anew_moves_no_count(tmp_path: Path) -> None:
    """It raised IndexError and was counted: all batches behind it, and one of them twice in the next round."""
    ledger = Ledger.open(tmp_path / "own.ledger", dataset="own", budget=Budget(2.0, 1e-5))
    step, loader = own_loop(0.5, ledger)
    early = next(iter(loader))
    round_two, used = iter(loader), []
    with suppress(InvalidInput):
        step(early)
    for _ in range(3):
        batch = next(round_two)
        with suppress(InvalidInput):
            step(batch)
            used.append(tuple(batch.issued.indices))
    for batch in loader:
        step(batch)
        used.append(tuple(batch.issued.indices))
    assert len(used) == len(set(used)) == STEPS


class Augmented:
    """Records that draw from every generator as they are read."""

    def __init__(self, records: int) -> None:
        self.x = normal(64, 2)[:records]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i] + torch.randn(2) + random.random() + np.random.random(), 0


def test_no_generator_tells_how_many_records_were_read() -> None:
    """The generators of the process moved with every record of a batch, and with them all draws that follow."""
    kept = Plan.calibrate(Budget(2.0, 1e-5), size=64, sample_rate=0.5, steps=3, clipping="constant").to_dict()

    def run(records: int) -> list[float]:
        torch.manual_seed(0)
        plan, model = Plan.from_dict(kept), nn.Linear(2, 2)
        example = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
        step = PrivateStep(model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), plan, example=example)
        for batch in poisson_loader(Augmented(records), plan):
            step(batch)
        return [torch.rand(()).item(), np.random.random(), random.random()]

    result = audit.replay(run, 15, 16, tolerance=TOLERANCE)
    assert result.largest <= 1 + TOLERANCE
    assert not result.differences


def centre(batch: Any) -> None:
    x, _ = batch
    x -= x.mean(0)


def repeat_the_last(batch: Any) -> None:
    for part in batch:
        part.copy_(part[-1:].clone().expand_as(part))


def centre_what_a_view_shows(batch: Any) -> None:
    view = batch[0].numpy()
    view -= view.mean(0)


def resize(batch: Any) -> None:
    batch[0].resize_(1, 2)


def write_what_is_shared(batch: Any) -> None:
    far = 2.0 * float(batch["x"].max() > 500)
    batch["shared"].sub_(far)
    batch["table"][:] += far


@pytest.mark.parametrize("write", [centre, repeat_the_last, centre_what_a_view_shows, resize, write_what_is_shared])
def test_a_loop_that_writes_into_its_batch_changes_no_sum(write: Any) -> None:
    """The step summed what the loop had made of the batch: up to one bound for each record of it."""
    kept = Plan.calibrate(Budget(2.0, 1e-5), size=16, sample_rate=1.0, steps=2, clipping="constant").to_dict()
    x, shared = normal(16, 2) * 10, write is write_what_is_shared

    def collate(rows: list[Any]) -> Any:
        whole = {"x": rows[0][0][None], "y": rows[0][1][None], "shared": torch.ones(3), "table": np.ones(3)}
        return whole if shared else (whole["x"], whole["y"])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = (batch["x"] * batch["shared"][0] * float(batch["table"][0]), batch["y"]) if shared else batch
        return LOSS(model(x), y)

    def run(records: int) -> list[StepRecord]:
        torch.manual_seed(0)
        plan, model = Plan.from_dict(kept), nn.Linear(2, 2)
        data = TensorDataset(x[:records], torch.arange(records) % 2)
        step = PrivateStep(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), plan, per_batch=True)
        taken = []
        for batch in poisson_loader(data, plan, collate_fn=collate):
            write(batch)
            taken.append(step(batch))
        return taken

    x[15] = 1000.0
    result = audit.replay(run, 15, 16, tolerance=TOLERANCE)
    assert result.releases == 2
    assert result.largest <= 1 + TOLERANCE
    assert not result.differences


@pytest.mark.parametrize("option", [{"timeout": 1.0}, {"in_order": False}])
def test_a_record_that_takes_long_does_not_decide_what_comes_next(option: dict[str, Any]) -> None:
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=64, sample_rate=0.5, steps=3, clipping="constant")
    with pytest.raises(InvalidInput, match="takes long"):
        poisson_loader(Augmented(3), plan, num_workers=1, **option)


@pytest.mark.parametrize("n", [0, 1])
def test_no_line_tells_that_a_record_is_in_a_batch(n: int) -> None:
    """How gradients are computed was told at the first batch that was not empty."""
    kept = Plan.calibrate(Budget(2.0, 1e-5), size=64, sample_rate=0.5, steps=3, clipping="constant").to_dict()

    def run(records: int) -> list[StepRecord]:
        plan, model = Plan.from_dict(kept), Drawing()
        loader = poisson_loader(TensorDataset(normal(64, 2)[:records], torch.zeros(records, dtype=torch.long)), plan)
        step = PrivateStep(model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), plan)
        return [step(batch) for batch in loader]

    result = audit.replay(run, n, n + 1, tolerance=TOLERANCE)
    assert result.largest <= 1 + TOLERANCE
    assert not result.differences


def test_a_frame_which_is_indexed_by_columns_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """A row was in each of 30 records: 31 bounds."""
    ledger = Ledger.open(tmp_path / "own.ledger", dataset="own", budget=Budget(2.0, 1e-5))
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=30, sample_rate=1.0, steps=1, clipping="constant")

    def collate(rows: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.tensor(rows[0].values[-1:], dtype=torch.float32)[:, None], torch.zeros(1, dtype=torch.long)

    trainer = Trainer(nn.Linear(1, 2), LOSS, plan, ledger=ledger, collate_fn=collate)
    with pytest.raises(InvalidInput, match="columns"):
        trainer.fit(pd.DataFrame(normal(30, 30).numpy()))
    assert not ledger.entries()


def test_an_optimizer_that_computes_the_loss_again_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "own.ledger", dataset="own", budget=Budget(2.0, 1e-5))
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=30, sample_rate=1.0, steps=1, clipping="constant")
    with pytest.raises(InvalidInput, match="closure"):
        Trainer(nn.Linear(2, 2), LOSS, plan, ledger=ledger, optimizer=torch.optim.LBFGS)
    assert not ledger.entries()


@pytest.mark.parametrize("layers", [1, 2])
def test_an_empty_batch_is_refused_where_another_is(layers: int) -> None:
    """A layer that is thawed during a run is in no group: a batch without records went on."""
    rule, x = clipping.get("constant", groups=layers), normal(1, 2)
    kept = Plan.calibrate(Budget(2.0, 1e-5), size=64, sample_rate=1.0, steps=2, clipping=rule).to_dict()

    def run(records: int) -> Any:
        torch.manual_seed(0)
        plan, model = Plan.from_dict(kept), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[0].requires_grad_(False)
        loader = poisson_loader(TensorDataset(x[:records], torch.zeros(records, dtype=torch.long)), plan)
        step = PrivateStep(model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), plan)
        for batch in loader:
            step(batch)
            model[0].requires_grad_(True)
        return model

    result = audit.replay(run, 0, 1, tolerance=TOLERANCE)
    assert result.largest <= 1 + TOLERANCE
    assert not result.differences


class Talks:
    """Records of which the last makes data set, collate function, model or loss log a line, as long texts do."""

    def __init__(self, records: int, place: str) -> None:
        self.records, self.place = records, place

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i >= self.records:
            raise IndexError
        self.say("data", i == 15)
        return torch.full((2,), float(i)), i % 2

    def say(self, place: str, last: Any) -> None:
        if place == self.place and last:
            logging.getLogger("tokens").critical("a text is longer than 512 tokens")

    def collate(self, rows: list[Any]) -> Any:
        self.say("collate", rows[0][0][0] == 15)
        return rows[0][0][None], torch.tensor([rows[0][1]])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.say("loss", bool((batch[0] == 15).any()))
        return LOSS(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("way", "place"), [("trainer", "loss"), ("trainer", "data"), ("own loop", "collate"), ("figures", "data")]
)
def test_a_line_that_is_logged_because_of_a_record_is_not_seen(way: str, place: str) -> None:
    kept = Plan.calibrate(Budget(2.0, 1e-5), size=16, sample_rate=1.0, steps=2, clipping="constant").to_dict()
    example = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)

    def run(records: int) -> Any:
        torch.manual_seed(0)
        plan, model, data = Plan.from_dict(kept), nn.Linear(2, 2), Talks(records, place)
        if way == "figures":
            trained = Run(model, Trainer(model, LOSS, plan).fit(TensorDataset(*example)).record)
            return str(trained.evaluate(data, epsilon=1.0, example=example, collate_fn=data.collate).metrics)
        more: Any = {"example": example, "per_batch": True, "chunk_size": 16}
        if way == "trainer":
            return Trainer(model, data.loss, plan, collate_fn=data.collate, **more).fit(data).record
        step = PrivateStep(model, data.loss, torch.optim.SGD(model.parameters(), lr=0.1), plan, **more)
        return [step(batch) for batch in poisson_loader(data, plan, collate_fn=data.collate)]

    result = audit.replay(run, 15, 16, tolerance=TOLERANCE, opaque=("ledger*",))
    assert result.largest <= 1 + TOLERANCE
    assert not result.differences


class Autoregression(nn.Module):
    """The coefficients of an autoregression of each series, by least squares, are its features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        lags = torch.stack([x[:, 1:-1], x[:, :-2]], 2)
        return self.head(torch.linalg.lstsq(lags, x[:, 2:, None]).solution[..., 0])


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="another LAPACK prints nothing")
def test_a_record_that_a_kernel_complains_of_prints_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A series with one missing value: 10 lines "Parameter 4 was incorrect on entry to SGELSY" in two steps."""
    x = normal(16, 20)
    x[5, 7] = torch.nan
    plan = Plan.calibrate(Budget(5.0, 1e-5), size=16, sample_rate=1.0, steps=2, clipping="constant")
    Trainer(Autoregression(), LOSS, plan, lr=0.1).fit(TensorDataset(x, torch.arange(16) % 2))
    assert "oneMKL" not in capfd.readouterr().out
