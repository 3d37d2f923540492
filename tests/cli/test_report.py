"""dpilot report on the folders a person might point it at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpilot.cli.main import main
from dpilot.fit.folder import ARGUMENTS
from dpilot.noise import seeded_noise
from dpilot.records import RUN
from dpilot.report import page
from dpilot.train.checkpoint.store import MANIFEST
from tests.report.samples import fitted


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "fit.json").write_text(fitted().to_json(), encoding="utf-8")
    return tmp_path


def test_the_page_is_that_of_the_record(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text(encoding="utf-8") == page.render(fitted(), folder=run)
    out, err = capsys.readouterr()
    assert "epsilon 0.9994" in out
    assert err == ""


def test_writing_it_again_changes_nothing(run: Path) -> None:
    main(["report", str(run)])
    first = (run / "report.html").read_bytes()
    main(["report", str(run)])
    assert (run / "report.html").read_bytes() == first
    assert sorted(path.name for path in run.iterdir()) == ["fit.json", "report.html"]


def test_json_and_a_title(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--json", "--title", "Ward 7"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["epsilon"], told["delta"], told["private"]) == (0.99931, 3.0711e-6, True)
    assert told["unit"] == "one record, added or removed"
    assert "<h1>Ward 7</h1>" in Path(told["report"]).read_text(encoding="utf-8")


def test_a_run_that_is_not_private_is_said_to_be_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "fit.json").write_text(fitted(stamps=(seeded_noise(7).stamp,)).to_json(), encoding="utf-8")
    assert main(["report", str(run), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["private"] is False
    assert "not private: test noise (seed 7)" in err


def _changed(**fields: Any) -> str:
    return json.dumps({**json.loads(fitted().to_json()), **fields})


METRIC = {"name": "accuracy", "of": "", "value": 0.5, "noise": [0, 1], "sampling": [0, 1], "exact": False}
BAD = {
    "empty": "",
    "not json": "{",
    "a list": "[]",
    "another format": _changed(format=2),
    "nested beyond reason": "[" * 100_000,
    "no privacy": json.dumps({"format": 1}),
    "an unknown field": _changed(extra=1),
    "privacy is a text": _changed(privacy="all"),
    "no epsilon": _changed(privacy={"delta": 1e-5}),
    "epsilon is a text": _changed(privacy={"epsilon": "one", "delta": 1e-5}),
    "epsilon below 0": _changed(privacy={"epsilon": -1, "delta": 1e-5}),
    "epsilon is not a number": _changed(privacy={"epsilon": float("nan"), "delta": 1e-5}),
    "metrics are texts": _changed(metrics=["accuracy"]),
    "a value is a text": _changed(metrics=[{**METRIC, "value": "0.5"}]),
    "an interval of three": _changed(metrics=[{**METRIC, "noise": [0, 1, 2]}]),
    "an interval of texts": _changed(metrics=[{**METRIC, "sampling": ["a", "b"]}]),
    "thresholds are texts": _changed(thresholds=["1"]),
    "thresholds are infinite": _changed(thresholds=[float("inf")]),
    "ledger of texts": _changed(ledger=["spent"]),
    "curves of triples": _changed(curves={"a": [[1, 2, 3]]}),
    "curves are a list": _changed(curves=[]),
    "stamps are numbers": _changed(stamps=[1]),
    "plan is a list": _changed(plan=[]),
    "health is a text": _changed(health="good"),
    "a share of a text": _changed(health={"usable": {"what": "", "column": "", "value": "1"}, "columns": []}),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_damaged_record_is_one_line_and_writes_nothing(
    text: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "fit.json").write_text(text, encoding="utf-8")
    assert main(["report", str(run)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("where", ["nowhere", "fit.json", "empty", "bytes"])
def test_what_is_not_a_run_folder_is_refused(where: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "empty").mkdir()
    (run / "bytes").mkdir()
    (run / "bytes" / "fit.json").write_bytes(b"\xff\xfe\x00")
    assert main(["report", str(run / where)]) == 2
    assert "expected a run folder with a fit.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "said"),
    [(RUN, "not a record of a run"), (MANIFEST, "not finished"), (ARGUMENTS, "dpilot fit --resume")],
)
def test_a_folder_of_something_else_is_called_by_its_name(
    file: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "report.html").mkdir()
    assert main(["report", str(run)]) == 2
    assert "expected a file that can be written" in capsys.readouterr().err
