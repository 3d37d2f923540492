"""What a run is made of: model, loss, plan and options, checked and ready, before anything is spent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

import dpilot
from dpilot import _validate, engine
from dpilot._arrays import Indices
from dpilot.engine import batch as batches
from dpilot.errors import DpilotError, InvalidInput, UnsupportedModel
from dpilot.mechanism import Draws, Noise
from dpilot.sampling import Batch
from dpilot.train import dry_run, optimizers
from dpilot.train.batches.reader import Collate, Reader, check_one_row, declared_form, first_record, move_to
from dpilot.train.batches.unit_chunk import MEAN, repeat_rows, row_form, unit_losses
from dpilot.train.batches.unit_reader import UnitReader, Units, first_row, group_units, rows_of, unit_key
from dpilot.train.gradients import (
    ROOM,
    WIDE,
    PerSampleOf,
    even_rows,
    null_on_error,
    null_outside_classes,
    per_sample_of,
    replays,
    two_passes,
    usual_chunks,
)
from dpilot.train.graphed_clip import GraphedClip
from dpilot.train.optimizers import MakeOptimizer, remembers
from dpilot.train.options import Options, groups_for
from dpilot.train.plan import Plan
from dpilot.train.progress import Observers
from dpilot.train.randomness import fork_generators
from dpilot.train.ranks import ALONE, Ranks, own_device
from dpilot.train.shards import Shards
from dpilot.train.silent import TRIED, silent_failures
from dpilot.train.step import StepContext, TrainingState, initial_state
from dpilot.train.sums import ExactSums, FloatSums, ShardSums, Sums
from dpilot.train.validation import PublicValidation

_log: Final = logging.getLogger("dpilot.train")


@dataclass(frozen=True, slots=True)
class Job:
    """A run that could begin."""

    model: nn.Module
    loss_fn: Callable[..., Tensor]
    plan: Plan
    options: Options
    optimizer: torch.optim.Optimizer
    device: torch.device
    collate: Collate | None = None
    example: Any = None
    ids: Any = None
    observers: Observers = field(default_factory=Observers)
    validation: PublicValidation | None = None
    ranks: Ranks = ALONE
    shards: Shards | None = None

    @classmethod
    def create(
        cls,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        plan: Plan,
        options: Options,
        own: MakeOptimizer | torch.optim.Optimizer | None = None,
        **more: Any,
    ) -> Job:
        """The job, or the first thing that is wrong with it; ``own`` is an optimizer of the caller's, or makes one."""
        check_plan(plan)
        shards = find_shards(model, more.get("ranks", ALONE), options)
        with nullcontext() if shards is None else shards.plain():
            check_model(model)
        check_loss(loss_fn)
        device = move_model(model, options.device)
        if isinstance(own, torch.optim.Optimizer):
            optimizer = optimizers.check_own(own, model)
        else:
            optimizer = optimizers.build(own or options.optimizer, model, options.lr, options.optimizer_options)
        check_unit_gradient(options, plan)
        if options.hardened and device.type != "cpu":
            _validate.refuse("device", str(device), "the CPU with hardened noise", "Sums there have a fixed order.")
        check_together(options, optimizer, two_passes=two_passes(options, device))
        options = replace(options, groups=groups_for(plan.clipping, model, options.groups))
        loss_fn = null_outside_classes(loss_fn, device)
        if not plan.unit.is_record:
            loss_fn = partial(unit_losses, loss_fn, options.per_batch, options.unit_gradient)
        job = cls(model, loss_fn, plan, options, optimizer, device, shards=shards, **more)
        return job._in_chunks(options.chunk_size)

    def whole(self) -> AbstractContextManager[None]:
        """The model as it can be run: one in pieces is put together, by all ranks."""
        return nullcontext() if self.shards is None else self.shards.whole()

    @property
    def per_batch(self) -> bool:
        """Whether the loss takes the model and a chunk: that of a unit always does."""
        return self.options.per_batch or not self.plan.unit.is_record

    def reader(self, dataset: Any, form: Any) -> Reader | UnitReader:
        """How this run reads its records; those of another form than those of ``form``, a public chunk, are null.

        Where a record is a unit with all its rows, ``dataset`` is one of ``group_units``. Without a form no record
        shows one: all are null, and there is nothing to read.
        """
        if form is None:
            return Reader((), self.collate)
        if isinstance(dataset, Units):
            rows = Reader(dataset.dataset, self.collate, row_form(form))
            return UnitReader(dataset, rows, form[0].shape[1], self.device)
        return Reader(dataset, self.collate, first_record(form, batches.size(form, self.per_batch)), self.device)

    def group(self, dataset: Any, key: bytes) -> Any:
        """The data set whose items are what a step samples and clips: as it is, or units by a secret of the run."""
        if self.plan.unit.is_record:
            return dataset
        return group_units(dataset, self.ids, self.plan.unit, self.ranks.once(lambda: unit_key(key)))

    def first_form(self, dataset: Any) -> Any:
        """The form of the first record that can be read, where no example shows it; None where there is none."""
        form = first_row(dataset, self.ids, self.plan.unit, self.collate)
        if form is None:
            return None
        check_one_row(form, self.options.per_batch)
        return self.chunk_form(form)

    def form(self, dataset: Any) -> Any:
        """A chunk in the form of the records, where it is known before one is read; None where it is not."""
        form = self.rows_form(dataset)
        return None if form is None else self.chunk_form(form)

    def rows_form(self, dataset: Any) -> Any:
        """The same of the rows, of which a unit has several."""
        return declared_form(rows_of(dataset), self.collate) if self.example is None else self.example

    def chunk_form(self, form: Any) -> Any:
        """A public chunk of rows as one of what a step clips, on the run's device."""
        form, rows = move_to(self.device, form), self.plan.unit.rows
        return form if rows is None else repeat_rows(form, batches.size(form, self.options.per_batch), rows)

    def dry_run(self, form: Any, *, quietly: bool = False) -> Job:
        """The same job after a try on made-up records, with the size of its chunks settled.

        Edge cases:
            no form    there are no records to try: nothing is run, and chunks are of one
            quietly    nothing is said of how gradients are computed: of a trial, as their number may be secret
        """
        if form is None:
            return self if self.options.chunk_size is not None else self._in_chunks(1)
        with self.whole():
            return self._try(form, quietly=quietly)

    def _try(self, form: Any, *, quietly: bool) -> Job:
        per_sample, per_batch = self._per_sample(), self.per_batch
        batches.refuse_lists(form, batches.size(form, per_batch))
        with fork_generators():
            tried = dry_run.run_synthetic(per_sample, form, per_batch=per_batch, public=self.example is not None)
            if self.options.engine == "auto" and tried.engine != "single-backward" and not quietly:
                _log.warning(
                    "gradients are computed one record at a time (%s), which takes several times as long: %s. "
                    "`dpilot doctor` measures it.", tried.engine, tried.reason,
                )  # fmt: skip
            if not quietly and self.shards is None:  # whose optimizer moves other parameters than those that are run
                self._say_silent_failures(per_sample, form)
            settled = self
            if self.options.chunk_size is None:
                expected, rows = self.plan.expected_batch_size, self.plan.unit.rows or 1
                size = dry_run.chunk_size(per_sample, form, expected, per_batch=per_batch, rows=rows)
                halved = self.options.low_memory and self._replays
                settled = self._in_chunks(-(-size // 2) if halved else size, self.ranks.size)
            settled.refuse_mixing(form)
        return settled

    def _say_silent_failures(self, per_sample: PerSampleOf, form: Any) -> None:
        """Warn of what would train nothing, as made-up records and declared numbers tell; where memory suffices."""

        def squares() -> Mapping[str, Tensor]:
            made_up = dry_run.synthetic_records(form, TRIED, per_batch=self.per_batch)
            return dry_run.squares(per_sample, made_up, self.model)

        bound = float(initial_state(self.plan, self.model).bound.square().sum().sqrt())
        try:
            found = silent_failures(self.model, squares, self.optimizer, self.plan, bound)
        except DpilotError:
            raise
        except Exception:  # made-up values do not run, and a public example stood in for them; or memory is short
            return
        for sentence in found:
            _log.warning("this run may learn nothing: %s `dpilot doctor` looks closer.", sentence)

    def refuse_mixing(self, form: Any) -> None:
        """Refuse a model that combines records in chunks of the size that will be used."""
        if self.options.engine in ("auto", "single-backward"):
            size, per_batch = self.options.chunk_size or 2, self.per_batch
            chunk = dry_run.synthetic_records(form, size, per_batch=per_batch)
            engine.refuse_mixing(self.model, self.loss_fn, chunk, per_batch=per_batch)

    def _in_chunks(self, most: int | None, ranks: int = 1) -> Job:
        """The same job in chunks of at most so many records, of a size that most batches fill well."""
        if most is not None:
            expected, low = self.plan.expected_batch_size, self.options.low_memory
            most = even_rows(expected, self.plan.sample_rate, most, low_memory=low, ranks=ranks, room=self._room)
        return replace(self, options=replace(self.options, chunk_size=most))

    def scatter(self, batch: Batch, count: int, part: int = 0) -> Iterator[Indices]:
        """Which of ``count`` records of a part of a batch go together."""
        assert self.options.chunk_size is not None
        size = self.options.chunk_size
        usual = usual_chunks(self.plan.expected_batch_size, self.plan.sample_rate, size, self._room)
        return batch.scatter(count, size, usual, part)

    @property
    def _room(self) -> float:
        return WIDE if self.options.hardened else ROOM

    def pieces(self, batch: Batch) -> Iterator[Indices]:
        """The records of a batch, those that go together in one piece."""
        return (batch.indices[places] for places in self.scatter(batch, batch.indices.size))

    def start(self, noise: Noise, receipt: Draws, form: Any = None) -> TrainingState:
        """The run before its first step; ``form`` is a public chunk of the records' shapes."""
        rows, replayed = self.options.chunk_size, self._replays
        launched = self._per_sample(rows, form)
        per_sample = self._per_sample(rows, form, replayed=True) if replayed else launched
        context = StepContext(
            plan=self.plan,
            model=self.model,
            per_sample=null_on_error(per_sample, self.model, launched, rows),
            optimizer=self.optimizer,
            noise=noise,
            receipt=receipt,
            groups=self.options.groups,
            hardened=self.options.hardened,
            clip=GraphedClip(self.plan.clipping, rows) if replayed and rows is not None else None,
            sums=self._sums(noise),
        )
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return TrainingState(context, self.options, initial_state(self.plan, self.model, self.device), rates)

    @property
    def _replays(self) -> bool:
        """Whether chunks are replayed, which asks for weights that stay where they are."""
        return self.shards is None and replays(self.options, self.device)

    def _sums(self, noise: Noise) -> Sums:
        if self.shards is not None:
            return ShardSums.of(self.shards, self.plan.expected_batch_size, noise)
        if self.options.exact_sums:
            return ExactSums.of(self.ranks, self.model, self.plan.expected_batch_size)
        return FloatSums()

    def join(self, dataset: Any, test_seed: int | None = None) -> Job:
        """The same job, found to be the same on every rank, with rank 0's weights and size of chunks."""
        self.ranks.compare(self._facts(dataset, test_seed))
        self.ranks.copy_weights(self.model)
        return self.in_chunks_of_first()

    def in_chunks_of_first(self) -> Job:
        """The same job with the size of chunks that rank 0 found: it times them, and each rank its own way."""
        size = self.ranks.once(lambda: self.options.chunk_size)
        return replace(self, options=replace(self.options, chunk_size=size))

    def _facts(self, dataset: Any, test_seed: int | None) -> dict[str, object]:
        """What all ranks must have in common."""
        tensors = self.model.state_dict().items()
        return {
            "version of dpilot": dpilot.__version__,
            "version of torch": torch.__version__,
            "version of numpy": np.__version__,
            "plan": self.plan.to_json(),
            "set of options": str({**self.options.to_dict(), "chunk_size": None, "device": None}),
            "optimizer": f"{type(self.optimizer).__name__} {self.optimizer.defaults}",
            "model": [(name, str(each.dtype), tuple(each.shape)) for name, each in tensors if isinstance(each, Tensor)],
            "way of sharding": None if self.shards is None else str([*self.shards.policies.values()]),
            "data set": (type(dataset).__name__, len(dataset)),
            "test seed": test_seed,
        }

    def _per_sample(self, rows: int | None = None, form: Any = None, *, replayed: bool = False) -> PerSampleOf:
        options = replace(self.options, per_batch=self.per_batch)
        return per_sample_of(self.model, self.loss_fn, options, rows, form, replayed=replayed)


def find_shards(model: object, ranks: Ranks, options: Options) -> Shards | None:
    """The pieces of a model that lies in pieces; refused with options that need a whole one."""
    shards = Shards.find(model, ranks) if isinstance(model, nn.Module) else None
    if shards is None:
        return None
    remedies = {
        "low_memory": (options.low_memory, "Take smaller chunks, chunk_size=."),
        "device": (options.device is not None, "Shard it on a mesh of that device."),
        'noise="hardened"': (options.hardened, "Leave it out."),
    }
    for name, (given, remedy) in remedies.items():
        if given:
            raise InvalidInput(f"{name} is given, and the model lies in pieces (fully_shard): expected none. {remedy}")
    return shards


def check_plan(plan: object) -> None:
    """Refuse what is not a plan."""
    if not isinstance(plan, Plan):
        raise InvalidInput(f"plan is a {type(plan).__name__}: expected a Plan, such as Plan.calibrate(...) makes.")


def check_model(model: object) -> None:
    """Raise one error that lists every problem of the model, each with its remedy."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is a {type(model).__name__}: expected a torch.nn.Module.")
    if problems := engine.check(model):
        raise UnsupportedModel(f"{len(problems)} problem(s). " + " ".join(str(problem) for problem in problems))


def check_loss(loss_fn: object) -> None:
    """Refuse a loss that says of itself that it adds up the samples."""
    if not callable(loss_fn):
        raise InvalidInput(f"loss_fn is a {type(loss_fn).__name__}: expected a callable.")
    reduction = getattr(loss_fn, "reduction", "none")
    if reduction != "none":
        _validate.refuse("the loss's reduction", reduction, "'none', one loss a sample", 'Use reduction="none".')


def check_unit_gradient(options: Options, plan: Plan) -> None:
    """Refuse to say how a unit's rows are added up where there are no units."""
    if plan.unit.is_record and options.unit_gradient != MEAN:
        raise InvalidInput(
            f"unit_gradient is {options.unit_gradient!r}, and the plan protects records, of one row each: expected "
            "units=, the ids of the rows, or a plan that names its unit. Leave it out, or name the unit."
        )


def check_together(options: Options, optimizer: torch.optim.Optimizer, *, two_passes: bool) -> None:
    """Refuse options that contradict each other."""
    if options.free_step and not remembers(optimizer):
        raise InvalidInput('free_step is True without a momentum to step along: use optimizer="momentum".')
    if options.amp and two_passes:
        raise InvalidInput("amp and low_memory are both on: expected one, so that both passes compute the same.")


def move_model(model: nn.Module, device: str | None) -> torch.device:
    """Move the model where it shall train, in place, and say where that is; by default it stays where it is."""
    if device is None:
        return next(model.parameters()).device
    model.to(find_device(own_device(device)))
    return next(model.parameters()).device


def find_device(device: str) -> torch.device:
    """The device called so, which is there, or InvalidInput."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise InvalidInput(f"device is {device!r}: expected one of torch's, such as 'cpu' or 'cuda'.") from None
    if wanted.type == "cuda" and not 0 <= (wanted.index or 0) < torch.cuda.device_count():
        raise InvalidInput(f"device is {device!r}, but no such CUDA device is there: use 'cpu', or leave it out.")
    return wanted
