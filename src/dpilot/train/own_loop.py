"""The private step for people with their own loop: ``for batch in loader: step(batch)``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpilot import _validate
from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.noise import KeyedNoise, seeded_noise
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import RunRecord, StepRecord
from dpilot.sampling import Batch, check_source
from dpilot.train import payment
from dpilot.train.checkpoint.secret import run_key
from dpilot.train.job import Job, check_plan
from dpilot.train.optimizers import OWN
from dpilot.train.options import Options
from dpilot.train.payment import Paying, PlanUse, Purpose, begin_use, check_unused, use_of
from dpilot.train.plan import Plan
from dpilot.train.records.reader import (
    Collate,
    Reader,
    RecordChunk,
    check_one_row,
    declared_form,
    first_record,
    pick_chunks,
    record_chunks,
)
from dpilot.train.records.unit_chunk import MEAN
from dpilot.train.records.unit_reader import UnitReader, Units, check_ids, first_row, group_units
from dpilot.train.run import Run
from dpilot.train.step import record_of, step_randomness

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
        chunk_size: int | None = None,
        engine: str = "auto",
        per_batch: bool = False,
        amp: bool = False,
        groups: Sequence[Sequence[str]] | None = None,
        unit_gradient: str = MEAN,
        example: Any = None,
        test_seed: int | None = None,
    ) -> None:
        check_plan(plan)
        given, plan = plan, replace(plan, unit=use_of(plan).unit)
        options = Options(
            optimizer=OWN,
            engine=engine,
            per_batch=per_batch,
            chunk_size=max(1, DEFAULT_CHUNK // (plan.unit.rows or 1)) if chunk_size is None else chunk_size,
            amp=amp,
            groups=None if groups is None else tuple(tuple(group) for group in groups),
            unit_gradient=unit_gradient,
        )
        self._job = Job.create(model, loss_fn, plan, options, optimizer, example=example)
        form = None if example is None else self._job.chunk_form(example)
        if form is not None:
            self._job.dry_run(form)
        check_unused(given, own_ledger=ledger is None)
        book = payment.open_ledger(ledger, plan, data_id) or payment.own_ledger(plan, None, data_id)
        noise = KeyedNoise() if test_seed is None else seeded_noise(test_seed)
        self._stamp = noise.stamp
        self._open = ExitStack()
        event = payment.price(plan, own=ledger is None)
        self._paid = self._open.enter_context(payment.pay(plan, book, event, Purpose(purpose, part, split)))
        self._use = begin_use(given, None if test_seed is None else seeded_noise(test_seed).state)
        self._use.key = run_key(noise)
        if example is None:
            self._use.rehearse = weakref.WeakMethod(self._rehearse)
        else:
            self._use.form = first_record(example, batches.size(example, per_batch))
        self._state = self._job.start(noise, self._paid.receipt, form)

    def __call__(self, batch: LoadedBatch) -> StepRecord:
        """Take the next step on the plan's next batch; the record of what it used."""
        if not isinstance(batch, LoadedBatch):
            raise InvalidInput(
                f"the batch is a {type(batch).__name__}: expected one of poisson_loader(dataset, plan), because only "
                "Poisson batches cost what the plan says."
            )
        chain = self._use.sampler.state
        self._use.sampler.claim(batch.issued)
        self._state.rates = [group["lr"] for group in self._job.optimizer.param_groups]  # the loop's own schedule
        record = self._state.step(chain, self._chunks(batch))
        if self._state.steps_taken == self._job.plan.steps:
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
        return record_of(self._state, self._paid, self._stamp)

    @property
    def run(self) -> Run:
        """The run so far as a Trainer would return it: to save, report or evaluate it."""
        return Run(self._job.model, self.record, self.ledger)

    def _rehearse(self, form: Any) -> None:
        """Try the model on made-up records in a public form, as a loader begins: which batch has records is secret."""
        check_one_row(form, self._job.options.per_batch)
        self._job.dry_run(self._job.chunk_form(form))

    def _chunks(self, batch: LoadedBatch) -> Iterator[RecordChunk]:
        for part, count in zip(batch.parts, batch.counts, strict=True):
            pieces = self._job.scatter(batch.issued, count)
            yield from record_chunks(pick_chunks(part, count, pieces), self._job.device)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LoadedBatch:
    """One Poisson batch with its records, for the one step it may be used in.

    ``parts`` are pieces of the batch, records of equal shapes: one as a rule, none of an empty batch. ``counts`` says
    how many records each holds. How many there are is secret: the representation shows the step only.
    """

    issued: Batch
    parts: tuple[Any, ...]
    counts: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"LoadedBatch(step={self.issued.step})"


def poisson_loader(
    dataset: Any,
    plan: Plan,
    *,
    units: Any = None,
    rows_per_unit: int | None = None,
    missing_unit: str | None = None,
    num_workers: int = 0,
    collate_fn: Collate | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """A DataLoader that yields the plan's Poisson batches, ``plan.steps`` of them, empty ones included.

    Hand each to ``PrivateStep``, in order. Keys of noise and batches stay in this process; workers only read records.
    ``units``, ``rows_per_unit`` and ``missing_unit`` are those of a Trainer: batches are then of units with their rows.

    Guarantee:
        No record is read before a PrivateStep of the same plan has paid. Iterating anew issues again, unchanged, the
        batches that no step took.

    Edge cases:
        record that cannot be read    left out, in silence: the null record; so is one of another form than the
                                      PrivateStep's ``example`` (without one: the TensorDataset's, or the first
                                      record's)
        collate_fn                    is given one record at a time, and what it makes of them is joined where shapes
                                      are equal: none is padded to another, or standardised by it
        a sampler of its own          refused: batch_size, shuffle, sampler and the like are the plan's business
        timeout, in_order             refused: a record that takes long to read must not decide what comes next
        units, and no unit named      the loader is made before the PrivateStep, which is then paid for units
        a data set that draws         leaves the generators of the process where they were, whatever the batches hold
    """
    check_plan(plan)
    check_source(dataset)
    _validate.count(least=0, num_workers=num_workers)
    late = {"timeout", "in_order"} & set(options)
    if late:
        raise InvalidInput(
            f"{', '.join(sorted(late))} is given: expected none of these, as a record that takes long to read would "
            "then decide whether the loop goes on."
        )
    taken = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & set(options)
    if taken:
        raise InvalidInput(
            f"{', '.join(sorted(taken))} is given: expected none of these, as the plan draws the batches."
        )
    unit = plan.with_unit(units is not None, rows_per_unit, missing_unit).unit
    check_ids(dataset, units, unit)
    use = use_of(plan)
    if not use.paid:
        use.unit = unit
    _check_paid_for(use, unit)
    loaded = _Loaded(dataset, collate_fn, units, unit)
    return DataLoader(
        cast(Any, loaded),
        batch_sampler=_Issued(plan, loaded, here=num_workers == 0),
        num_workers=num_workers,
        collate_fn=cast(Any, _as_it_is),
        **options,
    )


class _Issued:
    """The plan's batches as what a DataLoader calls a batch sampler; it runs in the main process."""

    def __init__(self, plan: Plan, loaded: _Loaded, *, here: bool) -> None:
        self._plan = plan
        self._loaded = loaded
        self._here = here  # records are read in this process, not in workers

    def __iter__(self) -> Iterator[Any]:
        use = use_of(self._plan)
        if not use.paid:
            raise InvalidInput(
                "the loader is read before anything was paid: make the PrivateStep of this plan first, which reserves "
                "its price, and iterate after."
            )
        _check_paid_for(use, self._loaded.unit)
        self._loaded.find_form(use.form)  # before workers begin, which copy it
        self._loaded.group(use.key)
        rehearse = None if use.rehearse is None else use.rehearse()
        if rehearse is not None and self._loaded.form is not None:
            rehearse(self._loaded.form)
            use.rehearse = None
        issued = use.rewind().batches(len(self._loaded))
        return self._with_coins(issued) if self._here else issued

    def _with_coins(self, issued: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, each read with coins of its own, which torch's seed decides.

        Read with the generators of the process, a data set that draws would leave these where they tell how many
        records there were. Workers have generators of their own.
        """
        coins = Chain(torch.randint(256, (KEY_BYTES,), dtype=torch.uint8).numpy().tobytes())
        for batch in issued:
            self._loaded.coins, coins = coins, coins.next()
            yield batch

    def __len__(self) -> int:
        return self._plan.steps


class _Loaded:
    """A data set of batches: what is asked for is an issued batch, what comes back are its records, collated."""

    def __init__(self, dataset: Any, collate: Collate | None, ids: Any, unit: PrivacyUnit) -> None:
        self._dataset = dataset
        self._collate = collate
        self._ids = ids
        self.unit = unit
        self.form = declared_form(dataset, collate)
        self.coins: Chain | None = None
        self._units: Units | None = None

    def find_form(self, declared: Any) -> None:
        """Settle the form: as declared, as the data set's types tell, or that of the first record."""
        if declared is not None:
            self.form = declared
        elif self.form is None:
            self.form = first_row(self._dataset, self._ids, self.unit, self._collate)

    def group(self, key: bytes) -> None:
        """Settle which rows are one unit's, by a secret of the run; those of a run are grouped once."""
        if not self.unit.is_record and self._units is None:
            self._units = group_units(self._dataset, self._ids, self.unit, key)

    @property
    def _reader(self) -> Reader | UnitReader:
        rows = Reader(self._dataset, self._collate, self.form)
        return rows if self._units is None else UnitReader(self._units, rows, self.unit.rows or 1)

    def __getitems__(self, issued: Batch) -> LoadedBatch:
        if not issued.indices.size:
            return LoadedBatch(issued, ())
        if self.form is None:
            return LoadedBatch(issued, ())  # no record shows a form, so none has it
        with nullcontext() if self.coins is None else step_randomness(self.coins):
            found = list(self._reader.counted_chunks([issued.indices]))
        return LoadedBatch(issued, tuple(whole for whole, _ in found), tuple(count for _, count in found))

    def __getitem__(self, index: int) -> Any:
        raise InvalidInput(f"record {index} is asked for alone: expected batches. Iterate over the loader.")

    def __len__(self) -> int:
        return len(self._reader)


def _check_paid_for(use: PlanUse, unit: PrivacyUnit) -> None:
    """Refuse batches of another unit than those that are paid for."""
    if use.unit != unit:
        raise InvalidInput(
            f"the loader draws {unit}, and the PrivateStep of its plan protects {use.unit}: expected one unit. Name it "
            "in the plan, Plan.calibrate(..., unit=...), or make the loader before the step."
        )


def _as_it_is(loaded: LoadedBatch) -> LoadedBatch:
    return loaded
