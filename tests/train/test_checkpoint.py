"""A run that was stopped anywhere and resumed is the run that was never stopped, bit for bit; or it is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from dpilot import Budget, Ledger, Trainer, clipping, load
from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.keys import Chain
from dpilot.privacy.events import ApproxDP
from dpilot.train import payment
from dpilot.train.checkpoint import files, store
from dpilot.train.checkpoint.secret import Secret, SecretFile
from dpilot.train.checkpoint.store import CheckpointWriter
from tests.thin import thin
from tests.train.helpers import LOSS, STEPS, data, fit, model, plan, same
from tests.train.victim import options


class Stop(Exception):
    pass


def stopped(folder, at, **more):
    """A run that stops after step ``at``."""

    def stop(record):
        if record.step == at:
            raise Stop

    with pytest.raises(Stop):
        fit(checkpoint=folder, callback=stop, **more)


def resumed(folder, net=None, **more):
    return Trainer.resume(folder, net or model(seed=99), LOSS, data(), **more)


FORMS = [clipping.get("slack", groups=2), clipping.get("bounded", normalized=True)]


@pytest.mark.parametrize("rule", thin([*clipping.names(), *FORMS], 2), ids=str)
def test_every_rule_resumes_exactly(rule, tmp_path):
    stopped(tmp_path / "run", 4, plan=plan(rule), checkpoint_every=3)
    expected, found = fit(plan=plan(rule)), resumed(tmp_path / "run")
    assert same(found.model, expected.model)
    assert found.record == expected.record


@pytest.mark.parametrize(
    ("every", "name"), thin([(n, name) for n in (1, 3, 100) for name in ("sgd", "momentum", "adam", "adamw")], 3)
)
def test_optimizers_averages_dropout_and_schedules_resume_exactly(name, every, tmp_path):
    more = {"optimizer": name, "lr": 0.02, "average": "ema", "schedule": "cosine"}
    stopped(tmp_path / "run", 5, net=model(dropout=0.3), checkpoint_every=every, **more)
    found = resumed(tmp_path / "run", model(seed=9, dropout=0.3))
    assert same(found.model, fit(net=model(dropout=0.3), **more).model)


def test_secret_keys_resume_exactly_too(tmp_path):
    """Without a test seed: two copies of one interrupted run end alike, and differ from any other run."""
    stopped(tmp_path / "run", 4, test_seed=None, checkpoint_every=2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for end in ("", ".steps"):
        shutil.copy(tmp_path / f".run.secret{end}", tmp_path / f".copy.secret{end}")
    first = resumed(tmp_path / "run")
    second = resumed(tmp_path / "copy", secret=tmp_path / ".copy.secret")
    assert same(first.model, second.model)
    assert not same(first.model, fit(test_seed=None).model)


def test_an_optimizer_of_its_own_is_asked_for_again(tmp_path):
    own = lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5)  # noqa: E731
    stopped(tmp_path / "run", 4, optimizer=own)
    with pytest.raises(InvalidInput, match="an optimizer of its own"):
        resumed(tmp_path / "run")
    assert same(resumed(tmp_path / "run", optimizer=own).model, fit(optimizer=own).model)


def test_the_ledger_is_paid_once_and_booked_when_the_resumed_run_ends(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))
    stopped(tmp_path / "run", 4, ledger=book)
    spent = book.spent()
    assert [entry.state for entry in book.entries()] == ["reserved"]
    resumed(tmp_path / "run")
    assert [entry.state for entry in book.entries()] == ["committed"]
    assert book.spent() == spent


def test_no_more_steps_are_released_than_were_paid(tmp_path):
    """The receipt of a resumed run is short by the steps taken before."""
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))
    stopped(tmp_path / "run", 4, ledger=book, checkpoint_every=5)
    (entry,) = book.entries()
    with payment.resume_payment(plan(), book, entry.seq, entry.stage, 5) as paid:
        for _ in range(STEPS - 5):
            paid.receipt.draw(plan().step_event)
        with pytest.raises(BudgetExceeded):
            paid.receipt.draw(plan().step_event)


def test_the_secret_is_private_outside_the_folder_and_gone_at_completion(tmp_path):
    seen = []

    def look(record):
        where = tmp_path / ".run.secret"
        seen.append(where.read_text())
        assert stat.S_IMODE(where.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / ".run.secret.steps").stat().st_mode) == 0o600

    run = fit(
        checkpoint=tmp_path / "run", checkpoint_every=2, callback=lambda r: look(r) if r.step < STEPS - 1 else None
    )
    assert len(set(seen)) == STEPS // 2  # ratcheted at every checkpoint but the last, which leaves none
    assert not (tmp_path / ".run.secret").exists()
    assert not (tmp_path / ".run.secret.steps").exists()
    keys = {key for text in seen for key in (json.loads(text)["noise"][0], json.loads(text)["sampling"][0])}
    content = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert keys
    assert not any(bytes.fromhex(key) in content or key.encode() in content for key in keys)
    assert same(load(tmp_path / "run").model, run.model)


def test_old_keys_cannot_be_found_from_the_secret():
    start = Secret("r", 0, Chain(bytes(32)), Chain(bytes(range(32))), bytes(32))
    later = start.at(3)
    assert later.noise == start.noise.next().next().next()
    assert later.at(3) == later
    with pytest.raises(InvalidInput, match="the keys in between are gone"):
        later.at(2)
    assert repr(later) == "Secret(step=3)"


def test_a_lagging_secret_is_ratcheted_to_the_checkpoint(tmp_path, monkeypatch):
    """Killed between the two files: the checkpoint is of step 6, the secret of step 3."""
    real = SecretFile.write

    def dies(self, secret):
        if secret.step == 6:
            raise Stop
        real(self, secret)

    monkeypatch.setattr(SecretFile, "write", dies)
    with pytest.raises(Stop):
        fit(checkpoint=tmp_path / "run", checkpoint_every=3)
    monkeypatch.undo()
    assert SecretFile(tmp_path / ".run.secret").read().step == 3
    assert same(resumed(tmp_path / "run").model, fit().model)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_run_that_dies_at_any_write_goes_on_exactly(late, tmp_path, monkeypatch):
    """Before or after each rename of a file: there is nothing to resume yet, or the end is the same."""
    expected, real, outcomes = fit().model, os.replace, []
    for place in range(9):
        written = []

        def dies(source, target, place=place, written=written):
            written.append(target)
            if late:
                real(source, target)
            if len(written) == place + 1:
                raise Stop
            if not late:
                real(source, target)

        folder = tmp_path / str(place)
        monkeypatch.setattr(files.os, "replace", dies)
        with pytest.raises(Stop):
            fit(checkpoint=folder, checkpoint_every=3)
        monkeypatch.undo()
        outcomes.append((folder / store.CHECKPOINT).exists() and (tmp_path / f".{place}.secret").exists())
        if outcomes[-1] or (folder / "model.safetensors").exists() or place > 5:
            assert same(resumed(folder).model, expected)
    assert outcomes.count(True) >= 4


def test_a_secret_that_ran_ahead_is_refused(tmp_path):
    stopped(tmp_path / "run", 4, checkpoint_every=3)
    old = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()

    def stop(record):
        if record.step == 6:
            raise Stop

    with pytest.raises(Stop):
        resumed(tmp_path / "run", callback=stop)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(old)
    with pytest.raises(InvalidInput, match=r"stands at step 6 and the checkpoint at step 3.*new spend"):
        resumed(tmp_path / "run")


def test_the_same_noise_never_covers_another_sum(tmp_path):
    """Step 4 was released after the checkpoint of step 3; on other data it would come to another sum."""
    stopped(tmp_path / "run", 4, checkpoint_every=3)
    changed = torch.utils.data.TensorDataset(data().tensors[0] + 0.1, data().tensors[1])
    with pytest.raises(InvalidInput, match="comes to another sum"):
        Trainer.resume(tmp_path / "run", model(), LOSS, changed)
    with pytest.raises(InvalidInput, match="comes to another sum"):
        Trainer.resume(tmp_path / "run", model(), lambda out, y: 2 * LOSS(out, y), data())
    assert same(resumed(tmp_path / "run").model, fit().model)


def test_two_processes_cannot_hold_one_run(tmp_path):
    stopped(tmp_path / "run", 4)
    holder = SecretFile(tmp_path / ".run.secret")
    holder.log.open(fresh=False)
    with pytest.raises(InvalidInput, match="is in use"):
        resumed(tmp_path / "run")
    holder.log.close()
    assert same(resumed(tmp_path / "run").model, fit().model)


def test_what_is_missing_or_foreign_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="holds no run"):
        resumed(tmp_path)
    stopped(tmp_path / "run", 4)
    with pytest.raises(InvalidInput, match="the model is not the stored one"):
        resumed(tmp_path / "run", torch.nn.Linear(4, 2))
    (tmp_path / ".run.secret").chmod(0o644)
    with pytest.raises(InvalidInput, match="can be read by others"):
        resumed(tmp_path / "run")
    (tmp_path / ".run.secret").chmod(0o600)
    stopped(tmp_path / "other", 4)
    with pytest.raises(InvalidInput, match="the secret of another run"):
        resumed(tmp_path / "run", secret=tmp_path / ".other.secret")
    shutil.copy(tmp_path / "other" / "ledger", tmp_path / "run" / "ledger")
    with pytest.raises(LedgerError, match="another ledger"):
        resumed(tmp_path / "run")
    (tmp_path / ".other.secret").unlink()
    with pytest.raises(InvalidInput, match=r"is not there.*new spend"):
        resumed(tmp_path / "other")


def test_files_of_another_format_are_refused(tmp_path):
    stopped(tmp_path / "run", 4)
    for path, known in ((tmp_path / ".run.secret", 3), (tmp_path / "run" / "run.json", 2)):
        text = path.read_text()
        files.write(path, text.replace(f'"format": {known}', '"format": 99').encode(), mode=0o600)
        with pytest.raises(InvalidInput, match=f"format {known}"):
            resumed(tmp_path / "run")
        files.write(path, text.encode(), mode=0o600)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"\x80\x04K\x01.")  # a pickle is not executed
    with pytest.raises(InvalidInput, match="cannot be read"):
        resumed(tmp_path / "run")


def test_a_run_whose_log_of_sums_is_gone_is_not_resumed(tmp_path):
    stopped(tmp_path / "run", 5, checkpoint_every=4)
    (tmp_path / ".run.secret.steps").unlink()
    with pytest.raises(InvalidInput, match=r"steps is not there.*new spend"):
        resumed(tmp_path / "run")
    assert not (tmp_path / ".run.secret.steps").exists()


CHANGES = {
    "less noise": lambda said: said["plan"].update(noise_multiplier=1e-6),
    "more steps": lambda said: said["plan"].update(steps=9),
    "another step size": lambda said: said["options"].update(lr=9.0),
    "another seal": lambda said: said.update(seal="00"),
    "no seal": lambda said: said.pop("seal"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_an_altered_manifest_is_refused(change, tmp_path):
    stopped(tmp_path / "run", 3, checkpoint_every=4)
    where = tmp_path / "run" / "run.json"
    text = where.read_text()
    said = json.loads(text)
    change(said)
    where.write_text(json.dumps(said))
    with pytest.raises(InvalidInput, match=r"run\.json was altered since"):
        resumed(tmp_path / "run")
    where.write_text(text)
    assert same(resumed(tmp_path / "run").model, fit().model)


def forged(path, change):
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["dpilot"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    path.write_bytes(save(tensors, metadata={"dpilot": json.dumps(header)}))


FORGERIES = {
    "bound": lambda header, tensors: header["clipping"].update(threshold=1e-9),
    "weights": lambda header, tensors: tensors["model.0.bias"].add_(1),
    "seal": lambda header, tensors: header.pop("seal"),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=list(FORGERIES))
def test_an_altered_checkpoint_is_refused(change, tmp_path):
    stopped(tmp_path / "run", 3, checkpoint_every=4)
    path = tmp_path / "run" / "checkpoint.safetensors"
    forged(path, lambda *parts: None)
    before = path.read_bytes()
    forged(path, change)
    with pytest.raises(InvalidInput, match="safetensors was altered since"):
        resumed(tmp_path / "run")
    path.write_bytes(before)
    assert same(resumed(tmp_path / "run").model, fit().model)


def test_the_example_is_asked_for_again(tmp_path):
    example = tuple(part[:2] * 0 for part in data().tensors)
    stopped(tmp_path / "run", 3, checkpoint_every=4, example=example)
    with pytest.raises(InvalidInput, match="the run was given an example"):
        resumed(tmp_path / "run")
    assert same(resumed(tmp_path / "run", example=example).model, fit().model)


def test_a_receipt_is_of_the_plan_that_was_paid(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))
    stopped(tmp_path / "run", 3, checkpoint_every=4, ledger=book)
    (entry,) = book.entries()
    with (
        pytest.raises(LedgerError, match="expected the plan that was paid"),
        payment.resume_payment(plan(epsilon=9.0), book, entry.seq, entry.stage, 4),
    ):
        pass
    cheap = ApproxDP(0.1, 1e-9)
    with (
        pytest.raises(LedgerError, match="expected the plan that was paid"),
        payment.pay(plan(), book, cheap, payment.Purpose()),
    ):
        pass
    assert len(book.entries()) == 1


def test_a_run_stopped_after_its_last_step_is_closed(tmp_path, monkeypatch):
    for at, name in enumerate(("run", "late")):
        real = CheckpointWriter.write

        def keep(self, course, sampler, noise, late=bool(at), real=real):
            if course.steps_taken < STEPS or late:
                real(self, course, sampler, noise)
            else:
                store.write_public(self.folder, course, self.key)
            if course.steps_taken == STEPS:
                raise Stop

        monkeypatch.setattr(CheckpointWriter, "write", keep)
        with pytest.raises(Stop):
            fit(checkpoint=tmp_path / name)
        monkeypatch.undo()
        run = resumed(tmp_path / name)
        assert same(run.model, fit().model)
        assert [entry.state for entry in run.ledger.entries()] == ["committed"]
        assert not (tmp_path / f".{name}.secret").exists()
        assert resumed(tmp_path / name).record == run.record


def killed(folder, steps):
    """Start a run in another process and kill it once it has said ``steps`` steps."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.train.victim", str(folder)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    for _ in range(steps):
        process.stdout.readline()
    time.sleep(0.003 * steps)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("steps", thin([14, 1], 2))
def test_a_run_killed_at_any_moment_and_resumed_is_the_uninterrupted_one(steps, tmp_path):
    again = {**options(), "checkpoint_every": None}
    expected = Trainer(model(dropout=0.3), LOSS, plan("slack", steps=30), **again).fit(data())
    assert killed(tmp_path / "run", steps) == -signal.SIGKILL
    found = resumed(tmp_path / "run", model(seed=3, dropout=0.3))
    assert same(found.model, expected.model)
    assert found.record.steps == expected.record.steps
    assert [entry.state for entry in found.ledger.entries()] == ["committed"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(0, 30, 2))
def test_killed_at_many_moments(steps, tmp_path):
    expected = Trainer(model(dropout=0.3), LOSS, plan("slack", steps=30), **options()).fit(data())
    for _ in range(2):
        shutil.rmtree(tmp_path, ignore_errors=True)
        tmp_path.mkdir()
        killed(tmp_path / "run", steps)
        if (tmp_path / "run" / store.CHECKPOINT).exists():
            assert same(resumed(tmp_path / "run", model(seed=3, dropout=0.3)).model, expected.model)
