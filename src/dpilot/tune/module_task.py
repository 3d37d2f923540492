"""Any torch module as a task: every trial is a private run of its own, with its own batches, noise and receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot._quiet import keep_quiet
from dpilot.clipping import Clipping
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.mechanism import Draws
from dpilot.metrics.counts import Scored
from dpilot.noise import SystemNoise
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import StepRecord
from dpilot.sampling import check_source
from dpilot.statistics.histogram import table
from dpilot.tape import current
from dpilot.train.batches.held_out import evaluation_form, map_records, training_form
from dpilot.train.batches.unit_reader import UnitsById, check_ids, rows_by_id, rows_of
from dpilot.train.job import Job
from dpilot.train.run import predict
from dpilot.tune.pool import check_sendable, run_in_processes
from dpilot.tune.ray_crew import RayExecutor
from dpilot.tune.recipe import Recipe, TrialKeys, check_fresh, secret_randomness
from dpilot.tune.stacked import Runner, runs_stacked, stackable, train_together
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise, Trial, count_cells, exact_counts, require_distinct
from dpilot.tune.trial_transfer import TransferredTrial, check_noise
from dpilot.tune.worker import TrialOutput

__all__ = ["ModuleTask"]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleTask:
    """Private runs of ``model_fn()``; a model is the trained module.

    Trials of small modules go together (``tune.stacked``) if ``together`` is True, by default on an accelerator only:
    on a processor the union of batches is more work than it saves. Others go one after the other or, with ``workers``,
    that many at a time in processes of their own (``tune.pool``), each of which holds a copy of the records; with
    ``executor="ray"`` these are that many workers on a Ray cluster (``RayExecutor``, for fractions of GPUs).

    Records of ``train_data`` are (x, y), those of ``held_out`` (x, y) or (x, y, group); classes are 0 .. classes - 1.
    ``example`` is a public batch in the form of ``train_data``'s records: wanted unless they lie in a TensorDataset.
    Where ``unit`` is no record, ``train_data`` are units with all their rows (``of``), and sizes are numbers of units.
    ``options`` are those of a run (schedule, average, engine, chunk_size, device, ...); ``watch`` is called with every
    step record.

    Guarantee:
        Each trial draws its own Poisson batches, from a key of its own, and its own noise; no trial sees another's
        batch, so each is priced alone. A trial that fails is not tried again, in whatever process. Initial weights
        come from a secret key for each trial: torch's generators are where they were, and nothing reveals the
        number of trials.

    Edge cases:
        a record that does not compute    null, in training as in scoring; so is one of another form
        a part without records            noise alone; nothing else shows it
        a module that does not run on made-up records, or has not one output a class    refused when the task is made

    Example:
        >>> from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
        >>> from dpilot.privacy.receipt import Receipt
        >>> from dpilot.tune.candidate import Candidate
        >>> data = TensorDataset(torch.randn(64, 2), torch.zeros(64, dtype=torch.long))
        >>> split = Split.draw({"train": 0.8, "held-out": 0.2})
        >>> loss = nn.CrossEntropyLoss(reduction="none")
        >>> task = ModuleTask.of(lambda: nn.Linear(2, 2), loss, data, split, size=64, classes=2, sample_rate=0.5)
        >>> step = PoissonSampled(0.5, Gaussian(2.0))
        >>> (model,) = task.train([Trial(Candidate(0.1, 3), 2.0, Receipt(Repeated(step, 3)))])
        >>> task.table(model, "accuracy", noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0))).shape
        (1, 2)
    """

    model_fn: Callable[[], nn.Module]
    loss_fn: Callable[..., Tensor]
    train_data: Any = field(repr=False)
    held_out: Any = field(repr=False)
    size: float
    held_out_size: float
    classes: int
    sample_rate: float = 1.0
    clipping: str | Clipping = "bounded-slack"
    optimizer: str = "momentum"
    options: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = None
    group_count: int = 0
    example: Any = field(default=None, repr=False)
    together: bool | None = None
    workers: int = 1
    executor: str | RayExecutor = "processes"
    noise: MakeNoise = SystemNoise
    watch: Callable[[StepRecord], None] | None = field(default=None, repr=False)
    unit: PrivacyUnit = RECORD

    def __post_init__(self) -> None:
        check_source(rows_of(self.train_data))
        check_source(self.held_out)
        _validate.positive("Declare it.", size=self.size)
        _validate.positive("Declare it.", held_out_size=self.held_out_size)
        _validate.count(least=2, classes=self.classes)
        _validate.rate(sample_rate=self.sample_rate)
        training_form(rows_of(self.train_data), self.example)
        _validate.count(workers=self.workers)
        object.__setattr__(self, "noise", require_distinct(self.noise))
        noise, _ = self.noise(), self.noise()  # a factory that repeats one state is refused now
        with secret_randomness(noise, "initial weights"):
            check_fresh(self.model_fn)
        self.recipe.check(self.classes)
        _validate.one_of(("processes", "ray"), "Or give a RayExecutor.", executor=_name(self.executor))
        if self.workers > 1 or self.executor != "processes":
            check_sendable(self.recipe)
            check_noise(noise)
        if self.executor == "ray":  # before anything is paid or drawn: how many workers there are tells of no trial
            object.__setattr__(self, "executor", RayExecutor(self.workers))

    @classmethod
    def of(
        cls,
        model_fn: Callable[[], nn.Module],
        loss_fn: Callable[..., Tensor],
        dataset: Any,
        split: Split,
        *,
        size: float,
        classes: int,
        units: Any = None,
        rows_per_unit: int | None = None,
        unit: str | PrivacyUnit = RECORD,
        **options: Any,
    ) -> ModuleTask:
        """The task of ``dataset`` split by ``split`` into "train" and "held-out"; ``size`` is declared for both.

        ``units`` has one id for each row of the data set: units then go to either part with all their rows, ``size`` is
        their number, and scores are of one row of each held-out unit, drawn by a secret key.
        """
        check_source(dataset)  # all of it: a part may be empty, and its coins are secret
        protected = protected_unit(units, unit, rows_per_unit)
        check_ids(dataset, units, protected)
        if units is None:
            parts = split.indices(len(dataset))
            train, held_out = (_part(dataset, parts[name]) for name in (TRAIN, HELD_OUT))
        else:
            rows = rows_by_id(units, protected, split.key)
            parts = split.indices(rows.count)
            train = UnitsById(dataset, rows.take(parts[TRAIN]))
            held_out = _part(dataset, rows.take(parts[HELD_OUT]).drawn)
        sizes = size * split.share(TRAIN), size * split.share(HELD_OUT)
        return cls(model_fn, loss_fn, train, held_out, *sizes, classes, split=split.id, unit=protected, **options)

    @property
    def evaluation_form(self) -> Any:
        """A chunk in the public form of held-out records."""
        form = training_form(rows_of(self.train_data), self.example)
        return evaluation_form(self.held_out, form, grouped=self.group_count > 0)

    @property
    def stamp(self) -> str:
        return self.noise().stamp

    def cells(self, objective: str) -> int:
        return count_cells(objective, self.classes, self.group_count, "group_count=, records of three")

    def untrained(self) -> nn.Module:
        with secret_randomness(self.noise(), "initial weights"):
            return self.model_fn()

    def train(self, trials: Sequence[Trial]) -> tuple[nn.Module, ...]:
        if self._uses_workers(trials):
            return self._train_in_workers(trials)
        recipe, runs = self.recipe, []
        for trial in trials:
            run = recipe.run(trial, recipe.plan(trial), TrialKeys.draw(self.noise()))
            recipe = recipe.with_chunks(run.job.options.chunk_size)
            runs.append(run)
        if len(runs) > 1 and self._stackable(len(runs), runs[0].job):
            runners = [Runner.of(run.state, run.sampler) for run in runs]
            train_together(runners, self.train_data, self.loss_fn, runs[0].job.device)
        else:
            for run in runs:
                run.run_steps()
        for trial, run in zip(trials, runs, strict=True):
            run.state.finish()
            self._notify(trial, run.state.records)
        return tuple(run.state.context.model for run in runs)

    def table(self, model: nn.Module, objective: str, *, noise_multiplier: float, receipt: Draws) -> Floats | None:
        if not all(bool(torch.isfinite(each).all()) for each in model.state_dict().values()):
            return None
        noise, shape = self.noise(), (self.cells(objective), 2)
        with secret_randomness(noise, "scores"):
            codes = np.concatenate(list(self._codes(model, objective)))
        return table(codes, shape=shape, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)

    def predictions(self, model: nn.Module) -> Scored:
        """Held-out records with the probabilities that ``model`` gives them; one that does not compute is null.

        Sensitive: for the door only.
        """
        with secret_randomness(self.noise(), "figures"):
            rows = list(map_records(self.held_out, self.evaluation_form, partial(self._probabilities, model)))
        whole = torch.cat([torch.zeros(0, 1 + self.classes, dtype=torch.float64), *rows]).numpy()
        return Scored(whole[:, 0], whole[:, 1:])

    def _probabilities(self, model: nn.Module, chunk: Any) -> Tensor:
        """Class and probabilities of some records."""
        inputs, labels, *_ = chunk
        probabilities = torch.softmax(predict(model, inputs, protected=True).double(), 1)
        if probabilities.shape != (len(labels), self.classes):
            raise ValueError("not one probability a class and record")
        return torch.cat([labels.double().cpu()[:, None], probabilities], 1)

    def exact_table(self, model: nn.Module, objective: str) -> Floats:
        return exact_counts(np.concatenate(list(self._codes(model, objective))), self.cells(objective))

    @property
    def recipe(self) -> Recipe:
        """What all trials share."""
        return Recipe(
            self.model_fn,
            self.loss_fn,
            self.train_data,
            self.size,
            self.sample_rate,
            self.clipping,
            self.optimizer,
            self.options,
            self.example,
            self.unit,
        )

    def _uses_workers(self, trials: Sequence[Trial]) -> bool:
        """Whether trials go to processes of their own. A tape cannot record what is released there."""
        if current() is not None:
            return False
        if isinstance(self.executor, RayExecutor):
            return True
        if self.workers == 1 or len(trials) < 2:
            return False
        return not (self.together and self._stackable(len(trials), self._probe_job(trials[0])))

    def _probe_job(self, trial: Trial) -> Job:
        """A job that is not run: its module decides whether trials can be stacked."""
        with keep_quiet():
            return self.recipe.job(trial.candidate, self.recipe.plan(trial), Chain(fresh_key("initial weights")))

    def _train_in_workers(self, trials: Sequence[Trial]) -> tuple[nn.Module, ...]:
        """One process a trial, as many at a time as there are workers; all releases are drawn before one starts."""
        recipe, jobs, transfers = self.recipe, [], []
        for trial in trials:
            plan, keys = recipe.plan(trial), TrialKeys.draw(self.noise())
            jobs.append(recipe.rehearse(trial.candidate, plan, keys.weights))
            recipe = recipe.with_chunks(jobs[0].options.chunk_size)
            transfers.append(TransferredTrial(trial, plan, keys))
        finished = self._run(recipe, transfers)
        for trial, job, done in zip(trials, jobs, finished, strict=True):
            done.load_into(job.model)
            self._notify(trial, done.records)
        return tuple(job.model for job in jobs)

    def _run(self, recipe: Recipe, transfers: Sequence[TransferredTrial]) -> list[TrialOutput]:
        if isinstance(self.executor, RayExecutor):
            return self.executor.run(recipe, transfers)
        return run_in_processes(recipe, transfers, self.workers)

    def _notify(self, trial: Trial, records: Sequence[StepRecord]) -> None:
        if trial.keep is not None:
            trial.keep(tuple(records))
        if self.watch is not None:
            for record in records:
                self.watch(record)

    def _stackable(self, count: int, job: Job) -> bool:
        alone = job.device.type == "cpu" or self.workers > 1
        if (alone if self.together is None else not self.together) or self.example is not None:
            return False
        batch = self.sample_rate * self.size
        small = stackable(job.model, self.train_data, self.options, trials=count, batch_size=batch)
        return small and runs_stacked(job.model, self.loss_fn, self.train_data, job.device)

    def _codes(self, model: nn.Module, objective: str) -> Iterator[Floats]:
        """For each held-out record its cell and whether it is predicted right; null records are left out. Sensitive."""
        yield np.zeros((0, 2))
        yield from map_records(self.held_out, self.evaluation_form, partial(self._outcomes, model, objective))

    def _outcomes(self, model: nn.Module, objective: str, chunk: Any) -> Floats:
        inputs, labels, *rest = chunk
        logits, labels = predict(model, inputs, protected=True), labels.double().cpu()
        cell = rest[0].double().cpu() if objective == "worst_group" else labels
        if logits.dim() != 2 or not cell.shape == labels.shape == logits.shape[:1]:
            raise ValueError("not one class, and one group, a record")
        valid = (labels >= 0) & (labels < self.classes) & (labels == labels.round())
        cell = torch.where(valid, 0 * cell if objective == "accuracy" else cell, -1.0)
        return torch.stack([cell, (logits.argmax(1) == labels).double()], 1).numpy()


def _name(executor: object) -> object:
    return "ray" if isinstance(executor, RayExecutor) else executor


def protected_unit(units: Any, unit: str | PrivacyUnit, rows_per_unit: int | None) -> PrivacyUnit:
    """Whom a task protects: the unit that is named, "unit" where ids alone are given, and a record without ids."""
    named = PrivacyUnit.of("unit" if units is not None and unit in (RECORD, RECORD.name) else unit, rows_per_unit)
    if units is None and not named.is_record:
        raise InvalidInput(f"unit is {named}, and units are missing: expected units=, one id for each row.")
    return named


def _part(dataset: Any, indices: Any) -> Any:
    """The records at ``indices``; those of a TensorDataset stay in tensors, which are read quickly."""
    if type(dataset) is TensorDataset:
        places = torch.from_numpy(indices)
        return TensorDataset(*(each[places] for each in dataset.tensors))
    return Subset(dataset, indices.tolist())
