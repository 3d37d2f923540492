"""Whom a total protects: units, and the ledgers that are for one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, PureDP
from dpilot.privacy.ledger import Ledger, Stage, as_ledger, commitment, open_for_fit
from dpilot.privacy.ledger.book import reserve_body
from dpilot.privacy.ledger.spending import find_price
from dpilot.privacy.unit import RECORD, ROWS_PER_UNIT, PrivacyUnit
from dpilot.records import PUBLISHED_SIZE, FitRecord, neighbours
from dpilot.train.payment import open_ledger, own_ledger
from dpilot.train.plan import Plan

PATIENT = PrivacyUnit("patient_id")
BUDGET = Budget(1.0, 1e-6)
STAGE = Stage("count", PureDP(0.1))


class TestWords:
    def test_the_sentences(self) -> None:
        assert RECORD.neighbours() == "one record, added or removed"
        assert RECORD.neighbours(True).endswith("(only the number of records is published)")
        assert PATIENT.neighbours() == "one patient_id with all their rows (at most 8 count), added or removed"
        assert PATIENT.neighbours(True).endswith("(only the number of units is published)")

    def test_rows_without_an_id_are_said_to_be_protected_as_rows(self) -> None:
        assert "or one row without a patient_id" in PrivacyUnit("patient_id", 3, "row").neighbours()

    def test_a_record_names_unit_and_cap(self) -> None:
        rest = {"data": {}, "plan": {}, "decisions": (), "metrics": (), "ledger": (), "stamps": ()}
        facts = {"epsilon": 1.0, "delta": 1e-6, "accounting": "", "tuning": "none", "unprotected": (PUBLISHED_SIZE,)}
        privacy = FitRecord.of(unit=PrivacyUnit("patient_id", 3), **facts, **rest).privacy
        assert privacy["unit"] == neighbours((PUBLISHED_SIZE,), PrivacyUnit("patient_id", 3))
        assert (privacy["unit_name"], privacy["rows_per_unit"], privacy["missing_unit"]) == ("patient_id", 3, "null")
        assert "unit_name" not in FitRecord.of(unit=RECORD, **facts, **rest).privacy


class TestValue:
    def test_the_default_cap(self) -> None:
        assert PATIENT.rows == ROWS_PER_UNIT == 8
        assert RECORD.rows is None

    def test_plain_data_reads_back(self) -> None:
        for unit in (RECORD, PATIENT, PrivacyUnit("device", 2, "row")):
            assert PrivacyUnit.from_dict(json.loads(json.dumps(unit.to_dict()))) == unit
        assert PrivacyUnit.from_dict(None) == RECORD

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": ""},
            {"name": "a\nb"},
            {"name": 3},
            {"name": "p", "rows": 0},
            {"name": "p", "rows": 2.5},
            {"name": "p", "missing": "drop"},
            {"rows": 3},
            {"missing": "row"},
        ],
    )
    def test_what_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidInput):
            PrivacyUnit(**wrong)

    def test_a_unit_and_a_second_cap_are_refused(self) -> None:
        assert PrivacyUnit.of(PATIENT, 8) == PATIENT
        with pytest.raises(InvalidInput, match="say each once"):
            PrivacyUnit.of(PATIENT, 3)


def make(path: Path, unit: str | None, mode: str = "adaptive") -> Ledger:
    return Ledger.open(path, dataset="d", budget=BUDGET, mode=mode, unit=unit)


@pytest.mark.parametrize("mode", ["adaptive", "precommitted"])
@pytest.mark.parametrize(("made", "asked"), [(None, PATIENT), ("patient_id", RECORD), ("patient_id", PrivacyUnit("x"))])
class TestRefusals:
    def test_every_door_refuses_before_anything_is_written(
        self, tmp_path: Path, made: str | None, asked: PrivacyUnit, mode: str
    ) -> None:
        ledger = make(tmp_path / "a.ledger", made, mode)
        content = ledger.path.read_bytes()
        doors = [
            lambda: ledger.commit([STAGE], unit=asked),
            lambda: ledger.reserve(STAGE.event, unit=asked).__enter__(),
            lambda: ledger.fits(STAGE.event, unit=asked),
            lambda: ledger.check_room(([STAGE], None), unit=asked),
            lambda: as_ledger(ledger.path, BUDGET, unit=asked),
            lambda: commitment([STAGE], BUDGET, ledger, "d", size=None, unit=asked).__enter__(),
            lambda: open_for_fit(ledger.path, dataset="d", budget=BUDGET, unit=asked),
        ]
        for door in doors:
            with pytest.raises(InvalidInput, match=r"the unit is .* a total protects one kind of unit\. \w+"):
                door()
        assert ledger.path.read_bytes() == content
        assert ledger.entries() == ()

    def test_a_stage_that_was_committed_is_not_begun_for_another_unit(
        self, tmp_path: Path, made: str | None, asked: PrivacyUnit, mode: str
    ) -> None:
        ledger = make(tmp_path / "a.ledger", made, mode)
        ledger.commit([STAGE], unit=PrivacyUnit.of(made))
        with pytest.raises(InvalidInput), ledger.reserve(STAGE.event, purpose="count", unit=asked):
            pass
        assert [entry.state for entry in ledger.entries()] == ["planned"]


class TestLedger:
    def test_an_old_file_is_for_records(self) -> None:
        golden = Path(__file__).parent / "golden" / "v1"
        for path in golden.glob("*.ledger"):
            ledger = Ledger.read(path)
            assert ledger.unit == "record"
            assert {entry.unit for entry in ledger.entries()} <= {RECORD}
            with pytest.raises(InvalidInput, match="'patient_id'"):
                ledger.fits(Gaussian(100.0), unit=PATIENT)

    def test_entries_keep_unit_and_cap_and_caps_may_differ(self, tmp_path: Path) -> None:
        ledger = make(tmp_path / "a.ledger", "patient_id")
        units = PATIENT, PrivacyUnit("patient_id", 2), PrivacyUnit("patient_id", 2, "row")
        for unit in units:
            ledger.commit([STAGE], unit=unit)
        with ledger.reserve(STAGE.event, unit=PATIENT):
            pass
        again = Ledger.open(ledger.path, dataset="d", unit="patient_id")
        assert [entry.unit for entry in again.entries()] == [*units, PATIENT]
        assert again.entries()[1].as_dict()["unit"] == {"name": "patient_id", "rows": 2, "missing": "null"}
        assert again.entries()[1].cells()[-1] == "patient_id, 2 rows"
        assert "unit patient_id" in again._repr_html_()
        again.verify()

    def test_row_0_of_a_ledger_for_records_says_what_it_always_said(self, tmp_path: Path) -> None:
        body = make(tmp_path / "a.ledger", None)._book.rows()[0].content()
        assert "unit" not in body
        assert body["neighbours"] == "add or remove one record"
        body = make(tmp_path / "b.ledger", "patient_id")._book.rows()[0].content()
        assert body["unit"] == "patient_id"
        assert body["neighbours"] == "add or remove one patient_id with all its rows"

    def test_opening_for_another_unit_is_refused(self, tmp_path: Path) -> None:
        make(tmp_path / "a.ledger", "patient_id")
        with pytest.raises(LedgerError, match="unit is 'device'"):
            make(tmp_path / "a.ledger", "device")

    def test_a_row_for_another_unit_cannot_be_read(self, tmp_path: Path) -> None:
        ledger = make(tmp_path / "a.ledger", "patient_id")
        price, _ = find_price(ledger._book.history(), (STAGE,), None, PATIENT)
        body = reserve_body((STAGE,), price, begun=False)
        with ledger._book.page() as page, pytest.raises(LedgerError, match="cannot be understood"):
            page.append("reserve", body)

    def test_a_fit_makes_its_ledger_for_its_unit(self, tmp_path: Path) -> None:
        assert as_ledger(tmp_path / "a.ledger", BUDGET, unit=PATIENT).unit == "patient_id"
        opened = open_for_fit(tmp_path / "b.ledger", dataset="d", budget=BUDGET, unit=PATIENT)
        assert opened.commit([STAGE]).unit == PATIENT
        with commitment([STAGE], BUDGET, tmp_path / "c.ledger", "d", size=None, unit=PATIENT) as (made, _):
            assert made.unit == PATIENT


def plan(unit: PrivacyUnit = RECORD, **more: object) -> Plan:
    return Plan.calibrate(BUDGET, size=1000, sample_rate=1.0, steps=2, clipping="constant", unit=unit, **more)


class TestPlan:
    def test_it_keeps_its_unit(self) -> None:
        made = Plan.calibrate(
            BUDGET, size=1000, sample_rate=1.0, steps=2, clipping="constant", unit="patient_id", rows_per_unit=3
        )
        assert made.unit == PrivacyUnit("patient_id", 3)
        assert Plan.from_json(made.to_json()) == made
        assert made.noise_multiplier == plan().noise_multiplier  # the bound of a row is the bound of a unit

    def test_an_old_plan_is_for_records(self) -> None:
        assert "unit" not in plan().to_dict()
        assert Plan.from_json(plan().to_json()).unit == RECORD

    def test_a_ledger_for_another_unit_is_refused(self, tmp_path: Path) -> None:
        for made, asked in ((None, PATIENT), ("patient_id", RECORD)):
            ledger = make(tmp_path / f"{made}.ledger", made)
            with pytest.raises(InvalidInput, match="a total protects one kind of unit"):
                plan(asked, ledger=ledger)
            with pytest.raises(InvalidInput, match="a total protects one kind of unit"):
                open_ledger(ledger, plan(asked), None)

    def test_a_commitment_for_another_cap_is_refused(self, tmp_path: Path) -> None:
        ledger = make(tmp_path / "a.ledger", "patient_id")
        committed = ledger.commit([Stage("training", plan().event)], unit=PATIENT)
        assert open_ledger(committed, plan(PATIENT), None) is committed
        with pytest.raises(InvalidInput, match="one unit and cap"):
            open_ledger(committed, plan(PrivacyUnit("patient_id", 2)), None)

    @pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")
    def test_its_own_ledger_is_for_its_unit(self, tmp_path: Path) -> None:
        assert own_ledger(plan(PATIENT), tmp_path, None).unit == "patient_id"
