"""``PrivateStrategy``: a strategy of Lightning under which an unchanged LightningModule trains privately.

::

    import lightning as L
    from dpilot import Budget
    from dpilot.integrations.lightning import PrivateStrategy           # pip install 'dpilot[lightning]'

    strategy = PrivateStrategy(Budget(3.0, 1e-5), ledger="patients.ledger")
    trainer = L.Trainer(max_epochs=3, strategy=strategy)
    trainer.fit(Classifier(), DataLoader(dataset, batch_size=256, shuffle=True))

Its loop, callbacks, schedules, loggers and checkpoints are those of Lightning. What differs: batches are the plan's,
drawn by Poisson sampling, the price is paid before a record is read, the step is ``PrivateStep``, and while it trains
only released values are logged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

try:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.profilers import PassThroughProfiler
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError:  # the package under its older name
    from pytorch_lightning import LightningModule
    from pytorch_lightning.profilers import PassThroughProfiler
    from pytorch_lightning.strategies import SingleDeviceStrategy
    from pytorch_lightning.trainer.states import TrainerFn
    from pytorch_lightning.utilities.model_helpers import is_overridden

from dpilot.clipping import Clipping
from dpilot.engine import batch as batches
from dpilot.engine.base import NoRule
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.records import RunRecord
from dpilot.train.own_loop import LoadedBatch, PrivateStep, poisson_loader
from dpilot.train.payment import Paying
from dpilot.train.plan import Plan
from dpilot.train.run import Run

__all__ = ["PrivateStrategy"]

_REFUSED: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("accumulate_grad_batches", lambda n: n != 1, "the loader's batch_size is the expected batch; chunk_size says how "
     "much of it is computed at a time"),
    ("gradient_clip_val", bool, "each record's gradient is clipped: clipping= names the rule"),
    ("overfit_batches", bool, "batches are drawn by the plan"),
    ("limit_train_batches", lambda part: part != 1.0, "batches are drawn by the plan: max_steps ends a run"),
    ("reload_dataloaders_every_n_epochs", bool, "the data set of a run is one"),
    ("world_size", lambda n: n != 1, "one process trains"),
    ("profiler", lambda own: not isinstance(own, PassThroughProfiler), "it writes the sizes of batches, which are "
     "secret; profile a run on invented records"),
)  # fmt: skip
_PRECISIONS: Final = ("32-true", "bf16-mixed")
_OWN_WAY: Final = {
    "on_before_batch_transfer": "it sees all records of a batch: do it in the data set, record by record",
    "on_after_batch_transfer": "it sees all records of a batch: do it in the data set, record by record",
    "backward": "gradients are computed record by record",
    "optimizer_step": "the private step moves the optimizer",
    "configure_gradient_clipping": "each record's gradient is clipped: clipping= names the rule",
}


class PrivateStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # where Lightning is not installed
    """Trains a LightningModule on one device under differential privacy: ``Trainer(strategy=PrivateStrategy(budget))``.

    Args:
        budget, size: what the run may cost, and the declared number of records, by default that of the loader's data
            set, which is then published. Steps follow from the Trainer's max_epochs or max_steps, the expected batch
            size from the loader, whose data set, collate function and workers are kept.
        plan: instead of both; its steps are those of the run.
        loss_fn: ``loss_fn(module, batch) -> (n,)``, one loss a record: quick. Without it a record's loss is what
            ``training_step`` makes of a batch of that record alone.
        eval_public: says that the records of validation, test and prediction loaders are public.
        secret: a file for the keys of a run that ``trainer.fit(..., ckpt_path=...)`` shall go on with; with ``ledger``.

    Guarantee:
        That of ``PrivateStep``. ``self.log`` in a training hook logs nothing; threshold, bound and epsilon are logged.

    Edge cases:
        training_step with batch statistics    sees one record at a time, as BatchNorm is refused
        a callback of yours that reads batches  is your code: what it shows is not protected
    """

    strategy_name = "dpilot"

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        plan: Plan | None = None,
        size: int | None = None,
        clipping: str | Clipping = "bounded-slack",
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        ledger: Paying = None,
        data_id: str | None = None,
        chunk_size: int | None = None,
        units: Any = None,
        rows_per_unit: int | None = None,
        eval_public: bool = False,
        secret: str | Path | None = None,
        test_seed: int | None = None,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        super().__init__(device or ("cuda:0" if torch.cuda.is_available() else "cpu"), **options)
        if (budget is None) == (plan is None):
            raise InvalidInput("expected one of budget=Budget(epsilon, delta) and plan=.")
        self.plan = plan
        self.private_step: PrivateStep | None = None
        self._budget, self._size, self._clipping = budget, size, clipping
        self._loss_fn = loss_fn or _loss_alone
        self._paying: dict[str, Any] = {"ledger": ledger, "data_id": data_id, "secret": secret}
        self._how: dict[str, Any] = {"chunk_size": chunk_size, "test_seed": test_seed}
        self._units = {} if units is None else {"units": units, "rows_per_unit": rows_per_unit}
        self._eval_public = eval_public
        self._stored: Path | None = None
        self._stopped = False

    @property
    def record(self) -> RunRecord:
        """What the run released so far."""
        return self._require_step().record

    @property
    def run(self) -> Run:
        """The run as ``dpilot.Trainer`` gives it: to save, to look at its steps, to buy figures of."""
        return self._require_step().run

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING and self.private_step is not None:
            raise InvalidInput("fit was called already: expected a new Trainer and PrivateStrategy for each run.")
        super().setup(trainer)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Batches of the plan in place of those of a training loader; others must be public."""
        trainer = self.lightning_module.trainer
        fitting = trainer.state.fn == TrainerFn.FITTING
        if not (fitting and not trainer.sanity_checking and trainer.fit_loop._combined_loader is None):
            self._check_public()
            return dataloader
        _check_module(self.lightning_module)
        _check_trainer(trainer)
        _check_loader(dataloader)
        data, workers = dataloader.dataset, dataloader.num_workers
        self.plan = self.plan or self._calibrate(trainer, len(data), dataloader.batch_size)
        epoch = min(self.plan.steps, round(1 / self.plan.sample_rate))
        collate = None if dataloader.collate_fn is torch.utils.data.default_collate else dataloader.collate_fn
        how: dict[str, Any] = {"collate_fn": collate, "num_workers": workers, "epoch_steps": epoch, **self._units}
        loader = poisson_loader(data, self.plan, **how)
        loader.state_dict, loader.load_state_dict = dict, _ignore  # it knows where it is
        self._pay()
        return loader

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """The step moves its records itself, a chunk at a time."""
        return batch if isinstance(batch, LoadedBatch) else super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One private step. What Lightning would call the loss is not computed for it."""
        batch = next(each for each in (*args, *kwargs.values()) if isinstance(each, LoadedBatch))
        step, module = self._require_step(), self.lightning_module
        module.train()
        made = step(batch)
        shown = {"threshold": made.threshold, "bound": made.bound, "epsilon": step.epsilon}
        for name, value in shown.items():
            LightningModule.log(module, name, value, batch_size=1)
        return torch.zeros(())

    def backward(self, closure_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Done by the private step."""
        del args, kwargs
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """Done by the private step, which the closure takes."""
        del optimizer, args, kwargs
        return closure()

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_public()
        return super().validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_public()
        return super().test_step(*args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_public()
        return super().predict_step(*args, **kwargs)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save as Lightning does; what a run goes on from lies beside, in a folder of the same name."""
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self.private_step is not None and self._paying["secret"] is not None:
            self.private_step.save_checkpoint(_beside(filepath))

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        shutil.rmtree(_beside(filepath), ignore_errors=True)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load as Lightning does; a run that goes on needs what lies beside."""
        if self.lightning_module is None or self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            self._stored = _beside(checkpoint_path)
            if not self._stored.is_dir():
                raise InvalidInput(
                    f"{checkpoint_path} holds no private run: expected {self._stored.name} beside it, which a run with "
                    "secret=, a file for its keys, writes. Without these a step would be released twice."
                )
        found: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return found

    def on_exception(self, exception: BaseException) -> None:
        """The price stays spent; another process may go on."""
        super().on_exception(exception)
        if self.private_step is not None:
            self.private_step.__exit__(type(exception), exception, exception.__traceback__)
            self._stopped = True

    def teardown(self) -> None:
        """Book the run as done, unless it was stopped."""
        if self.private_step is not None and not self._stopped:
            self.private_step.finish()
        for name in _LOGS:
            self.lightning_module.__dict__.pop(name, None)
        super().teardown()

    def _pay(self) -> None:
        """Make the private step, which pays: before Lightning asks the loader for a batch."""
        module = self.lightning_module
        for name in _LOGS:
            module.__dict__[name] = partial(_log_public, module, name)
        amp = self.precision_plugin.precision == "bf16-mixed"
        if self._stored is not None:
            again = {name: self._paying[name] for name in ("ledger", "secret")}
            found = PrivateStep.resume(self._stored, module, self._loss_fn, self.optimizers[0], plan=self.plan, **again)
        else:
            how: dict[str, Any] = {"per_batch": True, "amp": amp, **self._paying, **self._how}
            found = PrivateStep(module, self._loss_fn, self.optimizers[0], self._plan(), **how)
        self.private_step = found

    def _calibrate(self, trainer: Any, records: int, batch: int | None) -> Plan:
        """The plan of as many steps as the Trainer would take."""
        declared = records if self._size is None else self._size
        expected = min(batch or 1, declared)
        steps, epochs = trainer.max_steps, trainer.max_epochs
        planned = [steps] if steps > 0 else []
        planned += [epochs * round(declared / expected)] if epochs is not None and epochs > 0 else []
        if not planned:
            raise InvalidInput(
                "neither max_epochs nor max_steps of the Trainer is set: expected one, as steps are paid."
            )
        assert self._budget is not None
        how: dict[str, Any] = {"size": declared, "batch_size": expected, "steps": min(planned)}
        how["public_size"] = self._size is None
        return Plan.calibrate(self._budget, clipping=self._clipping, **how)

    def _plan(self) -> Plan:
        assert self.plan is not None
        return self.plan

    def _require_step(self) -> PrivateStep:
        if self.private_step is None:
            raise InvalidInput("the run has not begun: expected trainer.fit before. Nothing was paid or released yet.")
        return self.private_step

    def _check_public(self) -> None:
        if not self._eval_public:
            raise InvalidInput(
                "records are validated, tested or predicted on: what is computed on them would be exact, and not "
                "private. Say PrivateStrategy(eval_public=True) if they are public; else give no such loader, and buy "
                "figures of them: strategy.run.evaluate(data, epsilon=...)."
            )


_LOGS: Final = ("log", "log_dict")


def _log_public(module: Any, method: str, /, *args: Any, **kwargs: Any) -> None:
    """What a hook logs outside training: figures of public records. In training hooks it is of private ones."""
    if not module.trainer.training:
        getattr(LightningModule, method)(module, *args, **kwargs)


def _loss_alone(module: Any, batch: Any) -> Tensor:
    """What ``training_step`` makes of a batch of one record: the engine gives it each record so."""
    if batches.size(batch, per_batch=True) != 1:
        raise NoRule("training_step gives one loss for a batch: each record is computed as a batch of its own")
    found = module.training_step(batch, 0)
    loss = found.get("loss") if isinstance(found, Mapping) else found
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise InvalidInput(f"training_step gave a {type(loss).__name__}: expected one loss, or loss_fn=, one a record.")
    return loss.reshape(1)


def _check_module(module: Any) -> None:
    """Refuse what would see a batch, or move the model, otherwise than the private step."""
    if not module.automatic_optimization:
        raise InvalidInput("automatic_optimization is False: expected Lightning's own loop. Use PrivateStep in yours.")
    for name, remedy in _OWN_WAY.items():
        if is_overridden(name, module, LightningModule):
            raise InvalidInput(
                f"{type(module).__name__}.{name} is overridden, which a private run cannot take: {remedy}."
            )


def _check_trainer(trainer: Any) -> None:
    for name, is_wrong, remedy in _REFUSED:
        value = getattr(trainer, name, None)
        if value is not None and is_wrong(value):
            raise InvalidInput(f"{name} is {value!r}, which a private run does not take: {remedy}.")
    if trainer.precision not in _PRECISIONS:
        raise InvalidInput(f"precision is {trainer.precision!r}: expected one of {', '.join(_PRECISIONS)}.")
    if len(trainer.optimizers) != 1:
        raise InvalidInput(f"the module has {len(trainer.optimizers)} optimizers: expected one.")


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, DataLoader):
        raise InvalidInput(f"the training loader is a {type(loader).__name__}: expected a DataLoader of a data set.")


def _beside(path: Any) -> Path:
    """The folder of a private run, beside the file of Lightning's checkpoint."""
    return Path(f"{path}.private")


def _ignore(state: Any) -> None:
    """The loader goes on from where the run is."""
    del state
