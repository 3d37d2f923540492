"""The trainer: one private run of a plan, from the first check to the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dpilot.errors import InvalidInput
from dpilot.privacy.ledger import Ledger, reopen
from dpilot.train import fitting, payment
from dpilot.train.averages import Average
from dpilot.train.averages import average as average_of
from dpilot.train.checkpoint import Manifest
from dpilot.train.job import Job
from dpilot.train.optimizers import OWN, MakeOptimizer
from dpilot.train.options import Options
from dpilot.train.payment import Paying, Purpose
from dpilot.train.plan import Plan
from dpilot.train.progress import Callback, Progress, Watch
from dpilot.train.reading import Collate
from dpilot.train.run import Run
from dpilot.train.schedules import Schedule
from dpilot.train.schedules import schedule as schedule_of
from dpilot.train.terms import Terms, secret_path


class Trainer:
    """Trains ``model`` in place by ``plan``: ``Trainer(model, loss_fn, plan, optimizer="sgd", lr=0.5).fit(dataset)``.

    ``loss_fn(model(x), y)`` gives one loss a sample; with ``per_batch=True`` the call is ``loss_fn(model, batch)``.
    ``ledger`` is where the run is paid: a Ledger, one commitment of it, or a path, where one of the plan's budget is
    made if there is none, for the data set ``data_id`` (or the name of the file). Without one, a ledger of the plan's
    own budget is made and saved with the run.
    ``checkpoint`` names a folder that is written every ``checkpoint_every`` steps and can be resumed from; the keys go
    to ``secret``, a file outside it. ``callback`` is called with the record of each step, ``progress`` with that and
    the time. ``test_seed`` fixes noise and batches, and stamps the record as not private.

    Guarantee:
        The price is on disk before the first record is read, and stays spent whatever happens after. Records,
        callbacks, progress, checkpoints and errors hold declared and released values only.

    Edge cases:
        data set of another length    accepted in silence: the divisor is the plan's
        empty batch, or data set      a step, or all steps, of noise alone, and they count
        record that does not compute  null, in silence; a wrong model or loss is found on made-up records
        example                       a public batch; shows the records' form before anything is spent, where the
                                      data set does not (a TensorDataset does). Without it the first record's form
                                      stands in, and counts as public; so does that there is such a record
        record of another form        null, in silence: missing keys, dimensions, or types that do not cast
        layer-wise rules              groups of parameters are shared out by the model's order, or given as ``groups``

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from dpilot import Budget
        >>> plan = Plan.calibrate(Budget(2.0, 1e-5), size=64, batch_size=64, steps=3, clipping="constant")
        >>> data = TensorDataset(torch.randn(64, 2), torch.zeros(64, dtype=torch.long))
        >>> run = Trainer(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), plan, lr=0.5).fit(data)
        >>> run.epsilon <= 2.0, run.thresholds
        (True, (1.0, 1.0, 1.0))
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        plan: Plan,
        *,
        optimizer: str | MakeOptimizer = "sgd",
        lr: float = 0.1,
        optimizer_options: Mapping[str, Any] | None = None,
        schedule: str | Schedule = "constant",
        average: str | Average | None = None,
        free_step: bool = False,
        ledger: Paying = None,
        purpose: str = "training",
        part: str | None = None,
        split: str | None = None,
        data_id: str | None = None,
        engine: str = "auto",
        per_batch: bool = False,
        low_memory: bool = False,
        chunk_size: int | None = None,
        groups: Sequence[Sequence[str]] | None = None,
        device: str | None = None,
        amp: bool = False,
        collate_fn: Collate | None = None,
        example: Any = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        secret: str | Path | None = None,
        callback: Callback | None = None,
        progress: Progress | None = None,
        test_seed: int | None = None,
    ) -> None:
        named = OWN if callable(optimizer) else optimizer
        options = Options(
            optimizer=named,
            lr=lr,
            optimizer_options=optimizer_options or {},
            schedule=schedule_of(schedule),
            average=average_of(average),
            free_step=free_step,
            engine=engine,
            per_batch=per_batch,
            low_memory=low_memory,
            chunk_size=chunk_size,
            amp=amp,
            device=device,
            groups=None if groups is None else tuple(tuple(group) for group in groups),
        )
        own = optimizer if callable(optimizer) else None
        watch = Watch(callback, progress)
        self._job = Job.checked(model, loss_fn, plan, options, own, collate=collate_fn, example=example, watch=watch)
        self._terms = Terms(
            ledger=payment.opened(ledger, plan, data_id),
            purpose=Purpose(purpose, part, split),
            data_id=data_id,
            folder=None if checkpoint is None else Path(checkpoint),
            every=max(1, plan.steps // 20) if checkpoint_every is None else checkpoint_every,
            secret=None if secret is None else Path(secret),
            test_seed=test_seed,
        )
        self._fitted = False

    def fit(self, dataset: Any) -> Run:
        """Pay, train all the planned steps, and return the run.

        Edge cases:
            Ctrl-C, an error, a full disk    the price stays spent; with ``checkpoint`` the run can be resumed
        """
        if self._fitted:
            raise InvalidInput(
                "fit was called already: expected a new Trainer, with a new model and plan, for each run."
            )
        run = fitting.fit(self._job, self._terms, dataset)
        self._fitted = True
        return run

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        dataset: Any,
        *,
        optimizer: MakeOptimizer | None = None,
        ledger: Ledger | str | Path | None = None,
        secret: str | Path | None = None,
        collate_fn: Collate | None = None,
        example: Any = None,
        callback: Callback | None = None,
        progress: Progress | None = None,
    ) -> Run:
        """Go on with an interrupted run, exactly: the result is bit for bit that of a run that was never interrupted.

        Plan, options, optimizer, clip state and ledger come from the folder; the keys from the secret file. Give
        ``optimizer`` again if it was a callable, and the ``collate_fn`` and ``example``, if any.

        Guarantee:
            Nothing is paid again, because nothing new is released: the same noise is added to the same sums, which is
            checked. Where that cannot be (the secret is gone or ahead, a sum differs) it is refused: a new run pays.
        """
        where = Path(folder)
        manifest = Manifest.read(where)
        if manifest.options.optimizer == OWN and optimizer is None:
            raise InvalidInput("the run used an optimizer of its own: give resume(optimizer=...) the same callable.")
        if manifest.example and example is None:
            raise InvalidInput("the run was given an example: give resume(example=...) one of the same form.")
        more = {"collate": collate_fn, "example": example, "watch": Watch(callback, progress)}
        job = Job.checked(model, loss_fn, manifest.plan, manifest.options, optimizer, **more)
        chosen = secret_path(where, Path(secret or manifest.secret))
        book = reopen(ledger) if isinstance(ledger, str | Path) else ledger
        return fitting.resume(where, manifest, job, dataset, book, chosen)
