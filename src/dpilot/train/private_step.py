"""The private step for people with their own loop: ``for batch in loader: step(batch)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.noise import KeyedNoise, seeded_noise
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.records import RunRecord, StepRecord
from dpilot.train import payment, use
from dpilot.train.collating import check_one_row, first, pieces
from dpilot.train.fitting import record_of
from dpilot.train.job import Job
from dpilot.train.loader import LoadedBatch
from dpilot.train.nulls import Chunk
from dpilot.train.optimizers import OWN
from dpilot.train.options import Options
from dpilot.train.payment import Paying, Purpose
from dpilot.train.plan import Plan
from dpilot.train.reading import on, slices

DEFAULT_CHUNK = 256


class PrivateStep:
    """Clips, sums, adds noise and moves ``optimizer``, once for each batch of the plan's own loader.

    Guarantee:
        The plan is paid when the step is made, before its loader yields a record. Only batches of that loader are
        taken, each once and in order. What is returned was released.

    Edge cases:
        ledger                   a Ledger, one commitment of it, or a path, as for a Trainer
        steps beyond the plan    refused
        stopping early           the price stays what was planned; ``finish()`` books the run as done

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> from dpilot import Budget
        >>> from dpilot.train.loader import poisson_loader
        >>> plan = Plan.calibrate(Budget(2.0, 1e-5), size=64, batch_size=64, steps=2, clipping="constant")
        >>> model = nn.Linear(2, 2)
        >>> loader = poisson_loader(TensorDataset(torch.randn(64, 2), torch.zeros(64, dtype=torch.long)), plan)
        >>> loss = nn.CrossEntropyLoss(reduction="none")
        >>> step = PrivateStep(model, loss, torch.optim.SGD(model.parameters(), lr=0.5), plan)
        >>> for batch in loader:
        ...     print(step(batch))
        StepRecord(step=0, threshold=1.0, bound=1.0, measuring=False)
        StepRecord(step=1, threshold=1.0, bound=1.0, measuring=False)
        >>> step.epsilon <= 2.0
        True
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        *,
        ledger: Paying = None,
        purpose: str = "training",
        part: str | None = None,
        split: str | None = None,
        data_id: str | None = None,
        chunk_size: int = DEFAULT_CHUNK,
        engine: str = "auto",
        per_batch: bool = False,
        amp: bool = False,
        groups: Sequence[Sequence[str]] | None = None,
        example: Any = None,
        test_seed: int | None = None,
    ) -> None:
        options = Options(
            optimizer=OWN,
            engine=engine,
            per_batch=per_batch,
            chunk_size=chunk_size,
            amp=amp,
            groups=None if groups is None else tuple(tuple(group) for group in groups),
        )
        self._job = Job.checked(model, loss_fn, plan, options, optimizer, example=example)
        self._rehearsed = example is not None
        if example is not None:
            self._job.rehearsed(on(self._job.device, example))
        use.check_unused(plan, own_ledger=ledger is None)
        book = payment.opened(ledger, plan, data_id) or payment.own_ledger(plan, None, data_id)
        noise = KeyedNoise() if test_seed is None else seeded_noise(test_seed)
        self._stamp = noise.stamp
        self._open = ExitStack()
        event = payment.price(plan, own=ledger is None)
        self._paid = self._open.enter_context(payment.pay(plan, book, event, Purpose(purpose, part, split)))
        self._use = use.begin(plan, None if test_seed is None else seeded_noise(test_seed).state)
        self._use.form = None if example is None else first(example, batches.size(example, per_batch))
        self._course = self._job.course(noise, self._paid.receipt, example)

    def __call__(self, batch: LoadedBatch) -> StepRecord:
        """Take the next step on the plan's next batch; the record of what it used."""
        if not isinstance(batch, LoadedBatch):
            raise InvalidInput(
                f"the batch is a {type(batch).__name__}: expected one of poisson_loader(dataset, plan), because only "
                "Poisson batches cost what the plan says."
            )
        if batch.parts and not self._rehearsed:
            form = first(batch.parts[0], batch.counts[0])
            check_one_row(form, self._job.options.per_batch)
            self._job.rehearsed(on(self._job.device, form))
            self._rehearsed = True
        chain = self._use.sampler.state
        self._use.sampler.claim(batch.issued)
        self._course.rates = [group["lr"] for group in self._job.optimizer.param_groups]  # the loop's own schedule
        record = self._course.step(chain, self._chunks(batch))
        if self._course.taken == self._job.plan.steps:
            self.finish()
        return record

    def finish(self) -> None:
        """Book the run as done; no further step is taken. The last planned step does this by itself."""
        self._open.close()

    @property
    def epsilon(self) -> float:
        """What the run costs, all planned steps counted."""
        return self._paid.cost.epsilon

    @property
    def delta(self) -> float:
        return self._paid.cost.delta

    @property
    def ledger(self) -> Ledger | Committed:
        return self._paid.ledger

    @property
    def record(self) -> RunRecord:
        """What was released so far."""
        return record_of(self._course, self._paid, self._stamp)

    def _chunks(self, batch: LoadedBatch) -> Iterator[Chunk]:
        size, device = self._job.options.chunk_size or DEFAULT_CHUNK, self._job.device
        for part, count in zip(batch.parts, batch.counts, strict=True):
            for piece, records in pieces(part, count, size):
                ready = on(device, piece)
                yield Chunk(ready, partial(slices, ready, records))
