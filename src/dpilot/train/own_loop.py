"""The private step for people with their own loop: ``for batch in loader: step(batch)``."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpilot import _validate
from dpilot._quiet import keep_quiet
from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.noise import KeyedNoise, seeded_noise
from dpilot.privacy.ledger import Committed, Ledger, reopen
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import RunRecord, StepRecord
from dpilot.sampling import Batch, check_source
from dpilot.train import payment
from dpilot.train.batches.reader import (
    Collate,
    Reader,
    RecordChunk,
    check_one_row,
    declared_form,
    first_record,
    pick_chunks,
    record_chunks,
)
from dpilot.train.batches.unit_chunk import MEAN
from dpilot.train.batches.unit_reader import UnitReader, Units, check_ids, first_row, group_units, unit_key
from dpilot.train.checkpoint.secret import run_key
from dpilot.train.checkpoint.store import Manifest, StoredRun
from dpilot.train.job import Job, check_plan
from dpilot.train.optimizers import OWN
from dpilot.train.options import Options
from dpilot.train.payment import Paying, Payment, PlanUse, Purpose, begin_use, check_unused, use_of
from dpilot.train.plan import Plan
from dpilot.train.randomness import step_randomness
from dpilot.train.ranks import Ranks, find_ranks
from dpilot.train.run import Run
from dpilot.train.step import record_of
from dpilot.train.step_secret import StepSecret
from dpilot.train.trainer import run_noise, same_ledger

DEFAULT_CHUNK = 256


class PrivateStep:
    """Clips, sums, adds noise and moves ``optimizer``, once for each batch of the plan's own loader.

    Guarantee:
        The plan is paid when the step is made, before its loader yields a record. Only batches of that loader are
        taken, each once and in order. What is returned was released.

    Edge cases:
        ledger                   a Ledger, one commitment of it, or a path, as for a Trainer
        steps beyond the plan    refused
        stopping early           the price stays what was planned; ``finish()`` books the run as done, and so does the
                                 end of ``with PrivateStep(...) as step:``
        secret                   a file for the run's keys, beside its ledger: ``save_checkpoint`` then stores a run
                                 that ``PrivateStep.resume`` goes on with
        several ranks            the same loop on each: rank 0 pays, and its loader tells the others what to read; there
                                 is no ``secret`` then

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
        secret: str | Path | None = None,
        test_seed: int | None = None,
    ) -> None:
        check_plan(plan)
        given, plan, ranks = plan, replace(plan, unit=use_of(plan).unit), find_ranks()
        if secret is not None:
            check_alone(ranks)
        options = Options(
            optimizer=OWN,
            engine=engine,
            per_batch=per_batch,
            chunk_size=max(1, DEFAULT_CHUNK // (plan.unit.rows or 1)) if chunk_size is None else chunk_size,
            amp=amp,
            groups=groups,
            unit_gradient=unit_gradient,
            exact_sums=ranks.size > 1,
        )
        self._job = Job.create(model, loss_fn, plan, options, optimizer, example=example, ranks=ranks)
        if secret is not None and self._job.shards is not None:
            raise InvalidInput(
                "secret is given, and the model lies in pieces (fully_shard): expected none. Use a Trainer with "
                "checkpoint=, which stores it by shard."
            )
        with ranks.watch():
            self._begin(given, ledger, Purpose(purpose, part, split), data_id, secret, test_seed)

    def _begin(
        self, given: Plan, ledger: Paying, purpose: Purpose, data_id: str | None, secret: str | Path | None,
        test_seed: int | None,
    ) -> None:  # fmt: skip
        """Pay, on rank 0, and stand before the first step."""
        job, ranks = self._job, self._job.ranks
        plan, example = job.plan, job.example
        form = None if example is None else job.chunk_form(example)
        check_unused(given, own_ledger=ledger is None)
        job.join((), test_seed)
        if form is not None:
            job.dry_run(form)

        def open_book() -> Ledger | Committed:
            return payment.open_ledger(ledger, plan, data_id) or payment.own_ledger(plan, None, data_id)

        with ExitStack() as opened:
            book = None if secret is None else open_book()
            self._kept = None if secret is None else StepSecret.begin(secret, None if ledger is None else book, opened)
            noise = run_noise(test_seed, None if self._kept is None else self._kept.log)
            self._stamp = noise.stamp

            def pay_here() -> AbstractContextManager[Payment]:
                return payment.pay(plan, book or open_book(), payment.price(plan, own=ledger is None), purpose)

            self._paid = opened.enter_context(payment.pay_once(ranks, plan, pay_here))
            self._use = begin_use(given, None if test_seed is None else seeded_noise(test_seed).state)
            self._use.key = ranks.once(lambda: unit_key(run_key(noise)))
            self._use.ranks = ranks
            self._ask_for_form(example)
            self._state = job.start(noise, self._paid.receipt, form)
            if self._kept is not None:
                assert isinstance(self._paid, Payment)  # a run that can be resumed is one process
                self._kept.keep_first(job, self._paid, noise, self._use)
            self._open = opened.pop_all()

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        *,
        plan: Plan | None = None,
        ledger: Ledger | str | Path | None = None,
        secret: str | Path | None = None,
        example: Any = None,
    ) -> PrivateStep:
        """Go on with a run that ``save_checkpoint`` stored in ``folder``, exactly; model and optimizer are put back.

        Make its loader after: ``poisson_loader(dataset, step.plan)``, or of ``plan``, the stored one in another object.
        It yields the batches that are left. A step-size schedule is the loop's own, to be put back by the loop.

        Guarantee:
            That of ``Trainer.resume``: nothing is paid again, as the same noise covers the same sums, which is checked.
        """
        check_alone(find_ranks())
        where, step = Path(folder), cls.__new__(cls)
        manifest, stored = Manifest.read(where), StoredRun.read(where)
        given = manifest.plan if plan is None else plan
        if stored.steps_taken == manifest.plan.steps and not Path(secret or manifest.secret).exists():
            raise InvalidInput(f"the run in {where} is complete, all {manifest.plan.steps} steps: take its model.")
        if replace(given, unit=manifest.plan.unit) != manifest.plan:
            raise InvalidInput(f"the plan is not that of the run in {where}: leave it out, and make none anew.")
        if manifest.example != (example is not None):
            had = "an example: give resume(example=...) one of the same form" if manifest.example else "no example"
            raise InvalidInput(f"the run in {where} was given {had}.")
        step._job = Job.create(model, loss_fn, manifest.plan, manifest.options, optimizer, example=example)
        stored.check_fits(model)
        book = same_ledger(where, manifest, reopen(ledger) if isinstance(ledger, str | Path) else ledger)
        with ExitStack() as opened:
            step._kept, kept = StepSecret.reopen(where, manifest, stored, secret, opened)
            noise = KeyedNoise(kept.noise, stamp=manifest.stamp, witness=step._kept.log)
            place = manifest.seq, manifest.stage
            resumed = payment.resume_payment(manifest.plan, book, *place, stored.steps_taken)
            step._paid, step._stamp = opened.enter_context(resumed), manifest.stamp
            form = None if example is None else step._job.chunk_form(example)
            step._state = step._job.start(noise, step._paid.receipt, form)
            stored.restore_into(step._state)
            step._use = begin_use(given, kept.sampling)
            step._use.key = unit_key(kept.seal)
            step._ask_for_form(example)
            step._open = opened.pop_all()
        if step._is_over:
            step.finish()
        return step

    def _ask_for_form(self, example: Any) -> None:
        """Have the loader say what records look like, as it begins, where no example does."""
        if example is None:
            self._use.rehearse = weakref.WeakMethod(self._rehearse)
        else:
            self._use.form = first_record(example, batches.size(example, self._job.options.per_batch))

    def __call__(self, batch: LoadedBatch) -> StepRecord:
        """Take the next step on the plan's next batch; the record of what it used."""
        if not isinstance(batch, LoadedBatch):
            raise InvalidInput(
                f"the batch is a {type(batch).__name__}: expected one of poisson_loader(dataset, plan), because only "
                "Poisson batches cost what the plan says."
            )
        chain = self._use.sampler.state
        with self._job.ranks.watch():
            self._use.sampler.claim(batch.issued)
            if self._kept is not None:
                self._kept.ratchet()
            self._state.rates = [group["lr"] for group in self._job.optimizer.param_groups]  # the loop's own schedule
            record = self._state.step(chain, self._chunks(batch))
        if self._is_over and self._kept is None:
            self.finish()
        return record

    def finish(self) -> None:
        """Book the run as done; no further step is taken. The last planned step does this by itself, or, of a run that
        can be resumed, the checkpoint after it, as what is not stored would be lost with the keys."""
        self._open.close()
        if self._kept is not None:
            self._kept.forget()

    def __enter__(self) -> PrivateStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: Any) -> None:
        """Leaving books the run as done; an exception leaves it spent, and free for another process to resume."""
        if problem is None:
            self.finish()
        else:
            self._open.__exit__(kind, problem, trace)

    def save_checkpoint(self, folder: str | Path) -> Path:
        """Store the run as it stands between two steps: plan, model, optimizer, clip state and what was released.

        The step needs a ``secret``, the path of a file that holds its keys, outside whatever folder is shared. The next
        step moves these on, and older checkpoints can then be looked at, but not resumed.
        """
        if self._kept is None:
            raise InvalidInput("the step keeps no secret: expected PrivateStep(..., secret=path) to go on from a file.")
        where = self._kept.write(Path(folder), self._state, self._use)
        if self._is_over:
            self.finish()
        return where

    @property
    def plan(self) -> Plan:
        """The plan that was paid."""
        return self._job.plan

    @property
    def _is_over(self) -> bool:
        return self._state.steps_taken == self._job.plan.steps

    @property
    def epsilon(self) -> float:
        """What the run costs, all planned steps counted."""
        return self._paid.cost.epsilon

    @property
    def delta(self) -> float:
        return self._paid.cost.delta

    @property
    def ledger(self) -> Ledger | Committed | None:
        """Where the run was paid; None on other ranks than the first, which paid."""
        return self._paid.ledger

    @property
    def record(self) -> RunRecord:
        """What was released so far."""
        return record_of(self._state, self._paid, self._stamp)

    @property
    def run(self) -> Run:
        """The run so far as a Trainer would return it: to save, report or evaluate it."""
        return Run(self._job.model, self.record, self.ledger, self._job.ranks.leads)

    def _rehearse(self, form: Any) -> None:
        """Try the model on made-up records in a public form, as a loader begins: which batch has records is secret."""
        check_one_row(form, self._job.options.per_batch)
        self._job.dry_run(self._job.chunk_form(form))

    def _chunks(self, batch: LoadedBatch) -> Iterator[RecordChunk]:
        for number, (part, count) in enumerate(batch._read):
            pieces = self._job.scatter(batch.issued, count, number)
            yield from record_chunks(pick_chunks(part, count, pieces), self._job.device)


def check_alone(ranks: Ranks) -> None:
    """Refuse a loop of one's own that can be resumed, on several ranks."""
    if ranks.size > 1:
        raise InvalidInput(
            f"there are {ranks.size} ranks, and a loop of one's own that can be resumed runs in one process: expected "
            "no secret. Use a Trainer with checkpoint=, which resumes on any number of ranks."
        )


@dataclass(frozen=True, repr=False, eq=False)
class LoadedBatch:
    """One Poisson batch with its records, for the one step it may be used in.

    It behaves like the mapping, tuple or tensor that its records make, an empty batch with no rows: ``batch["x"]``,
    ``x, y = batch``, ``model(**batch)``. What is computed from it is not private; a step is.

    ``_read`` are the pieces of the batch, records of equal shapes, and how many each holds: one as a rule, none of an
    empty batch. ``form`` shows one. How many there are is secret: the representation shows the step only.

    Guarantee:
        The step sums the records that were drawn, as they were read. What is shown is a copy: a loop that writes into
        it (to standardise it, to mix it up) changes what it looks at itself, and nothing else.
    """

    issued: Batch
    _read: tuple[tuple[Any, int], ...]
    form: Any = None

    @cached_property
    def whole(self) -> Any:
        """A copy of all its records as one: what a loader of torch would have yielded."""
        if len(self._read) == 1:
            return copy.deepcopy(self._read[0][0])
        if self._read or self.form is None:
            raise InvalidInput(
                "the records of a batch have several shapes, or none, and do not make one batch: expected records of "
                "one length. Pad them where they are read."
            )
        return copy.deepcopy(batches.rows(self.form, 1, 0, 0))

    def __getitem__(self, key: Any) -> Any:
        return self.whole[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "items", "keys", "values"):  # of a mapping alone
            return getattr(self.whole, name)
        raise AttributeError(f"a batch of a private run has no {name!r}: expected it of the records that it holds.")

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
    epoch_steps: int | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """A DataLoader that yields the plan's Poisson batches, ``plan.steps`` of them, empty ones included.

    Hand each to ``PrivateStep``, in order. Keys of noise and batches stay in this process; workers only read records.
    ``units``, ``rows_per_unit`` and ``missing_unit`` are those of a Trainer: batches are then of units with their rows.
    With ``epoch_steps`` an iteration ends after so many, for loops that count epochs; the next one goes on.

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
        a data set that draws         does so by secret seeds, each record's its own, in workers too, and leaves the
                                      generators of the process where they were
    """
    check_plan(plan)
    check_source(dataset)
    _validate.count(least=0, num_workers=num_workers)
    if epoch_steps is not None:
        _validate.count(epoch_steps=epoch_steps)
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
        batch_sampler=_Issued(plan, loaded, epoch=epoch_steps or plan.steps),
        num_workers=num_workers,
        collate_fn=cast(Any, _as_it_is),
        **options,
    )


class _Issued:
    """The plan's batches as what a DataLoader calls a batch sampler; it runs in the main process."""

    def __init__(self, plan: Plan, loaded: _Loaded, *, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._loaded = loaded

    def __iter__(self) -> Iterator[Any]:
        use = use_of(self._plan)
        if not use.paid:
            raise InvalidInput(
                "the loader is read before anything was paid: make the PrivateStep of this plan first, which reserves "
                "its price, and iterate after."
            )
        _check_paid_for(use, self._loaded.unit)
        with use.ranks.watch():
            self._loaded.find_form(use.form, use.ranks)  # before workers begin, which copy it
            self._loaded.group(use.key)
            rehearse = None if use.rehearse is None else use.rehearse()
            if rehearse is not None and self._loaded.form is not None:
                rehearse(self._loaded.form)
                use.rehearse = None
        whole = use.rewind().batches(len(self._loaded) if use.ranks.leads else 0)
        left = self._epoch - use.sampler.position % self._epoch  # of an epoch that was begun before
        return islice(map(use.ranks.deal_records, whole), left)

    def __len__(self) -> int:
        return self._epoch


class _Loaded:
    """A data set of batches: what is asked for is an issued batch, what comes back are its records, collated."""

    def __init__(self, dataset: Any, collate: Collate | None, ids: Any, unit: PrivacyUnit) -> None:
        self._dataset = dataset
        self._collate = collate
        self._ids = ids
        self.unit = unit
        self.form = declared_form(dataset, collate)
        self._units: Units | None = None

    def find_form(self, declared: Any, ranks: Ranks) -> None:
        """Settle the form: as declared, as the data set's types tell, or that of the first record."""
        if declared is not None:
            self.form = declared
        elif self.form is None:
            self.form = ranks.once(lambda: first_row(self._dataset, self._ids, self.unit, self._collate))

    def group(self, key: bytes) -> None:
        """Settle which rows are one unit's, by a secret of the run; those of a run are grouped once."""
        if not self.unit.is_record and self._units is None:
            self._units = group_units(self._dataset, self._ids, self.unit, key)

    @property
    def _reader(self) -> Reader | UnitReader:
        rows = Reader(self._dataset, self._collate, self.form)
        return rows if self._units is None else UnitReader(self._units, rows, self.unit.rows or 1)

    def __getitems__(self, issued: Batch) -> LoadedBatch:
        if not issued.indices.size or self.form is None:  # no record shows a form, so none has it
            return LoadedBatch(issued, (), self.form)
        # a secret: by a seed of torch's everybody would know the draws
        with step_randomness(Chain(issued.seed)), keep_quiet():
            return LoadedBatch(issued, tuple(self._reader.counted_chunks([issued.indices])), self.form)

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
