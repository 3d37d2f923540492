"""Any torch module as a task: every trial is a private run of its own, with its own batches, noise and receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from dpilot import _validate, clipping
from dpilot.clipping import Clipping
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.mechanism import Draws
from dpilot.noise import SystemNoise
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import Event, Gaussian, PoissonSampled, Repeated
from dpilot.records import StepRecord
from dpilot.sampling import PoissonSampler, check_source
from dpilot.statistics.histogram import table
from dpilot.statistics.rows import Floats
from dpilot.train.course import Course
from dpilot.train.job import Job
from dpilot.train.options import Options
from dpilot.train.plan import Plan
from dpilot.train.predict import predict
from dpilot.train.reading import check_dataset
from dpilot.tune.fresh import apart, check_fresh
from dpilot.tune.held_out import held_out_form, told, training_form
from dpilot.tune.stacked import Runner, stackable, train_together
from dpilot.tune.task import HELD_OUT, TRAIN, MakeNoise, Trial

__all__ = ["ModuleTask"]

_SHOWN: Final = 1e-5  # the delta at which a trial's plan states its epsilon: for display, the ledger has the price


@dataclass(frozen=True, slots=True, eq=False)
class ModuleTask:
    """Private runs of ``model_fn()``; a model is the trained module.

    Trials of small modules go together (``tune.stacked``) if ``together`` is True, by default on an accelerator only:
    on a processor the union of batches is more work than it saves. Others go one after the other.

    Records of ``train_data`` are (x, y), those of ``held_out`` (x, y) or (x, y, group); classes are 0 .. classes - 1.
    ``example`` is a public batch in the form of ``train_data``'s records: wanted unless they lie in a TensorDataset.
    ``options`` are those of a run (schedule, average, engine, chunk_size, device, ...); ``watch`` is told all steps.

    Guarantee:
        Each trial draws its own Poisson batches, from a key of its own, and its own noise; no trial sees another's
        batch, so each is priced alone. A trial that fails is not tried again. Initial weights come from a secret key
        for each trial: torch's generators are where they were, and nothing tells how many trials there were.

    Edge cases:
        a record that does not compute    null, in training as in scoring; so is one of another form
        a part without records            noise alone: it is not told

    Example:
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
    noise: MakeNoise = SystemNoise
    watch: Callable[[StepRecord], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_source(self.train_data)
        check_source(self.held_out)
        _validate.positive("Declare it.", size=self.size)
        _validate.positive("Declare it.", held_out_size=self.held_out_size)
        _validate.count(least=2, classes=self.classes)
        _validate.rate(sample_rate=self.sample_rate)
        training_form(self.train_data, self.example)
        with apart(self.noise(), "initial weights"):
            check_fresh(self.model_fn)

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
        **options: Any,
    ) -> ModuleTask:
        """The task of ``dataset`` split by ``split`` into "train" and "held-out"; ``size`` is declared for both."""
        check_dataset(dataset)  # all of it: a part may be empty, and its coins are secret
        parts = split.indices(len(dataset))
        train, held_out = (_part(dataset, parts[name]) for name in (TRAIN, HELD_OUT))
        sizes = size * split.share(TRAIN), size * split.share(HELD_OUT)
        return cls(model_fn, loss_fn, train, held_out, *sizes, classes, split=split.id, **options)

    @property
    def held_out_form(self) -> Any:
        """A chunk in the public form of held-out records."""
        form = training_form(self.train_data, self.example)
        return held_out_form(self.held_out, form, grouped=self.group_count > 0)

    @property
    def stamp(self) -> str:
        return self.noise().stamp

    def cells(self, objective: str) -> int:
        if objective == "worst_group":
            if self.group_count < 1:
                raise InvalidInput("worst_group is asked for without groups: expected group_count=, records of three.")
            return self.group_count
        return 1 if objective == "accuracy" else self.classes

    def untrained(self) -> nn.Module:
        with apart(self.noise(), "initial weights"):
            return self.model_fn()

    def train(self, trials: Sequence[Trial]) -> tuple[nn.Module, ...]:
        chunk, prepared = self.options.get("chunk_size"), []
        for trial in trials:
            noise = self.noise()
            with apart(noise, "initial weights"):
                job, form = self._rehearsed(trial, chunk)
            chunk = job.options.chunk_size
            sampler = PoissonSampler(self.sample_rate, trial.candidate.steps)
            prepared.append((job, form, job.course(noise, trial.receipt), sampler))
        if self._stackable(trials, prepared):
            runners = [Runner.of(course, sampler) for *_, course, sampler in prepared]
            train_together(runners, self.train_data, self.loss_fn, prepared[0][0].device)
        else:
            for each in prepared:
                self._run(*each)
        for *_, course, _ in prepared:
            course.finish()
            if self.watch is not None:
                for record in course.records:
                    self.watch(record)
        return tuple(course.setting.model for *_, course, _ in prepared)

    def table(self, model: nn.Module, objective: str, *, noise_multiplier: float, receipt: Draws) -> Floats | None:
        if not all(bool(torch.isfinite(each).all()) for each in model.state_dict().values()):
            return None
        noise, shape = self.noise(), (self.cells(objective), 2)
        with apart(noise, "scores"):
            codes = np.concatenate(list(self._codes(model, objective)))
        return table(codes, shape=shape, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)

    def exact_table(self, model: nn.Module, objective: str) -> Floats:
        counts = np.zeros((self.cells(objective), 2))
        for rows in self._codes(model, objective):
            known = rows[(rows[:, 0] >= 0) & (rows[:, 0] < len(counts))].astype(int)
            np.add.at(counts, tuple(known.T), 1.0)
        return counts

    def plan(self, trial: Trial) -> Plan:
        """The plan of one trial: its steps, at its noise."""
        step = Gaussian(trial.noise_multiplier)
        sampled = step if self.sample_rate == 1 else PoissonSampled(self.sample_rate, step)
        epsilon = _shown_epsilon(Repeated(sampled, trial.candidate.steps))
        rule = clipping.get(self.clipping) if isinstance(self.clipping, str) else self.clipping
        cost = Cost(epsilon, _SHOWN)
        return Plan(
            Budget(max(epsilon, 1e-12), _SHOWN),
            max(1, round(self.size)),
            self.sample_rate,
            trial.candidate.steps,
            trial.noise_multiplier,
            rule,
            cost,
        )

    def _rehearsed(self, trial: Trial, chunk_size: int | None) -> tuple[Job, Any]:
        """The job of one trial, tried on made-up records, and the form of a record."""
        chosen = {"optimizer": self.optimizer, **self.options, "lr": trial.candidate.lr, "chunk_size": chunk_size}
        options, model = Options(**chosen), self.model_fn()
        job = Job.checked(model, self.loss_fn, self.plan(trial), options, example=self.example)
        form = job.form(self.train_data)
        return job.rehearsed(form), form

    def _stackable(self, trials: Sequence[Trial], prepared: Sequence[tuple[Job, Any, Course, PoissonSampler]]) -> bool:
        wanted = prepared[0][0].device.type != "cpu" if self.together is None else self.together
        if not wanted or len(trials) < 2 or self.example is not None:
            return False
        batch, model = self.sample_rate * self.size, prepared[0][0].model
        return stackable(model, self.train_data, self.options, trials=len(trials), batch_size=batch)

    def _run(self, job: Job, form: Any, course: Course, sampler: PoissonSampler) -> None:
        """All steps of one trial, alone."""
        assert job.options.chunk_size is not None
        reader = job.reader(self.train_data, form)
        for batch in sampler.batches(len(self.train_data)):
            chain = sampler.state
            sampler.claim(batch)
            course.step(chain, reader.chunks(batch.chunks(job.options.chunk_size)))

    def _codes(self, model: nn.Module, objective: str) -> Iterator[Floats]:
        """For each held-out record its cell and whether it is predicted right; null records are left out. Sensitive."""
        yield np.zeros((0, 2))
        yield from told(self.held_out, self.held_out_form, partial(self._outcomes, model, objective))

    def _outcomes(self, model: nn.Module, objective: str, chunk: Any) -> Floats:
        inputs, labels, *rest = chunk
        found, labels = predict(model, inputs), labels.double().cpu()
        cell = rest[0].double().cpu() if objective == "worst_group" else labels
        if found.dim() != 2 or not cell.shape == labels.shape == found.shape[:1]:
            raise ValueError("not one class, and one group, a record")
        valid = (labels >= 0) & (labels < self.classes) & (labels == labels.round())
        cell = torch.where(valid, 0 * cell if objective == "accuracy" else cell, -1.0)
        return torch.stack([cell, (found.argmax(1) == labels).double()], 1).numpy()


@lru_cache
def _shown_epsilon(event: Event) -> float:
    return accountant.epsilon(event, _SHOWN)


def _part(dataset: Any, indices: Any) -> Any:
    """The records at ``indices``; those of a TensorDataset stay in tensors, which are read quickly."""
    if type(dataset) is TensorDataset:
        places = torch.from_numpy(indices)
        return TensorDataset(*(each[places] for each in dataset.tensors))
    return Subset(dataset, indices.tolist())
