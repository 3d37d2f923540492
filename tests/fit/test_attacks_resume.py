"""Attacks on a fit that is killed and goes on: on its log, secret, folder and ledger, with other data or processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

from dpilot.errors import DpilotError, InvalidInput
from dpilot.fit.classifier import AutoClassifier
from dpilot.fit.folder import open_folder
from dpilot.fit.keys import FitKeys
from dpilot.fit.pipeline import FitStopped
from dpilot.fit.table import fit_table
from dpilot.noise import KeyedNoise
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian
from dpilot.privacy.ledger import Ledger, Stage
from dpilot.privacy.ledger.store import Store
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.witness import WitnessLog
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema

pytestmark = pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")


class Killed(BaseException):
    """What no handler of an ordinary error takes."""


class Killer:
    """Counts what reaches the disk, and kills before or after one of these writes."""

    def __init__(self, monkeypatch) -> None:
        self.count, self.at = 0, None
        for owner, name in ((WitnessLog, "note"), (files, "write"), (files, "remove")):
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name)))
        transaction = Store.transaction

        @contextmanager
        def wrapped(store):
            with self._around(), transaction(store) as appender:
                yield appender

        monkeypatch.setattr(Store, "transaction", wrapped)

    def _wrap(self, real):
        def wrapped(*args, **named):
            with self._around():
                return real(*args, **named)

        return wrapped

    @contextmanager
    def _around(self):
        self.count += 1
        place = self.count
        if self.at == (place, "before"):
            raise Killed
        yield
        if self.at == (place, "after"):
            raise Killed


def fit(folder, data=None, *, resume=False, **options):
    options = {"epsilon": 5.0, "delta": 1e-5, "size": 300, "stop_below": 0.0, "test_seed": 3, **options}
    data = numeric_frame(300) if data is None else data
    return fit_table(data, numeric_schema(), run_folder=folder / "run", resume=resume, **options)


def facts(fitted, folder):
    book = Ledger.read(folder / "run" / "ledger")
    model = {name: tensor.tolist() for name, tensor in fitted.predictor.state()[1].items()}
    return repr(fitted.metrics), model, book.spent(), len({entry.seq for entry in book.entries()}), fitted.health


def interrupt(monkeypatch, folder, releases: int, data=None, **options) -> None:
    """Kill a fit just after it noted release number ``releases``."""
    with monkeypatch.context() as patch:
        real, left = WitnessLog.note, [releases]

        def note(self, name, covered):
            real(self, name, covered)
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        patch.setattr(WitnessLog, "note", note)
        with pytest.raises(Killed):
            fit(folder, data, **options)


def other_data():
    """Another table with the same health: every number is another, within its bounds."""
    data = numeric_frame(300)
    columns = ["number", "signal", "outcome"]
    data[columns] = (data[columns].astype(float) * 0.5).astype(str)
    return data


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_fit_killed_at_any_write_goes_on_to_the_same_result_for_the_same_price(monkeypatch, tmp_path, every):
    killer = Killer(monkeypatch)
    expected = facts(fit(tmp_path), tmp_path)
    last = killer.count
    for place in range(3, last - 2, every):  # the first two begin the folder, the last three end it
        for side in ("before", "after"):
            folder = tmp_path / f"{place} {side}"
            folder.mkdir()
            killer.count, killer.at = 0, (place, side)
            with pytest.raises(Killed):
                fit(folder)
            killer.at = None
            assert facts(fit(folder, resume=True), folder) == expected, (place, side)


def test_a_fit_killed_while_its_folder_is_made_has_paid_nothing_and_can_go_on(monkeypatch, tmp_path):
    killer = Killer(monkeypatch)
    killer.at = (2, "after")  # secret, then arguments
    with pytest.raises(Killed):
        fit(tmp_path)
    killer.at = None
    assert not (tmp_path / "run" / "ledger").exists()
    assert fit(tmp_path, resume=True).metrics


def test_no_secret_outlives_a_fit_that_was_killed_once_it_was_saved(monkeypatch, tmp_path):
    killer = Killer(monkeypatch)
    fit(tmp_path)
    (tmp_path / "again").mkdir()
    killer.at, killer.count = (killer.count - 2, "after"), 0
    with pytest.raises(Killed):
        fit(tmp_path / "again")
    killer.at = None
    assert (tmp_path / "again" / ".run.secret").exists()
    for resume in (True, False):
        with pytest.raises(InvalidInput, match="holds a"):
            fit(tmp_path / "again", resume=resume)
    assert not list((tmp_path / "again").glob(".run.secret*"))


@pytest.mark.parametrize("releases", [12, 15])
def test_a_fit_does_not_go_on_with_other_data(monkeypatch, tmp_path, releases):
    interrupt(monkeypatch, tmp_path, releases)
    spent = Ledger.read(tmp_path / "run" / "ledger").spent()
    with pytest.raises(InvalidInput, match="another sum"):
        fit(tmp_path, other_data(), resume=True)
    assert Ledger.read(tmp_path / "run" / "ledger").spent() == spent


def test_the_same_noise_covers_no_two_sums_though_the_log_was_cut(monkeypatch, tmp_path):
    sums, noises, real = [], [], KeyedNoise.gaussian

    def gaussian(self, values, **how):
        noisy = real(self, values, **how)
        sums[-1].append(np.concatenate([np.ravel(value) for value in values]))
        noises[-1].append(np.concatenate([np.ravel(value) for value in noisy]) - sums[-1][-1])
        return noisy

    def listened(folder, data, **options):
        sums.append([])
        noises.append([])
        folder.mkdir(exist_ok=True)
        fit(folder, data, **options)

    monkeypatch.setattr(KeyedNoise, "gaussian", gaussian)
    listened(tmp_path / "one", None)
    listened(tmp_path / "two", other_data())
    first = next(place for place, pair in enumerate(zip(*sums, strict=False)) if not np.array_equal(*pair))
    sums.append([])
    noises.append([])
    interrupt(monkeypatch, tmp_path, first + 1)
    os.truncate(tmp_path / ".run.secret.releases", 40 * first)  # its last line is gone
    listened(tmp_path, other_data(), resume=True)
    assert not np.array_equal(sums[-1][first], sums[0][first])
    assert np.abs(noises[-1][first] - noises[0][first]).max() > 1e-3 * np.abs(noises[0][first]).max()


def test_a_run_that_was_copied_repeats_itself_and_gives_other_sums_other_noise(monkeypatch, tmp_path):
    interrupt(monkeypatch, tmp_path, 1)
    shutil.copytree(tmp_path, tmp_path.with_name("same"))
    shutil.copytree(tmp_path, tmp_path.with_name("other"))
    first, same = (fit(folder, resume=True) for folder in (tmp_path, tmp_path.with_name("same")))
    other = fit(tmp_path.with_name("other"), other_data(), resume=True)
    assert repr(first.metrics) == repr(same.metrics)
    assert repr(first.metrics) != repr(other.metrics)


def test_the_noise_of_a_fit_is_of_its_key_and_of_the_values():
    class Forgetful:
        def note(self, name, covered):
            pass

    def noise(value: float):
        source = FitKeys.of(bytes(32), witness=Forgetful()).noise
        return source.gaussian([np.full(50, value)], bound=1.0, noise_multiplier=1.0)[0] - value

    assert np.allclose(noise(1.0), noise(1.0))
    assert abs(np.corrcoef(noise(1.0), noise(2.0))[0, 1]) < 0.6
    assert 0.5 < noise(3.0).std() < 1.5


@pytest.mark.parametrize("written", [0, 16])
def test_a_line_that_a_full_disk_cut_does_not_shift_those_after_it(monkeypatch, tmp_path, written):
    log = WitnessLog(tmp_path / "log")
    log.open(fresh=True)
    log.note(b"a" * 8, b"1" * 32)
    with monkeypatch.context() as patch:
        real = os.write
        patch.setattr(os, "write", lambda handle, line: real(handle, line[:written]))
        with pytest.raises(DpilotError, match="cannot be written"):
            log.note(b"b" * 8, b"2" * 32)
    log.note(b"c" * 8, b"3" * 32)
    log.close()
    again = WitnessLog(tmp_path / "log")
    again.open(fresh=False)
    with pytest.raises(InvalidInput, match="another sum"):
        again.note(b"c" * 8, b"4" * 32)
    with again.frozen(), pytest.raises(InvalidInput, match="lacks"):
        again.note(b"b" * 8, b"2" * 32)
    again.close()


def test_who_does_not_get_the_log_leaves_it_as_it_is(tmp_path):
    first, second = WitnessLog(tmp_path / "log"), WitnessLog(tmp_path / "log")
    first.open(fresh=True)
    first.note(b"a" * 8, b"1" * 32)
    with pytest.raises(InvalidInput, match="in use"):
        second.open(fresh=True)
    second.close()
    first.close()
    assert (tmp_path / "log").stat().st_size == 40


def _begin(folder, barrier, answers):
    barrier.wait()
    try:
        with open_folder(folder, {}, 1e-5, resume=False) as begun:
            kept = json.loads((folder.parent / ".run.secret").read_text())["key"]
            answers.put(kept == begun.keys.chain.key.hex())
            barrier.wait()
    except InvalidInput:
        answers.put(None)
        barrier.wait()


def test_of_processes_that_begin_in_one_folder_one_does_and_its_key_is_kept(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_begin, args=(tmp_path / "run", barrier, answers)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert sorted(found, key=str) == [None, None, None, True]


@pytest.mark.parametrize("content", ["", "{", '{"key": "00', "[1]", '{"key": "zz", "delta": 1}', '{"key": "00"}', "{}"])
def test_a_secret_that_was_cut_is_refused_and_not_shown(monkeypatch, tmp_path, content):
    interrupt(monkeypatch, tmp_path, 1)
    secret = tmp_path / ".run.secret"
    secret.write_text(content)
    with pytest.raises(InvalidInput) as refused:
        fit(tmp_path, resume=True)
    chain = [refused.value, refused.value.__cause__, refused.value.__context__]
    assert "key" not in content or not any(content in f"{each} {vars(each) if each else ''}" for each in chain)


@pytest.mark.parametrize("name", [".run.secret", ".run.secret.releases"])
def test_a_fit_does_not_go_on_without_its_secret_or_log(monkeypatch, tmp_path, name):
    interrupt(monkeypatch, tmp_path, 2)
    (tmp_path / name).unlink()
    with pytest.raises(InvalidInput, match="is not there"):
        fit(tmp_path, resume=True)


def test_a_stopped_fit_leaves_no_secret_and_its_folder_pays_for_no_second_health_check(tmp_path):
    strange = frame(3000).assign(kind="none of these")
    with pytest.raises(FitStopped):
        fit_table(strange, SCHEMA, epsilon=1.0, delta=1e-5, run_folder=tmp_path / "run")
    assert not list(tmp_path.glob(".run.secret*"))
    spent = Ledger.read(tmp_path / "run" / "ledger").spent()
    with pytest.raises(InvalidInput, match="Name another folder"):
        fit_table(frame(3000), SCHEMA, epsilon=1.0, delta=1e-5, run_folder=tmp_path / "run")
    assert Ledger.read(tmp_path / "run" / "ledger").spent() == spent


def test_stages_of_one_name_that_a_resumed_process_begins_run_once_each(tmp_path):
    book = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(9.0, 1e-3))
    made = book.commit([Stage("trial", Gaussian(2.0)), Stage("trial", Gaussian(2.0)), Stage("trial", Gaussian(2.0))])
    with made.stage("trial"):
        pass
    log = WitnessLog(tmp_path / "log")
    repeated = book.committed(made.seq, repeat=log.frozen)
    for state in ("committed", "planned", "planned"):
        place = [entry.state for entry in repeated.entries()].count("committed") if state == "planned" else 0
        assert repeated.entries()[place].state == state
        with repeated.stage("trial"):
            if state == "planned":
                log.note(f"key {place}".ljust(8).encode(), bytes(32))  # refused if an ended stage was handed out
    assert {entry.state for entry in repeated.entries()} == {"committed"}


class Interrupted(Exception):
    pass


def estimator(folder, ledger, **options):
    options = {"epsilon": 3.0, "size": 300, "stop_below": 0.0, **options}
    return AutoClassifier(schema=SCHEMA, ledger=ledger, checkpoint=folder / "run", **options)


def test_an_estimator_goes_on_in_its_own_ledger_only(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        real, left = WitnessLog.note, [2]

        def note(self, name, covered):
            left[0] -= 1
            if not left[0]:
                raise Interrupted
            real(self, name, covered)

        patch.setattr(WitnessLog, "note", note)
        with pytest.raises(Interrupted):
            estimator(tmp_path, tmp_path / "a.ledger").fit(frame(300))
    spent = Ledger.read(tmp_path / "a.ledger").spent()
    for ledger in (None, tmp_path / "b.ledger"):
        with pytest.raises(InvalidInput, match="other arguments"):
            estimator(tmp_path, ledger).fit(frame(300))
    assert not (tmp_path / "b.ledger").exists()
    estimator(tmp_path, tmp_path / "a.ledger").fit(frame(300))
    assert Ledger.read(tmp_path / "a.ledger").spent() == spent
    with pytest.raises(InvalidInput, match="holds a"):
        estimator(tmp_path, tmp_path / "a.ledger").fit(frame(200))
