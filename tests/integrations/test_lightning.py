"""An unchanged LightningModule, private: Lightning's loop and files, our batches, price and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

L = pytest.importorskip("lightning.pytorch")

from dpilot import Budget, Ledger, Plan, PrivateStep, audit, poisson_loader  # noqa: E402
from dpilot.errors import BudgetExceeded, InvalidInput  # noqa: E402
from dpilot.integrations.lightning import PrivateStrategy  # noqa: E402

SIZE, BATCH = 60, 20
BUDGET = Budget(8.0, 1e-4)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Classifier(L.LightningModule):  # type: ignore[misc, name-defined]
    """As a user of Lightning writes one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data() -> TensorDataset:
    return TensorDataset(torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1)), torch.arange(SIZE) % 2)


def loader(records: Any = None) -> DataLoader[Any]:
    return DataLoader(data() if records is None else records, batch_size=BATCH, shuffle=True)


def trainer(folder: Path, strategy: Any, **more: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1}
    common = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, "default_root_dir": folder}
    return L.Trainer(strategy=strategy, **{**quiet, **common, **more})


class Kept(L.loggers.Logger):  # type: ignore[misc, name-defined]
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    name, version = "kept", 0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.names |= set(metrics)


def test_it_takes_every_planned_step_and_logs_what_was_released(tmp_path: Path) -> None:
    strategy, kept = PrivateStrategy(BUDGET, ledger=tmp_path / "a.ledger", eval_public=True), Kept()
    made = trainer(tmp_path, strategy, logger=kept)
    made.fit(Classifier(), loader(), loader())
    assert made.global_step == strategy.plan.steps == len(strategy.record.steps) == 6
    assert made.current_epoch == 2
    assert kept.names == {"accuracy", "epoch", "threshold", "bound", "epsilon"}
    assert set(made.callback_metrics) == {"accuracy", "threshold", "bound", "epsilon"}
    assert [entry.state for entry in Ledger.read(tmp_path / "a.ledger").entries()] == ["committed"]
    assert strategy.run.epsilon <= 8.0
    with pytest.raises(InvalidInput, match="a new Trainer and PrivateStrategy"):
        made.fit(Classifier(), loader())


def test_its_weights_are_those_of_the_same_steps_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    mine, theirs = Classifier(), Classifier()
    strategy = PrivateStrategy(BUDGET, test_seed=3)
    trainer(tmp_path, strategy).fit(theirs, loader())
    plan = Plan.from_json(strategy.plan.to_json())
    made = mine.configure_optimizers()

    def loss(model: Any, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    step = PrivateStep(mine, loss, made["optimizer"], plan, per_batch=True, test_seed=3, engine="vmap")
    for batch in poisson_loader(data(), plan):
        step(batch)
        made["lr_scheduler"]["scheduler"].step()
    one, other = mine.state_dict(), theirs.state_dict()
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    quick = PrivateStrategy(BUDGET, test_seed=3, loss_fn=loss)
    trainer(tmp_path, quick).fit(fast := Classifier(), loader())
    assert not torch.equal(fast.layers[0].weight, Classifier().layers[0].weight)


def test_nothing_is_read_before_it_is_paid(tmp_path: Path) -> None:
    class Watched(TensorDataset):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    ledger = Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(1.0, 1e-4))
    watched = Watched(*data().tensors)
    with pytest.raises(BudgetExceeded):
        trainer(tmp_path, PrivateStrategy(BUDGET, ledger=ledger)).fit(Classifier(), loader(watched))
    assert watched.reads == 0


@pytest.mark.slow
def test_a_record_more_changes_no_release_by_more_than_its_bound(tmp_path: Path, replay: Any) -> None:
    def run(rows: Any) -> None:
        x = torch.from_numpy(np.array(rows, dtype=np.float32))
        plan = Plan.calibrate(BUDGET, size=12, batch_size=6, steps=2)
        records = TensorDataset(x, (x[:, 0] > 0).long())
        trainer(tmp_path, PrivateStrategy(plan=plan), max_epochs=-1, max_steps=2).fit(Classifier(), loader(records))

    replay(run, pairs=audit.neighbours(np.random.default_rng(0).normal(size=(12, 3)))[:1])


class _Stop(L.Callback):  # type: ignore[misc, name-defined]
    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 5:
            raise RuntimeError("stopped")


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    def begin(name: str, stop: bool, **fit: Any) -> tuple[Any, Any]:
        (tmp_path / name).mkdir(exist_ok=True)
        keys = {"ledger": tmp_path / name / "a.ledger", "secret": tmp_path / f"{name}.secret", "test_seed": 3}
        saves = L.callbacks.ModelCheckpoint(tmp_path / name, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        strategy, module = PrivateStrategy(BUDGET, **keys), Classifier()
        stops = [_Stop()] if stop else []
        made = trainer(tmp_path, strategy, callbacks=[saves, *stops], enable_checkpointing=True)
        made.fit(module, loader(), **fit)
        return strategy, module

    whole, model = begin("whole", stop=False)
    with pytest.raises(RuntimeError, match="stopped"):
        begin("cut", stop=True)
    stored = tmp_path / "cut" / "step=4.ckpt"
    again, same = begin("cut", stop=False, ckpt_path=stored)
    one, other = model.state_dict(), same.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.record.steps == whole.record.steps
    assert len(Ledger.read(tmp_path / "cut" / "a.ledger").entries()) == 1
    assert not list(tmp_path.glob("*.secret*"))
    (tmp_path / "other.ckpt").write_bytes(stored.read_bytes())
    with pytest.raises(InvalidInput, match="holds no private run"):
        trainer(tmp_path, PrivateStrategy(BUDGET)).fit(Classifier(), loader(), ckpt_path=tmp_path / "other.ckpt")


class _Manual(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class _Moves(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


REFUSALS: list[tuple[dict[str, Any], type[Classifier], str]] = [
    ({"accumulate_grad_batches": 2}, Classifier, "expected batch"),
    ({"gradient_clip_val": 1.0}, Classifier, "clipping= names the rule"),
    ({"limit_train_batches": 0.5}, Classifier, "drawn by the plan"),
    ({"precision": "bf16-true"}, Classifier, "precision is"),
    ({"max_epochs": -1}, Classifier, "neither max_epochs nor max_steps"),
    ({}, _Manual, "PrivateStep in yours"),
    ({}, _Moves, "record by record"),
]


@pytest.mark.parametrize(("option", "kind", "words"), REFUSALS, ids=[str(each[2])[:12] for each in REFUSALS])
def test_what_breaks_the_promise_is_refused_with_the_remedy(
    tmp_path: Path, option: dict[str, Any], kind: type[Classifier], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        trainer(tmp_path, PrivateStrategy(BUDGET), **option).fit(kind(), loader())


def test_records_that_were_not_called_public_are_not_looked_at(tmp_path: Path) -> None:
    for look in ("fit", "validate"):
        made, loaders = trainer(tmp_path, PrivateStrategy(BUDGET)), [loader()] * (2 if look == "fit" else 1)
        with pytest.raises(InvalidInput, match="eval_public=True"):
            getattr(made, look)(Classifier(), *loaders)
    with pytest.raises(InvalidInput, match="expected one of budget"):
        PrivateStrategy()
    with pytest.raises(InvalidInput, match="has not begun"):
        _ = PrivateStrategy(BUDGET).record
