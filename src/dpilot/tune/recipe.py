"""What all trials of a module share, and one trial of it, alone: in this process or in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from torch import Tensor, nn

from dpilot import clipping
from dpilot._quiet import keep_quiet
from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput, UnsupportedModel
from dpilot.keys import Chain, fresh_key
from dpilot.mechanism import Noise
from dpilot.noise import KeyedNoise
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import Event, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import StepRecord
from dpilot.sampling import PoissonSampler
from dpilot.train import dry_run
from dpilot.train.batches.reader import move_to
from dpilot.train.job import Job
from dpilot.train.options import Options
from dpilot.train.plan import Plan
from dpilot.train.randomness import step_randomness
from dpilot.train.run import predict, refuse_combined
from dpilot.train.step import TrainingState
from dpilot.tune.candidate import Candidate
from dpilot.tune.task import Trial

__all__ = ["Recipe", "TrialKeys", "TrialRun", "check_fresh", "secret_randomness"]

_DISPLAY_DELTA: Final = 1e-5  # a trial's plan states its epsilon at this delta; the ledger has the price


@dataclass(frozen=True, slots=True, repr=False)
class TrialKeys:
    """Where the randomness of one trial comes from: its initial weights, its batches, its noise. Secret.

    Guarantee:
        Drawn anew for each trial, so no two of them have a stream in common.
    """

    weights: Chain
    batches: Chain
    noise: Noise

    @classmethod
    def draw(cls, noise: Noise) -> TrialKeys:
        """Fresh keys, and of keyed noise a source of the trial's own; that of a test fixes weights and batches too."""
        if not isinstance(noise, KeyedNoise):
            return cls(Chain(fresh_key("initial weights")), Chain(fresh_key("sampling")), noise)
        own = noise.spawn()
        return cls(own.state, own.state, own)


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Private runs of ``model_fn()`` on ``dataset``, of records or of units; trial and keys are what differs."""

    model_fn: Callable[[], nn.Module]
    loss_fn: Callable[..., Tensor]
    dataset: Any = field(repr=False)
    size: float
    sample_rate: float
    clipping: str | Clipping
    optimizer: str
    options: Mapping[str, Any]
    example: Any = field(default=None, repr=False)
    unit: PrivacyUnit = RECORD

    def plan(self, trial: Trial) -> Plan:
        """The plan of one trial: its steps, at its noise."""
        step = Gaussian(trial.noise_multiplier)
        sampled = step if self.sample_rate == 1 else PoissonSampled(self.sample_rate, step)
        epsilon = _display_epsilon(Repeated(sampled, trial.candidate.steps))
        rule = clipping.get(self.clipping) if isinstance(self.clipping, str) else self.clipping
        return Plan(
            Budget(max(epsilon, 1e-12), _DISPLAY_DELTA),
            max(1, round(self.size)),
            self.sample_rate,
            trial.candidate.steps,
            trial.noise_multiplier,
            rule,
            Cost(epsilon, _DISPLAY_DELTA),
            self.unit,
        )

    def job(self, candidate: Candidate, plan: Plan, weights: Chain) -> Job:
        """The job of one trial with a new module, whose initial weights come from that chain."""
        options = Options(**{"optimizer": self.optimizer, **self.options, "lr": candidate.lr})
        if options.hardened:
            raise InvalidInput(
                'noise is "hardened" in the options of trials: expected float noise. Train the chosen one.'
            )
        with step_randomness(weights):
            return Job.create(self.model_fn(), self.loss_fn, plan, options, example=self.example)

    def rehearse(self, candidate: Candidate, plan: Plan, weights: Chain, *, quietly: bool = True) -> Job:
        """The same, tried on made-up records, its chunks settled.

        Guarantee:
            Nothing is logged or warned of, if ``quietly``: the number of lines would be that of trials.
        """
        with keep_quiet() if quietly else nullcontext():
            job = self.job(candidate, plan, weights)
            with step_randomness(weights):
                return job.dry_run(job.form(self.dataset), quietly=quietly)

    def with_chunks(self, chunk_size: int | None) -> Recipe:
        """The recipe whose runs take so many records at a time."""
        return replace(self, options={**self.options, "chunk_size": chunk_size})

    def run(self, trial: Trial, plan: Plan, keys: TrialKeys) -> TrialRun:
        """One trial before its first step: nothing was read."""
        job = self.rehearse(trial.candidate, plan, keys.weights)
        sampler = PoissonSampler(self.sample_rate, trial.candidate.steps, state=keys.batches)
        return TrialRun(self.dataset, job, job.start(keys.noise, trial.receipt), sampler)

    def check(self, classes: int) -> None:
        """Refuse a module that does not run on made-up records, or does not give them one output a class.

        Guarantee:
            What is raised depends on the module, the loss and the form of the records, and on no record. What is to
            be said of them is said here, once for all trials.
        """
        nominal = Trial(Candidate(1.0, 1), 1.0, Receipt(Gaussian(1.0)))
        whole = replace(self.with_chunks(1), sample_rate=1.0)  # full batches have a plan at once
        weights = Chain(fresh_key("initial weights"))
        job = whole.rehearse(nominal.candidate, whole.plan(nominal), weights, quietly=False)
        with step_randomness(weights):
            shape = tuple(_outputs(job, self.dataset).shape)
        if len(shape) != 2 or shape[1] != classes:
            raise InvalidInput(
                f"the module gives outputs of shape {shape} for {shape[0] if shape else 'some'} made-up records, and "
                f"classes is {classes}: expected one output a record and class. End the module with {classes} outputs, "
                "or declare as many classes as it has."
            )


@dataclass(slots=True)
class TrialRun:
    """A trial under way."""

    dataset: Any
    job: Job
    state: TrainingState
    sampler: PoissonSampler

    def run_steps(self, report: Callable[[StepRecord], None] | None = None) -> None:
        """All its steps, each on the next batch of its own sampler; ``report`` is called with the record of each."""
        reader = self.job.reader(self.dataset, self.job.form(self.dataset))
        for batch in self.sampler.batches(len(reader)):
            chain = self.sampler.state
            self.sampler.claim(batch)
            record = self.state.step(chain, reader.chunks(self.job.pieces(batch)))
            if report is not None:
                report(record)


def _outputs(job: Job, dataset: Any) -> Tensor:
    """What a trained module would say of made-up records; of the public example, where those do not run."""
    form = move_to(job.device, job.rows_form(dataset))
    made_up = dry_run.synthetic_records(form, 2, per_batch=job.options.per_batch)
    for records in (made_up, form) if job.example is not None else (made_up,):
        try:
            refuse_combined(job.model, records[0])
            return predict(job.model, records[0])
        except UnsupportedModel:
            raise
        except Exception as raised:
            problem = raised
    raise InvalidInput(
        f"the module gives no outputs for made-up records ({type(problem).__name__}: {problem}): expected a tensor, or "
        "logits, of one row a record. If only made-up values are the trouble, give example=, a public batch that runs."
    ) from problem


@lru_cache
def _display_epsilon(event: Event) -> float:
    return accountant.epsilon(event, _DISPLAY_DELTA)


@contextmanager
def secret_randomness(noise: Noise, purpose: str) -> Iterator[None]:
    """Secret randomness for what is not noise, such as initial weights; the process's generators stay as they were.

    Guarantee:
        Neither the generators of torch, numpy and random afterwards, nor what was drawn inside, reveal how often this
        was done before: a secret number of trials stays secret.

    Edge cases:
        The fixed noise of a test fixes this too.
    """
    with step_randomness(noise.state if isinstance(noise, KeyedNoise) else Chain(fresh_key(purpose))):
        yield


def check_fresh(model_fn: Callable[[], nn.Module]) -> None:
    """Refuse a function whose modules share what training changes; frozen parameters may be shared.

    >>> check_fresh(lambda: nn.Linear(2, 2))
    >>> one = nn.Linear(2, 2)
    >>> check_fresh(lambda: one)
    Traceback (most recent call last):
    ...
    dpilot.errors.InvalidInput: model_fn hands out 'weight' twice: expected fresh trainable parameters and buffers ...
    """
    first, second = model_fn(), model_fn()
    if not isinstance(first, nn.Module) or not isinstance(second, nn.Module):
        raise InvalidInput(f"model_fn returns a {type(first).__name__}: expected a torch module.")
    held = {_storage(each) for each in (*second.parameters(), *second.buffers())}
    changing = [pair for pair in first.named_parameters() if pair[1].requires_grad]
    for name, each in (*changing, *first.named_buffers()):
        if _lies_somewhere(each) and _storage(each) in held:
            raise InvalidInput(
                f"model_fn hands out {name!r} twice: expected fresh trainable parameters and buffers at every call, "
                "as trials would train on one another's. Build the module inside model_fn, or return copy.deepcopy(it)."
            )


def _lies_somewhere(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and not tensor.is_meta


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
