"""From a job to a run: pay first, then read, then step; and the same again from where a run was interrupted."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES
from dpilot.noise import KeyedNoise, Noise, SystemNoise
from dpilot.privacy.ledger import Ledger
from dpilot.privacy.receipt import Receipt
from dpilot.records import RunRecord
from dpilot.sampling import PoissonSampler
from dpilot.train import files, payment, use
from dpilot.train.checkpoint import MANIFEST, Keeper, Manifest, Stored
from dpilot.train.course import Course
from dpilot.train.job import Job
from dpilot.train.payment import LEDGER, Payment
from dpilot.train.reading import Reader, check_dataset
from dpilot.train.run import Run
from dpilot.train.secret import Secret, SecretFile, WitnessedNoise
from dpilot.train.terms import Terms, told


def fit(job: Job, terms: Terms, dataset: Any) -> Run:
    """All the planned steps on ``dataset``, paid on disk before the first record is read."""
    check_dataset(dataset)
    terms.check_free()
    use.check_unused(job.plan, own_ledger=terms.ledger is None)
    form = job.form(dataset)
    if form is not None:
        job = job.rehearsed(form)
    ledger = terms.ledger or payment.own_ledger(job.plan, terms.folder, terms.data_id)
    event = payment.price(job.plan, own=terms.ledger is None)
    with payment.pay(job.plan, ledger, event, terms.purpose) as paid, told(ledger, terms.folder):
        sampler = use.begin(job.plan, terms.coins()).sampler
        if form is None:
            form = job.first_form(dataset)
            job = job.rehearsed(form)
        reader = _reader(job, dataset, form)
        course, stamp = _first(job, terms, paid, reader, sampler)
    return _finished(course, paid, stamp, terms.folder)


def resume(folder: Path, manifest: Manifest, job: Job, dataset: Any, ledger: Ledger | None, secret: Path) -> Run:
    """The rest of an interrupted run, exactly as it would have been."""
    check_dataset(dataset)
    stored = Stored.read(folder)
    stored.check_fits(job.model)
    book = _same_ledger(folder, manifest, ledger)
    if stored.taken == job.plan.steps:
        return _close(folder, manifest, job, stored, book, secret)
    with closing(SecretFile(secret)) as file:
        file.open(fresh=False)
        kept = _own_secret(folder, manifest, stored, file).at(stored.taken)
        noise = KeyedNoise(kept.noise, stamp=manifest.stamp)
        sampler = PoissonSampler(job.plan.sample_rate, job.plan.steps, state=kept.sampling)
        place = manifest.seq, manifest.stage
        with payment.go_on(job.plan, book, *place, stored.taken) as paid, told(book, folder):
            known = job.form(dataset)
            reader = _reader(job, dataset, job.first_form(dataset) if known is None else known)
            course = job.course(WitnessedNoise(noise, file), paid.receipt, reader.form)
            stored.put_into(course)
            _steps(job, course, paid, reader, sampler, noise, Keeper(folder, manifest, file, kept.seal))
    return _finished(course, paid, manifest.stamp, folder)


def _reader(job: Job, dataset: Any, form: Any) -> Reader:
    """How the run reads its records; where none of them shows a form, all are null and there is nothing to read."""
    return job.reader(() if form is None else dataset, form)


def _first(job: Job, terms: Terms, paid: Payment, reader: Reader, sampler: PoissonSampler) -> tuple[Course, str]:
    """The steps of a new run, with or without checkpoints."""
    noise = terms.noise()
    if terms.folder is None or terms.secret is None:
        course = job.course(noise, paid.receipt, reader.form)
        _steps(job, course, paid, reader, sampler, noise, None)
        return course, noise.stamp
    terms.folder.mkdir(parents=True, exist_ok=True)
    with closing(SecretFile(terms.secret)) as file:
        file.open(fresh=True)
        key = noise.state.generator("seal").bytes(KEY_BYTES)
        keeper = Keeper(terms.folder, _manifest(job, terms, paid, noise), file, key)
        course = job.course(WitnessedNoise(noise, file), paid.receipt, reader.form)
        files.write(terms.folder / MANIFEST, keeper.manifest.to_json().encode())
        keeper.keep(course, sampler, noise)
        _steps(job, course, paid, reader, sampler, noise, keeper)
    return course, noise.stamp


def _steps(
    job: Job,
    course: Course,
    paid: Payment,
    reader: Reader,
    sampler: PoissonSampler,
    noise: KeyedNoise,
    keeper: Keeper | None,
) -> None:
    """Every step that is left: claim its batch, take it, store it where that is due, and tell."""
    assert job.options.chunk_size is not None
    cost = paid.cost
    tell = job.watch.of(job.plan.steps, course.taken, cost.epsilon, cost.delta, paid.left)
    for batch in sampler.batches(len(reader.dataset)):
        chain = sampler.state
        sampler.claim(batch)
        record = course.step(chain, reader.chunks(batch.chunks(job.options.chunk_size)))
        if keeper is not None and keeper.due(course):
            keeper.keep(course, sampler, noise)
        tell(record)


def _own_secret(folder: Path, manifest: Manifest, stored: Stored, file: SecretFile) -> Secret:
    """The run's own secret, if manifest and checkpoint are those that were sealed under its key."""
    kept = file.read()
    if kept.run != manifest.run:
        raise InvalidInput(f"{file.path} holds the secret of another run: name this run's own.")
    manifest.check_seal(folder, kept.seal)
    stored.check_seal(folder, kept.seal)
    return kept


def _close(folder: Path, manifest: Manifest, job: Job, stored: Stored, book: Ledger, secret: Path) -> Run:
    """A run that was interrupted after its last step: book it, and leave no secret."""
    file = SecretFile(secret)
    if secret.exists():
        _own_secret(folder, manifest, stored, file)
    file.delete()
    place = manifest.seq, manifest.stage
    if payment.interrupted(book, *place):
        with payment.go_on(job.plan, book, *place, stored.taken):
            pass
    done: Noise = SystemNoise()
    course = job.course(done, Receipt(job.plan.event))
    stored.put_into(course)
    return _finished(course, Payment(course.setting.receipt, book, *place), manifest.stamp, folder)


def record_of(course: Course, paid: Payment, stamp: str) -> RunRecord:
    """What a run released so far, and what it costs."""
    cost, plan = paid.cost, course.setting.plan
    return RunRecord(
        plan=plan.to_dict(),
        epsilon=cost.epsilon,
        delta=cost.delta,
        steps=tuple(course.records),
        stamps=(stamp,),
        notes=(payment.note(plan, paid),),
        options=course.options.to_dict(),
    )


def _finished(course: Course, paid: Payment, stamp: str, folder: Path | None) -> Run:
    course.finish()
    run = Run(course.setting.model, record_of(course, paid, stamp), paid.ledger)
    if folder is not None:
        run.save(folder)
    return run


def _manifest(job: Job, terms: Terms, paid: Payment, noise: KeyedNoise) -> Manifest:
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
    )


def _same_ledger(folder: Path, manifest: Manifest, given: Ledger | None) -> Ledger:
    """The ledger the run was paid in, grown from what it was then."""
    path = folder / LEDGER if manifest.ledger is None else Path(manifest.ledger)
    seen = given or Ledger.read(path)
    ledger = given or Ledger.open(path, dataset=seen.dataset)
    ledger.verify(manifest.head)
    return ledger
