"""A fit that is killed goes on where it was: the same result bit for bit, for one price, or it is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import numpy as np
import pytest

from dpilot import Budget, Ledger
from dpilot.errors import InvalidInput
from dpilot.fit.classifier import AutoClassifier
from dpilot.train.checkpoint.witness import WitnessLog
from tests.fit.helpers import frame
from tests.fit.interrupted import (
    CASES,
    DISK,
    ROWS,
    SIZE,
    count,
    fit,
    fork,
    kill_after,
    kill_at,
    left_behind,
    result,
    wait,
)
from tests.thin import thin

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each fit comes to if nothing happens, and how long it takes."""
    found = {}
    for case in CASES:
        folder = tmp_path_factory.mktemp("whole") / "run"
        fit(case, folder)  # loads code
        folder, start = folder.with_name("again"), time.perf_counter()
        fit(case, folder)
        found[case] = result(folder), time.perf_counter() - start
    return found


def go_on(case, folder, expected):
    """End what was begun in ``folder``, whatever is there, and compare."""
    if (folder / "fit.json").exists():
        with pytest.raises(InvalidInput, match="finished fit"):
            fit(case, folder, resume=True)
    else:  # without arguments it came to nothing, and begins anew
        fit(case, folder, resume=(folder / "arguments.json").exists())
    assert result(folder) == expected


@pytest.mark.parametrize("case", thin(CASES, 2))
def test_a_fit_killed_at_a_stage_boundary_goes_on_to_the_same_result_for_the_same_price(
    case, undisturbed, tmp_path, monkeypatch
):
    rows = count(lambda: fit(case, tmp_path / "count"), ROWS, monkeypatch)
    assert rows >= 2 + 2 * 3  # two commitments, and stages that begin and end
    places = range(1, rows) if case == "logistic" else sorted(random.Random(case).sample(range(1, rows), 5))
    for place in places:
        folder = tmp_path / f"run{place}"
        assert kill_at(lambda folder=folder: fit(case, folder), place, ROWS, after=True)
        go_on(case, folder, undisturbed[case][0])
        assert left_behind(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_fit_killed_at_any_operation_on_disk_goes_on(case, after, undisturbed, tmp_path, monkeypatch):
    operations = count(lambda: fit(case, tmp_path / "count"), DISK, monkeypatch)
    for place in range(operations):
        folder = tmp_path / f"run{place}"
        assert kill_at(lambda folder=folder: fit(case, folder), place, DISK, after=after)
        go_on(case, folder, undisturbed[case][0])


def killed_at_random(case, seed, undisturbed, folder):
    """Killed, and killed again while it goes on, before it comes to its end."""
    expected, seconds = undisturbed[case]
    made = random.Random(f"{case} {seed}")
    kill_after(lambda: fit(case, folder), made.uniform(0, 1.2 * seconds))
    if (folder / "arguments.json").exists() and not (folder / "fit.json").exists():
        kill_after(lambda: fit(case, folder, resume=True), made.uniform(0, seconds))
    go_on(case, folder, expected)


@pytest.mark.parametrize(
    ("case", "seed"), [("auto, classes", 0), ("auto, numbers", 0), *(("logistic", s) for s in (0, 1, 2))]
)
def test_a_fit_killed_at_a_random_moment_goes_on(case, seed, undisturbed, tmp_path):
    killed_at_random(case, seed, undisturbed, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fits_killed_at_fifty_random_moments_go_on(case, undisturbed, tmp_path):
    for seed in range(50):
        killed_at_random(case, seed, undisturbed, tmp_path / f"run{seed}")


def killed_in_training(case, folder, monkeypatch):
    """Killed after the noise of its last release but one."""
    notes = ((WitnessLog, "note"),)
    releases = count(lambda: fit(case, folder.with_name("count")), notes, monkeypatch)
    assert kill_at(lambda: fit(case, folder), releases - 2, notes, after=True)


@pytest.mark.parametrize("case", ["auto, classes", "logistic"])
def test_other_records_are_refused_before_the_same_noise_covers_them(case, undisturbed, tmp_path, monkeypatch):
    folder, changed = tmp_path / "run", frame(SIZE)
    changed["signal"] = changed["signal"].to_numpy()[::-1]
    killed_in_training(case, folder, monkeypatch)
    with pytest.raises(InvalidInput, match="comes to another sum") as refused:
        fit(case, folder, resume=True, data=changed)
    assert any("can go on from" in note for note in refused.value.__notes__)
    go_on(case, folder, undisturbed[case][0])


def test_a_record_more_or_less_is_refused_at_the_health_check(undisturbed, tmp_path):
    folder = tmp_path / "run"
    assert kill_at(lambda: fit("logistic", folder, size=SIZE), 2, ROWS, after=True)
    for size in (SIZE - 1, SIZE + 1):
        with pytest.raises(InvalidInput, match="comes to another sum"):
            fit("logistic", folder, resume=True, size=SIZE, data=frame(size))


def test_a_log_that_lacks_a_release_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    killed_in_training("logistic", folder, monkeypatch)
    (log,) = tmp_path.glob(".run*.releases")
    log.write_bytes(log.read_bytes()[40:])  # without the line of the health check, which ended
    with pytest.raises(InvalidInput, match="lacks a release"):
        fit("logistic", folder, resume=True)
    log.unlink()
    with pytest.raises(InvalidInput, match="is not there"):
        fit("logistic", folder, resume=True)


def test_a_fit_goes_on_with_its_own_arguments_or_not_at_all(tmp_path):
    folder = tmp_path / "run"
    assert kill_at(lambda: fit("logistic", folder), 3, ROWS, after=True)
    spent = Ledger.read(folder / "ledger").spent()
    for options in ({"epsilon": 3.0}, {"model": "mlp"}, {"held_out": 0.3}, {"test_seed": 6}):
        with pytest.raises(InvalidInput, match="other arguments"):
            fit("logistic", folder, resume=True, **options)
    with pytest.raises(InvalidInput, match="holds a fit"):
        fit("logistic", folder)
    assert Ledger.read(folder / "ledger").spent() == spent
    with pytest.raises(InvalidInput, match="no fit to go on with"):
        fit("logistic", tmp_path / "other", resume=True)


def test_a_finished_fit_is_refused_and_kept(tmp_path):
    folder = tmp_path / "run"
    fit("auto, numbers", folder)
    before = result(folder)
    for resume, said in ((True, "finished fit"), (False, "holds a fit")):
        with pytest.raises(InvalidInput, match=said):
            fit("auto, numbers", folder, resume=resume)
    assert result(folder) == before


def test_two_processes_cannot_hold_one_fit(undisturbed, tmp_path):
    folder, told = tmp_path / "run", os.pipe()

    def hold() -> None:
        def stay(*_: object) -> None:
            os.write(told[1], b"x")
            time.sleep(600)

        WitnessLog.note = stay  # type: ignore[method-assign,assignment]
        fit("logistic", folder)

    child = fork(hold)
    try:
        assert os.read(told[0], 1) == b"x"
        with pytest.raises(InvalidInput, match="is in use"):
            fit("logistic", folder, resume=True)
    finally:
        os.kill(child, signal.SIGKILL)
    assert wait(child)
    go_on("logistic", folder, undisturbed["logistic"][0])


@pytest.mark.parametrize("case", ["auto, classes", "logistic"])
def test_a_ledger_of_several_fits_is_charged_once_for_each(case, tmp_path):
    """The second fit has the same stages as the first: its commitments are its own."""
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(4.1, 1e-3))
    first = fit(case, tmp_path / "one", ledger=book, test_seed=1)
    assert kill_at(lambda: fit(case, tmp_path / "two", ledger=tmp_path / "book", test_seed=2), 5, ROWS, after=True)
    before = book.spent()
    second = fit(case, tmp_path / "two", ledger=book, test_seed=2, resume=True)
    assert book.spent() == before
    assert book.spent().epsilon > 1.9 * first.epsilon
    assert len({each.seq for each in book.entries()}) == 4
    assert {each.state for each in book.entries()} == {"committed"}
    assert second.metrics != first.metrics


def test_nothing_is_taken_over_from_a_fit_that_only_began(tmp_path):
    """A fit killed between its two payments has paid for health; going on, it pays for the rest, in its own name."""
    book = Ledger.open(tmp_path / "book", dataset="small", budget=Budget(4.1, 1e-3))
    fit("logistic", tmp_path / "one", ledger=book, test_seed=1)
    assert kill_at(lambda: fit("logistic", tmp_path / "two", ledger=book.path, test_seed=2), 2, ROWS, after=True)
    assert len({each.seq for each in book.entries()}) == 3
    fit("logistic", tmp_path / "two", ledger=book, test_seed=2, resume=True)
    assert len({each.seq for each in book.entries()}) == 4


@pytest.mark.filterwarnings("ignore:random_state")
def test_an_estimator_goes_on_from_its_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.where(X[:, 0] > 0, "yes", "no")

    def fit_in(name, X=X):
        made = AutoClassifier(2.0, 1e-4, classes=["no", "yes"], epochs=3, random_state=3, stop_below=0.0)
        return made.set_params(checkpoint=None if name is None else tmp_path / name).fit(X, y)

    expected = fit_in(None)
    assert kill_at(lambda: fit_in("run"), 7, ROWS, after=True)
    with pytest.raises(InvalidInput, match="another sum"):
        fit_in("run", X[::-1].copy())
    found = fit_in("run")
    assert np.array_equal(found.coef_, expected.coef_)
    assert found.privacy_.spent == expected.privacy_.spent == Ledger.read(tmp_path / "run" / "ledger").spent()
    assert found.record_.metrics == expected.record_.metrics
    with pytest.raises(InvalidInput, match="holds a fit"):
        fit_in("run")


def test_the_secret_is_for_its_owner_and_holds_the_only_key(tmp_path):
    folder = tmp_path / "run"
    assert kill_at(lambda: fit("logistic", folder, test_seed=None), 3, ROWS, after=True)
    secret, log = tmp_path / ".run.secret", tmp_path / ".run.secret.releases"
    assert {path.name for path in tmp_path.glob(".*")} == {secret.name, log.name}
    for path in (secret, log):
        assert path.stat().st_mode & 0o077 == 0
    key = json.loads(secret.read_text())["key"]
    told = "".join(path.read_bytes().decode("latin-1") for path in folder.iterdir())
    assert key not in told
    assert bytes.fromhex(key).decode("latin-1") not in told
    secret.chmod(0o644)
    with pytest.raises(InvalidInput, match="can be read by others"):
        fit("logistic", folder, test_seed=None, resume=True)
