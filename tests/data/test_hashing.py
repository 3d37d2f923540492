"""Hashed texts: the same rows by one process or several, whatever becomes of them, and no text leaves them."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

from dpilot.data import text_worker
from dpilot.data.hashing import PIECE, hash_texts
from dpilot.data.workers import WorkerPool

RNG = np.random.default_rng(0)
WORDS = np.array(["secret", "film", "café", "\x00", "12", "\U0001f600", "good", "a" * 300])
TEXTS = [None, "", *(" ".join(RNG.choice(WORDS, 1 + place % 9)) for place in range(2 * PIECE))]


@pytest.fixture
def pool():
    """Two workers, whatever the machine has."""
    made = WorkerPool(text_worker.__file__, 2, available=lambda: 2)
    yield made
    made.stop()


def alone(texts):
    return np.concatenate([hash_texts([each], 64, 1000).toarray() for each in texts])


@pytest.mark.slow
def test_several_processes_give_the_rows_of_one_and_a_dead_one_changes_none(pool, capfd):
    expected = alone(TEXTS[: PIECE + 40])
    assert np.array_equal(hash_texts(TEXTS, 64, 1000, pool=pool, alone=0).toarray()[: len(expected)], expected)
    assert [worker.is_alive for worker in pool.workers] == [True, True]
    pool.workers[0].process.stdin.close()  # it leaves between two requests
    assert np.array_equal(hash_texts(TEXTS, 64, 1000, pool=pool, alone=0).toarray()[: len(expected)], expected)
    assert capfd.readouterr() == ("", "")


HALF_DEAD = """
import os, sys
sys.stdout.buffer.write(b"R"); sys.stdout.buffer.flush()
sys.stdin.buffer.read(20)
print("secret", file=sys.stderr)
sys.stdout.buffer.write({said!r}); sys.stdout.buffer.flush()
os._exit(1)
"""


@pytest.mark.parametrize("said", [b"", b"\0\0\0", (1000).to_bytes(8, "big") + b"half"], ids=["nothing", "head", "half"])
def test_a_process_that_dies_over_texts_leaves_them_to_this_one(tmp_path, capfd, said):
    (tmp_path / "worker.py").write_text(HALF_DEAD.format(said=said))
    pool, few = WorkerPool(str(tmp_path / "worker.py"), 2, available=lambda: 2), [*TEXTS[: PIECE + 5]]
    try:
        assert np.array_equal(hash_texts(few, 64, 1000, pool=pool, alone=0).toarray(), alone(few))
    finally:
        pool.stop()
    assert capfd.readouterr() == ("", "")


def test_processes_that_cannot_start_are_not_needed(tmp_path):
    (tmp_path / "worker.py").write_text("raise SystemExit(1)")
    pool = WorkerPool(str(tmp_path / "worker.py"), 2, available=lambda: 2)
    assert hash_texts(TEXTS, 64, 1000, pool=pool, alone=0).shape == (len(TEXTS), 64)
    assert hash_texts([], 64, 1000, pool=pool, alone=0).shape == (0, 64)


@pytest.mark.slow
def test_a_script_without_a_main_guard_hashes_in_processes_and_leaves_none(tmp_path):
    code = (
        "from dpilot.data import text_worker\nfrom dpilot.data.hashing import hash_texts\n"
        "from dpilot.data.workers import WorkerPool\n"
        "pool = WorkerPool(text_worker.__file__, 2, available=lambda: 2)\n"
        f"print(hash_texts(['secret'] * {2 * PIECE}, 64, 10, pool=pool, alone=0).nnz)\n"
        "print([each.process.pid for each in pool.workers])"
    )
    (tmp_path / "script.py").write_text(code)
    with warnings.catch_warnings():
        done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    counted, pids = done.stdout.splitlines()
    assert int(counted) > 0
    assert len(eval(pids)) == 2
    assert done.stderr == ""
