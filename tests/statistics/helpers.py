"""Listening to a statistic: what it sends to the door, with and without one more record."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dpilot.privacy.events import leaves
from dpilot.tape import tape
from tests.tapes import NoiseFree


class Anything:
    """A receipt for everything, that counts."""

    def __init__(self):
        self.drawn = Counter()

    def draw(self, event):
        self.drawn[event] += 1


def exactly(statistic, data, **declared):
    """The statistic of ``data`` without noise, and what it sent to the door."""
    listener = NoiseFree()
    with tape(listener):
        value = statistic(data, receipt=Anything(), **declared)
    return value, listener.entries


def moved(statistic, data, record, **declared):
    """How far one more record moves the first release, in units of its bound."""
    (_, (before, *_)), (_, (after, *_)) = (
        exactly(statistic, rows, **declared) for rows in (data, np.concatenate([data, record]))
    )
    assert before.bound == after.bound
    difference = (after.inputs[0] - before.inputs[0]).ravel()
    order = np.inf if before.kind == "choice" else 2
    return float(np.linalg.norm(difference, order) / before.bound)


def drawn_exactly(statistic, event, data, **declared):
    """Whether a run draws ``event``: the cost is what was said, no more and no less."""
    receipt = Anything()
    statistic(data, receipt=receipt, **declared)
    return receipt.drawn == Counter(dict(leaves(event)))
