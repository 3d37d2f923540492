"""The page of an audited run: the lower bound under the claim, or the claim disproved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpilot.audit import Canaries
from dpilot.records import AuditRecord, FitRecord
from dpilot.report import page
from tests.audit.test_canaries import train


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> FitRecord:
    folder: Path = train(Canaries(200), seed=1).save(tmp_path_factory.mktemp("audited") / "run")
    return page.read(folder)


def test_the_page_shows_the_bound_beside_the_claim(record: FitRecord) -> None:
    shown = page.render(record)
    assert "200 canaries" in shown
    assert "The claim was not disproved." in shown
    assert FitRecord.from_json(record.to_json()).audit == record.audit


def test_a_disproved_claim_is_said_plainly(record: FitRecord) -> None:
    coins = np.arange(1000) % 2 == 0
    told = AuditRecord("gradient", tuple(coins.tolist()), tuple(coins.astype(float).tolist()))
    assert "That disproves the statement" in page.render(replace(record, audit=told))


def test_a_run_without_canaries_has_no_such_section(record: FitRecord) -> None:
    assert "What canaries found" not in page.render(replace(record, audit=None))
