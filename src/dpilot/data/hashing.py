"""Hashed counts of the n-grams of texts: each row from its own text, by several processes where there are many.

A process that dies, or cannot be started, leaves its texts to this one, which hashes them to the same rows.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from dpilot.data import text_worker
from dpilot.data.workers import WorkerPool, WorkerProcess

__all__ = ["hash_texts"]

PIECE: Final = 512  # texts that are hashed at a time
_ALONE: Final = 1 << 13  # texts that are hashed before processes are worth their start
_WORKERS: Final = 8
_SIZE: Final = 8  # bytes that tell the length of an answer

Texts = Sequence[str | None]


def hash_texts(
    texts: Texts, width: int, length: int, *, pool: WorkerPool | None = None, alone: int = _ALONE
) -> csr_array:
    """The first ``length`` letters of each text as hashed counts, half of ``width`` for words, half for parts of them.

    From ``alone`` texts on the processes of ``pool`` hash them, or of one that is kept until this process ends.

    Guarantee:
        A row is a function of its own text, whoever hashes it and whatever becomes of a process that does. No text
        leaves the processes of this program: what they would write of one goes nowhere.
    """
    cut = ["" if each is None else each[:length] for each in texts]
    pieces = [cut[start : start + PIECE] for start in range(0, max(len(cut), 1), PIECE)]
    pool = _pool if pool is None else pool
    with pool.lock:
        _seen.add(len(cut))
        workers = pool.take(len(pieces)) if len(pieces) > 1 and _seen.total > alone else []
        found = _share(workers, pieces, width) if len(workers) > 1 else [count_grams(each, width) for each in pieces]
    return vstack(found, format="csr", dtype=np.float32)


def count_grams(texts: list[str], width: int) -> csr_array:
    """Signed roots of hashed counts, each half over its length, and the row over its own."""
    from sklearn.preprocessing import normalize

    halves = []
    for analyzer in ("word", "char_wb"):
        found = _vectorizer(analyzer, width // 2).transform(texts) if texts else csr_array((0, width // 2))
        found.data = np.sign(found.data) * np.sqrt(np.abs(found.data))
        halves.append(normalize(found, copy=False) if texts else found)
    rows = hstack(halves, format="csr", dtype=np.float32)
    rows.data *= np.float32(np.sqrt(0.5))
    return rows


@lru_cache(maxsize=8)
def _vectorizer(analyzer: str, width: int) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    grams = (1, 1) if analyzer == "word" else (3, 4)
    return HashingVectorizer(n_features=width, analyzer=analyzer, ngram_range=grams, norm=None, dtype=np.float32)


def _share(workers: list[WorkerProcess], pieces: list[list[str]], width: int) -> list[csr_array]:
    """The rows of each piece, by whichever process is free."""
    free = SimpleQueue[WorkerProcess]()
    for worker in workers:
        free.put(worker)

    def rows_of(piece: list[str]) -> csr_array:
        worker = free.get()
        try:
            found = _ask(worker, piece, width)
        finally:
            free.put(worker)
        return count_grams(piece, width) if found is None else found

    with ThreadPoolExecutor(len(workers)) as threads:
        return list(threads.map(rows_of, pieces))


def _ask(worker: WorkerProcess, piece: list[str], width: int) -> csr_array | None:
    """What a process makes of some texts; None where it died over them, or before."""
    request = pickle.dumps((piece, width))
    worker.ask(len(request).to_bytes(_SIZE, "big") + request)
    head = worker.take(_SIZE)
    answer = None if head is None else worker.take(int.from_bytes(head, "big"))
    if answer is None:
        worker.stop()
        return None
    return csr_array(pickle.loads(answer), shape=(len(piece), width))  # from a process of our own


class _TextCount:
    """How many texts were asked for so far."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, more: int) -> None:
        self.total += more


_seen = _TextCount()
_pool = WorkerPool(text_worker.__file__, _WORKERS)


def answer_requests() -> None:
    """What a worker process does: hash the texts of each request until there are no more."""
    requests, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    answers.write(text_worker.READY)
    answers.flush()
    while head := requests.read(_SIZE):
        texts, width = pickle.loads(requests.read(int.from_bytes(head, "big")))
        rows = count_grams(texts, width)
        answer = pickle.dumps((rows.data, rows.indices, rows.indptr))
        answers.write(len(answer).to_bytes(_SIZE, "big") + answer)
        answers.flush()
