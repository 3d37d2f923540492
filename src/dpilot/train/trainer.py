"""The trainer: one private run of a plan, from the first check to the record."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.noise import KeyedNoise, SystemNoise, Witness, seeded_noise
from dpilot.privacy.ledger import Committed, Ledger, reopen
from dpilot.privacy.receipt import Receipt
from dpilot.records import RUN, RunRecord, ValidationRecord
from dpilot.sampling import PoissonSampler, check_source
from dpilot.train import payment
from dpilot.train.batches.reader import Collate, Reader
from dpilot.train.batches.unit_chunk import MEAN
from dpilot.train.batches.unit_reader import UnitReader, check_ids
from dpilot.train.canaries import Canaries
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.secret import Secret, SecretFile, run_key
from dpilot.train.checkpoint.store import MANIFEST, CheckpointWriter, Manifest, StoredRun, write_public
from dpilot.train.job import Job, check_plan
from dpilot.train.optimizers import OWN, MakeOptimizer
from dpilot.train.options import FLOAT, Average, Options, Schedule
from dpilot.train.options import average as average_of
from dpilot.train.options import schedule as schedule_of
from dpilot.train.payment import LEDGER, PaidElsewhere, Paying, Payment, Purpose
from dpilot.train.plan import Plan
from dpilot.train.progress import Callback, Observers, Progress
from dpilot.train.ranks import Alone, find_ranks
from dpilot.train.run import Run
from dpilot.train.step import TrainingState, record_of
from dpilot.train.validation import PublicValidation


class Trainer:
    """Trains ``model`` in place by ``plan``: ``Trainer(model, loss_fn, plan, optimizer="sgd", lr=0.5).fit(dataset)``.

    ``loss_fn(model(x), y)`` gives one loss a sample; with ``per_batch=True`` the call is ``loss_fn(model, batch)``.
    ``ledger`` is where the run is paid: a Ledger, one commitment of it, or a path, where one of the plan's budget is
    made if there is none, for the data set ``data_id`` (or the name of the file). Without one, a ledger of the plan's
    own budget is made and saved with the run.
    ``checkpoint`` names a folder that is written every ``checkpoint_every`` steps and can be resumed from; the keys go
    to ``secret``, a file outside it. ``public_validation`` is data that you declare public: the model is scored on it
    as often (or about 20 times), exactly, and the record keeps the figures and says so. ``audit`` are canaries, half
    of which take part: ``run.audit()`` is the lower bound on epsilon that they prove. ``callback`` is called with the
    record of each step, ``progress`` with that and the time. ``noise`` "hardened" draws it exactly, on a grid to which
    what each record adds is rounded first, by itself: on the CPU (docs/trust.md). ``test_seed`` fixes noise and
    batches, and stamps the record as not private.

    ``units`` protects persons (devices, documents) instead of rows: one id for each row of the data set. A unit is then
    one record of every step, with at most ``rows_per_unit`` of its rows; its gradient is the mean (``unit_gradient``
    "mean", or the "sum") over these, clipped once. A plan that names its unit says the cap itself; a plan that names
    none is taken for "unit"s, its size for their number. Where the plan names a unit and there are no ``units``, each
    item of the data set is the list of one unit's rows.

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
        a unit with more rows          a secret, uniform choice of them counts, by its own id and number of rows
        row without an id             counts for nothing; ``missing_unit="row"`` makes it a unit of its own
        row that cannot be read       left out of its unit, like one of another shape than the unit's first
        row that does not compute     its unit is null
        layer-wise rules              groups of parameters are shared out by the model's order, or given as ``groups``
        several ranks (torchrun)      all take part; rank 0 pays, draws, calls back and writes (docs/scale.md)

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
        units: Any = None,
        rows_per_unit: int | None = None,
        missing_unit: str | None = None,
        unit_gradient: str = MEAN,
        device: str | None = None,
        amp: bool = False,
        collate_fn: Collate | None = None,
        example: Any = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        secret: str | Path | None = None,
        public_validation: Any = None,
        audit: Canaries | None = None,
        noise: str = FLOAT,
        callback: Callback | None = None,
        progress: Progress | None = None,
        test_seed: int | None = None,
    ) -> None:
        named, ranks = OWN if callable(optimizer) else optimizer, find_ranks()
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
            groups=groups,
            unit_gradient=unit_gradient,
            exact_sums=ranks.size > 1,
            noise=noise,
        )
        check_plan(plan)
        self._plan, plan = plan, plan.with_unit(units is not None, rows_per_unit, missing_unit)
        own = optimizer if callable(optimizer) else None
        every = max(1, plan.steps // 20) if checkpoint_every is None else checkpoint_every
        self._job = Job.create(
            model,
            loss_fn,
            plan,
            options,
            own,
            collate=collate_fn,
            example=example,
            ids=units,
            observers=Observers(callback, progress),
            validation=_validation(public_validation, model, loss_fn, options, collate_fn, every),
            ranks=ranks,
        )
        if audit is not None and (ranks.size > 1 or self._job.shards is not None):
            raise InvalidInput(
                f"audit is given on {ranks.size} ranks: expected one process, which knows the coins of all, and "
                "a model that is whole. Start it without torchrun, or audit another run of the same model and plan."
            )
        with ranks.spend():
            book = payment.open_ledger(ledger, plan, data_id) if ranks.leads else None
        self._terms = RunTerms(
            ledger=book,
            purpose=Purpose(purpose, part, split),
            data_id=data_id,
            folder=None if checkpoint is None else Path(checkpoint),
            every=every,
            secret=None if secret is None else Path(secret),
            test_seed=test_seed,
            audit=audit,
            hardened=options.hardened,
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
        with self._job.ranks.watch():
            run = self._fit(dataset)
        self._fitted = True
        return run

    def _fit(self, dataset: Any) -> Run:
        job, terms = self._job, self._terms
        check_source(dataset)
        check_ids(dataset, job.ids, job.plan.unit)
        if job.ranks.leads:
            terms.check_free()
        payment.check_unused(self._plan, own_ledger=terms.ledger is None)
        if terms.audit is not None:
            terms.audit.check(job, dataset)
        form = job.form(dataset)
        job = job.join(dataset, terms.test_seed)
        if job.validation is not None:
            with job.whole():
                job.validation.check(dataset)
        if form is not None:
            job = job.dry_run(form).in_chunks_of_first()
        with payment.pay_once(job.ranks, job.plan, lambda: _pay(job, terms)) as paid:
            sampler = payment.begin_use(self._plan, terms.coins()).sampler
            if form is None:  # no type and no example tells it: the first record's counts as public
                form = job.ranks.once(lambda: job.first_form(dataset))
                job = job.dry_run(form).in_chunks_of_first()
            state, stamp = _train(job, terms, paid, dataset, form, sampler)
        return _finish(job, state, paid, stamp, terms.folder)

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
        units: Any = None,
        public_validation: Any = None,
        callback: Callback | None = None,
        progress: Progress | None = None,
    ) -> Run:
        """Go on with an interrupted run, exactly: the result is bit for bit that of a run that was never interrupted.

        Plan, options, optimizer, clip state and ledger come from the folder; the keys from the secret file. Give
        ``optimizer`` again if it was a callable, and ``collate_fn``, ``example``, ``units`` and ``public_validation``
        where there were any.

        Guarantee:
            Nothing is paid again, because nothing new is released: the same noise is added to the same sums, which is
            checked. Where that cannot be (the secret is gone or ahead, a sum differs) it is refused: a new run pays.

        Edge cases:
            several ranks    what they began goes on bit for bit on any number of them; what one process began goes on
                             on several only where the next step had not begun
        """
        where, ranks = Path(folder), find_ranks()
        observers = Observers(callback, progress)
        with ranks.watch():
            manifest = ranks.once(lambda: Manifest.read(where))
            if manifest.options.exact_sums and ranks.size == 1:
                ranks = Alone(as_ranks=True)
            _check_given_again(manifest, optimizer, example, units, public_validation)
            options = replace(manifest.options, exact_sums=manifest.options.exact_sums or ranks.size > 1)
            validation = _validation(public_validation, model, loss_fn, options, collate_fn, manifest.every)
            job = Job.create(
                model, loss_fn, manifest.plan, options, optimizer, collate=collate_fn, example=example, ids=units,
                observers=observers, validation=validation, ranks=ranks,
            )  # fmt: skip
            check_source(dataset)
            check_ids(dataset, units, manifest.plan.unit)
            stored = ranks.once(lambda: StoredRun.read(where))
            stored.check_fits(model)
            job = job.join(dataset)
            if not ranks.leads:
                return _follow(job, stored, dataset)
            book = same_ledger(where, manifest, reopen(ledger) if isinstance(ledger, str | Path) else ledger)
            file = SecretFile(secret_path(where, Path(secret or manifest.secret)))
            if stored.steps_taken == job.plan.steps:
                return _close(where, manifest, job, stored, book, file)
            place, taken = (manifest.seq, manifest.stage), stored.steps_taken
            with closing(file.log):
                file.log.open(fresh=False)
                kept = own_secret(where, manifest, stored, file).at(taken)
                harden = options.hardened
                noise = KeyedNoise(kept.noise, stamp=manifest.stamp, witness=file.log, hardened=harden)
                sampler = PoissonSampler(job.plan.sample_rate, job.plan.steps, state=kept.sampling)
                writer = CheckpointWriter(where, manifest, file, kept.seal)
                with (
                    payment.pay_once(
                        ranks, job.plan, lambda: payment.resume_payment(job.plan, book, *place, taken)
                    ) as paid,
                    annotate_errors(book, where),
                ):
                    state = _go_on(job, stored, paid, dataset, kept.seal, sampler, noise, writer)
            return _finish(job, state, paid, manifest.stamp, where)


def _check_given_again(
    manifest: Manifest, optimizer: MakeOptimizer | None, example: Any, units: Any, public_validation: Any
) -> None:
    """Refuse to resume without what the run was given, or with what it was not."""
    if manifest.options.optimizer == OWN and optimizer is None:
        raise InvalidInput("the run used an optimizer of its own: give resume(optimizer=...) the same callable.")
    if manifest.example and example is None:
        raise InvalidInput("the run was given an example: give resume(example=...) one of the same form.")
    if manifest.units != (units is not None):
        had = "ids: give resume(units=...) the same" if manifest.units else "no ids: leave units out"
        raise InvalidInput(f"the run protects {manifest.plan.unit}, and was given {had}.")
    if manifest.validation != (public_validation is not None):
        had = "was validated: give resume(public_validation=...) the same data"
        none = "was not validated on public data: leave public_validation out"
        raise InvalidInput(f"the run {had if manifest.validation else none}.")


def _follow(job: Job, stored: StoredRun, dataset: Any) -> Run:
    """The rest of a resumed run, of which nothing may be left, on another rank than the first."""
    if stored.steps_taken == job.plan.steps:
        state = job.start(SystemNoise(), Receipt(job.plan.event))
        stored.restore_into(state)
        return _finish(job, state, None, "", None)
    with payment.pay_once(job.ranks, job.plan, payment.refuse_to_pay) as paid:
        at = Chain(fresh_key("sampling"), stored.steps_taken)  # it counts steps: what it draws is of no record
        sampler = PoissonSampler(job.plan.sample_rate, job.plan.steps, state=at)
        state = _go_on(job, stored, paid, dataset, b"", sampler, KeyedNoise(), None)
    return _finish(job, state, paid, "", None)


def _go_on(
    job: Job, stored: StoredRun, paid: Payment | PaidElsewhere, dataset: Any, key: bytes, sampler: PoissonSampler,
    noise: KeyedNoise, writer: CheckpointWriter | None,
) -> TrainingState:  # fmt: skip
    """All steps that a stored run has left; its state at the end."""
    known = job.form(dataset)
    form = job.ranks.once(lambda: job.first_form(dataset)) if known is None else known
    reader = job.reader(job.group(dataset, key), form)
    state = job.start(noise, paid.receipt, form)
    stored.restore_into(state)
    _take_steps(job, state, paid, reader, sampler, noise, writer)
    return state


@contextmanager
def _pay(job: Job, terms: RunTerms) -> Iterator[Payment]:
    """Pay in the ledger that was given, or in one of the plan's own."""
    with job.ranks.spend():
        ledger = terms.ledger or payment.own_ledger(job.plan, terms.folder, terms.data_id)
    event = payment.price(job.plan, own=terms.ledger is None)
    with payment.pay(job.plan, ledger, event, terms.purpose) as paid, annotate_errors(ledger, terms.folder):
        yield paid


def _train(
    job: Job, terms: RunTerms, paid: Payment | PaidElsewhere, dataset: Any, form: Any, sampler: PoissonSampler
) -> tuple[TrainingState, str]:
    """All steps of a new run, with or without checkpoints; its state at the end, and the stamp of its noise."""
    with _open_secret(terms, paid) as file:
        noise = terms.noise(None if file is None else file.log)
        key = run_key(noise)
        reader = job.reader(job.group(dataset, key), form)
        state = job.start(noise, paid.receipt, form)
        if terms.audit is not None:
            state.plant(terms.audit.plant(job, form, terms.coins() or Chain(fresh_key("canaries"))))
        writer = None
        if file is not None:
            assert terms.folder is not None
            assert isinstance(paid, Payment)
            writer = CheckpointWriter(terms.folder, _manifest(job, terms, paid, noise), file, key)
            files.write(terms.folder / MANIFEST, writer.manifest.to_json().encode())
        _store(job, state, writer, sampler, noise)
        _take_steps(job, state, paid, reader, sampler, noise, writer)
    return state, noise.stamp


@contextmanager
def _open_secret(terms: RunTerms, paid: Payment | PaidElsewhere) -> Iterator[SecretFile | None]:
    """The secret of a new run that is stored, its log open, beside a folder that is there; else None."""
    if terms.folder is None or terms.secret is None or isinstance(paid, PaidElsewhere):
        yield None
        return
    terms.folder.mkdir(parents=True, exist_ok=True)
    file = SecretFile(terms.secret)
    with closing(file.log):
        file.log.open(fresh=True)
        yield file


def _take_steps(
    job: Job, state: TrainingState, paid: Payment | PaidElsewhere, reader: Reader | UnitReader, sampler: PoissonSampler,
    noise: KeyedNoise, writer: CheckpointWriter | None,
) -> None:  # fmt: skip
    """Every step that is left: claim its batch, take it, store it where that is due, and report it."""
    cost, ranks = paid.cost, job.ranks
    observers = job.observers if ranks.leads else Observers()
    report = observers.of(job.plan.steps, state.steps_taken, cost.epsilon, cost.delta, paid.left)
    if job.validation is not None and not state.validation:
        state.validation.append(_score(job, job.validation, 0))
    canaries, size = state.context.canaries, job.options.chunk_size
    length = len(reader) + (0 if canaries is None else int(canaries.included.sum()))
    for batch in sampler.batches(length if ranks.leads else 0):
        key = sampler.state
        sampler.claim(batch)
        records, planted = batch.split(len(reader))
        share = ranks.deal(key, records.step, job.pieces(records))
        chunks = reader.chunks(share.pieces)
        if canaries is not None:
            assert size is not None
            chunks = chain(chunks, canaries.chunks(planted.indices - len(reader), size))
        record = state.step(share.chain, chunks, planted.indices - len(reader))
        if job.validation is not None and job.validation.due(state.steps_taken) and state.steps_taken < job.plan.steps:
            state.validation.append(_score(job, job.validation, state.steps_taken))
        _store(job, state, writer, sampler, noise)
        report(record)


def _store(
    job: Job, state: TrainingState, writer: CheckpointWriter | None, sampler: PoissonSampler, noise: KeyedNoise
) -> None:
    """Write a checkpoint if one is due: rank 0, to which the others bring what they have of a model in pieces."""
    due = writer is not None and writer.due(state)
    if writer is not None and due and job.shards is None:
        writer.write(state, sampler, noise)
    elif job.shards is not None and job.ranks.once(lambda: due):
        if writer is None:
            write_public(Path(), state, b"")
        else:
            writer.write(state, sampler, noise)


def _score(job: Job, validation: PublicValidation, taken: int) -> ValidationRecord:
    with job.whole():
        return validation.score(taken)


def _finish(
    job: Job, state: TrainingState, paid: Payment | PaidElsewhere | None, stamp: str, folder: Path | None
) -> Run:
    """The run that is handed out. Rank 0 says what was released, once it has written it."""
    state.finish()
    if job.validation is not None:  # the model that is handed out, averaged or moved on
        state.validation.append(_score(job, job.validation, job.plan.steps))

    def record() -> RunRecord:
        assert paid is not None
        return record_of(state, paid, stamp)

    ranks, ledger = job.ranks, None if paid is None else paid.ledger
    run = Run(state.context.model, ranks.once(record), ledger, ranks.leads)
    where = ranks.once(lambda: folder)
    if where is not None:
        run.save(where)
        ranks.once(lambda: None)  # the others go on when it is written
    return run


def _close(folder: Path, manifest: Manifest, job: Job, stored: StoredRun, book: Ledger, file: SecretFile) -> Run:
    """A run that was interrupted after its last step: book it, and leave no secret."""
    if file.path.exists():
        own_secret(folder, manifest, stored, file)
    file.delete()
    place = manifest.seq, manifest.stage
    if payment.is_interrupted(book, *place):
        with payment.resume_payment(job.plan, book, *place, stored.steps_taken):
            pass
    receipt = Receipt(job.plan.event)
    state = job.start(SystemNoise(), receipt)
    stored.restore_into(state)
    return _finish(job, state, Payment(receipt, book, *place), manifest.stamp, folder)


def own_secret(folder: Path, manifest: Manifest, stored: StoredRun, file: SecretFile) -> Secret:
    """The run's own secret, if manifest and checkpoint are those that were sealed under its key."""
    kept = file.read()
    if kept.run != manifest.run:
        raise InvalidInput(f"{file.path} holds the secret of another run: name this run's own.")
    manifest.check_seal(folder, kept.seal)
    stored.check_seal(folder, kept.seal)
    return kept


def _manifest(job: Job, terms: RunTerms, paid: Payment, noise: KeyedNoise) -> Manifest:
    assert isinstance(paid.ledger, Ledger)
    return Manifest(
        run=secrets.token_hex(8),
        plan=job.plan,
        options=job.options,
        ledger=None if terms.ledger is None else str(paid.ledger.path),
        seq=paid.seq,
        stage=paid.stage,
        head=paid.ledger.head(),
        secret=str(terms.secret),
        stamp=noise.stamp,
        every=terms.every,
        example=job.example is not None,
        units=job.ids is not None,
        validation=job.validation is not None,
    )


def _validation(
    data: Any, model: nn.Module, loss_fn: Callable[..., Tensor], options: Options, collate: Collate | None, every: int
) -> PublicValidation | None:
    return None if data is None else PublicValidation(data, model, loss_fn, options.per_batch, collate, every)


def same_ledger(folder: Path, manifest: Manifest, given: Ledger | None) -> Ledger:
    """The ledger the run was paid in, grown from what it was then."""
    path = folder / LEDGER if manifest.ledger is None else manifest.ledger
    seen = given or Ledger.read(path)
    ledger = given or Ledger.open(path, dataset=seen.dataset)
    ledger.verify(manifest.head)
    return ledger


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The ledger and purpose of a run, its checkpoint folder and secret file, and the seed of a test."""

    ledger: Ledger | Committed | None = None
    purpose: Purpose = field(default_factory=Purpose)
    data_id: str | None = None
    folder: Path | None = None
    every: int = 1
    secret: Path | None = None
    test_seed: int | None = None
    audit: Canaries | None = None
    hardened: bool = False

    def __post_init__(self) -> None:
        _validate.count(checkpoint_every=self.every)
        if self.folder is not None and self.audit is not None:
            raise InvalidInput(
                "audit and checkpoint are given: expected one, as the coins of canaries are stored nowhere. "
                "Audit a run that is not stored, of the same model and plan."
            )
        if self.folder is None and self.secret is not None:
            raise InvalidInput("secret is given without checkpoint: expected both, as only a stored run has a secret.")
        if self.folder is not None:
            object.__setattr__(self, "secret", secret_path(self.folder, self.secret))
            if isinstance(self.ledger, Committed):
                raise InvalidInput("checkpoint needs the whole ledger: expected a Ledger, not one commitment of it.")

    def check_free(self) -> None:
        """Refuse a folder that holds a run, and a secret file that is another's or has no place."""
        if self.folder is None or self.secret is None:
            return
        if any((self.folder / name).exists() for name in (MANIFEST, LEDGER, RUN)):
            raise InvalidInput(f"{self.folder} holds a run: resume it with Trainer.resume, or name another folder.")
        if self.secret.exists():
            raise InvalidInput(f"{self.secret} holds the secret of another run: resume that run, or name another file.")
        if not self.secret.parent.is_dir() and self.secret.parent != self.folder.resolve().parent:
            raise InvalidInput(f"{self.secret.parent} is not a folder: expected one for the secret. Make it first.")

    def noise(self, witness: Witness | None = None) -> KeyedNoise:
        """Fresh noise from the system, or the stamped noise of a test."""
        return run_noise(self.test_seed, witness, hardened=self.hardened)

    def coins(self) -> Chain | None:
        """The batches of a test are those of its seed; otherwise the sampler finds its own key."""
        return None if self.test_seed is None else seeded_noise(self.test_seed).state


def run_noise(test_seed: int | None, witness: Witness | None = None, *, hardened: bool = False) -> KeyedNoise:
    """Fresh noise from the system, or the stamped noise of a test; ``witness`` notes what each release covers."""
    if test_seed is None:
        return KeyedNoise(witness=witness, hardened=hardened)
    seeded = seeded_noise(test_seed)
    return KeyedNoise(seeded.state, stamp=seeded.stamp, witness=witness, hardened=hardened)


def secret_path(folder: Path, given: Path | None) -> Path:
    """Where the secret of a run goes: beside its folder unless told otherwise, and never inside."""
    home = folder.resolve()
    chosen = home.with_name(f".{home.name}.secret") if given is None else Path(given).resolve()
    if chosen.is_relative_to(home):
        raise InvalidInput(
            f"secret is {str(given)!r}, inside the run folder: expected a file outside, as folders are shared."
        )
    return chosen


@contextmanager
def annotate_errors(ledger: Ledger | Committed, folder: Path | None) -> Iterator[None]:
    """Add to whatever stops a run what became of its price, and how to go on."""
    try:
        yield
    except BaseException as problem:
        where = f" in {ledger.path}" if isinstance(ledger, Ledger) else ""
        again = f" Trainer.resume({str(folder)!r}, ...) goes on from its last checkpoint." if folder else ""
        problem.add_note(f"The run's price stays spent{where}.{again}")
        raise
