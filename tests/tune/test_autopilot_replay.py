"""One record more, in either part, null or far out, moves only the inputs of releases, and those by their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpilot.audit.neighbours import Pair
from dpilot.tune.task import HELD_OUT, TRAIN
from tests.tune.pilot_cases import BUDGET, LOUD, SMALL, arrays, heads, key_that_puts, module

RECORDS = {
    "ordinary": ((1.0, 0.2, 0.3), 1),
    "null": ((math.nan, 0.2, 0.3), 1),
    "far out": ((1e30, -1e30, 1e30), 0),
    "of no class": ((1.0, 0.2, 0.3), 7),
}


def shown(fitted):
    """All that a caller sees of a run; the time of day in ledger rows, and so their hash, is no secret."""
    record = fitted.record
    rows = [{key: cell for key, cell in entry.items() if key != "time"} for entry in record.ledger]
    privacy = {key: value for key, value in record.privacy.items() if key != "head"}
    told = record.data, record.plan, record.decisions, record.metrics, record.thresholds, record.curves
    return rows, privacy, told, record.unprotected, record.stamps, fitted.model


def fixed_coins(monkeypatch, place, part, held_out):
    key = key_that_puts(place, part, {TRAIN: 1 - held_out, HELD_OUT: held_out})
    monkeypatch.setattr("dpilot.data.splits.fresh_key", lambda purpose: key)


def added(record, size=60):
    values, labels = arrays(size)
    row, label = record
    return Pair("added", (values, labels), (np.vstack([values, row]), np.append(labels, label)))


@pytest.mark.parametrize(("name", "part"), [*((name, TRAIN) for name in RECORDS), ("ordinary", HELD_OUT)])
def test_a_record_more_moves_only_what_an_autopilot_run_of_heads_releases(replay, monkeypatch, name, part):
    fixed_coins(monkeypatch, 60, part, 0.5)
    said = []

    def run(pair):
        return shown(heads(pair, LOUD, **SMALL, tell=said.append))

    (result,) = replay(run, pairs=[added(RECORDS[name])])
    assert result.releases == 2 * 4 + 6 + 4 + 1  # steps of three trials together, scores, steps, figures
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    assert (result.largest > 0.1) == (name in ("ordinary", "far out"))


def test_a_record_more_moves_only_what_an_autopilot_run_of_a_module_releases(replay, monkeypatch):
    fixed_coins(monkeypatch, 40, HELD_OUT, 0.1)

    def run(pair):
        fitted = module(pair, BUDGET, size=120, epochs=1)
        return (*shown(fitted)[:5], fitted.model.state_dict())

    (result,) = replay(run, pairs=[added(RECORDS["ordinary"], size=40)])
    assert result.releases > 20
