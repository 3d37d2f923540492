"""``dpilot fit`` and ``dpilot predict``, end to end: exit codes, what is printed, what is written, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pytest

from dpilot import Ledger
from dpilot.cli.main import main
from tests.fit.helpers import SCHEMA, SIZE, frame


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("table.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    return tmp_path


def fit(*more, data="table.csv", schema="schema.toml"):
    return main(["fit", data, "--schema", schema, "--epsilon", "3", "--delta", "1e-5", *more])


def test_a_fit_writes_its_run_and_its_report_and_says_what_it_cost(place, capsys):
    assert fit("--out", "run", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] <= 3.0
    names = {metric["name"] for metric in said["metrics"]}
    assert {"accuracy", "macro accuracy", "worst-class accuracy", "AUC", "demographic parity", "confusion"} <= names
    for metric in said["metrics"]:
        assert metric["noise_interval"][0] <= metric["value"] <= metric["noise_interval"][1]
        assert metric["sampling_interval"][0] <= metric["value"] <= metric["sampling_interval"][1]
    wanted = ["model.safetensors", "schema.toml", "encoder.json", "plan.json", "fit.json", "arguments.json"]
    assert {*wanted, "report.html"} <= {path.name for path in (place / "run").iterdir()}
    (book,) = place.rglob("*.ledger")  # the data set's own, beside it
    Ledger.read(book).verify()
    assert "<html" in (place / "run" / "report.html").read_text()

    frame(7).drop(columns=["outcome", "site"]).assign(site="x").to_csv("new.csv", index=False)
    assert main(["predict", "run", "new.csv", "--out", "found.csv"]) == 0
    found = pd.read_csv("found.csv")
    assert list(found.columns) == ["outcome", "probability no", "probability yes"]
    assert len(found) == 7
    capsys.readouterr()
    assert main(["predict", "run", "table.csv", "--out", "found.parquet", "--public", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["records"] == SIZE
    assert all(metric["exact"] for metric in scored["metrics"])
    assert len(pd.read_parquet("found.parquet")) == SIZE
    assert main(["report", "run"]) == 0


def test_a_table_is_printed_with_both_intervals_and_progress_with_epsilon(place, capsys):
    assert fit("--out", "run", "--protected", "site", "--target", "outcome", "--model", "logistic") == 0
    said = capsys.readouterr()
    for words in ("epsilon 3", "accuracy", "site = north", "not protected", "report.html", "noise and sampling"):
        assert words in said.out
    assert "spent" in said.err


def test_the_autopilot_tunes_a_table_and_writes_the_same_folder(place, capsys):
    assert fit("--out", "run", "--model", "auto", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] <= 3.0
    assert any("trying settings" in decision for decision in said["decisions"])
    assert main(["predict", "run", "table.csv", "--out", "found.csv"]) == 0
    assert main(["report", "run"]) == 0
    assert fit("--out", "run", "--model", "auto") == 2


def test_a_budget_that_does_not_hold_it_is_exit_code_3(place, capsys):
    assert fit("--out", "one", "--ledger", "book") == 0
    assert fit("--out", "two", "--ledger", "book") == 3
    assert "error: " in capsys.readouterr().err
    assert not (place / "two" / "fit.json").exists()


def test_a_dry_run_spends_and_writes_nothing(place, capsys):
    assert fit("--dry-run", "--json", "--ledger", "book") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dry_run"]
    assert said["seconds"] > 0
    assert {path.name for path in place.iterdir()} == {"table.csv", "schema.toml"}
    assert fit("--dry-run") == 0
    assert "nothing was read or spent" in capsys.readouterr().out.replace("\n", " ").replace("  ", "")


def edited(place, **columns):
    declared = SCHEMA.to_dict()
    for name, changes in columns.items():
        declared["columns"][name] = {**declared["columns"][name], **changes}
    (place / "other.json").write_text(json.dumps(declared))
    return "other.json"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"signal": {"bounds": [3, -3]}}, "signal"),
        ({"signal": {"bounds": [3, 3]}}, "signal"),
        ({"kind": {"categories": []}}, "kind"),
        ({"kind": {"categories": ["a", "a"]}}, "kind"),
        ({"kind": {"bounds": [0, 1]}}, "kind"),
        ({"kind": {"role": "target"}}, "target"),
        ({"outcome": {"missing": "indicator"}}, "outcome"),
        ({"signal": {"type": "integer"}}, "signal"),
        ({"outcome": {"role": "feature"}}, "target"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(place, capsys, changes, said):
    assert fit("--out", "run", schema=edited(place, **changes)) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert said in message
    assert not (place / "run").exists()


def test_files_that_are_no_tables_are_refused(place, capsys):
    (place / "folder").mkdir()
    (place / "empty.csv").write_text("")
    (place / "no_rows.csv").write_text(",".join(frame().columns) + "\n")
    frame().rename(columns={"signal": "sginal"}).to_csv("names.csv", index=False)
    frame().assign(more=1).to_csv("more.csv", index=False)
    (place / "text.parquet").write_text("number\n1\n")
    for name in ("folder", "absent.csv", "empty.csv", "no_rows.csv", "names.csv", "more.csv", "text.parquet"):
        assert fit("--out", "run", data=name) == 2, name
        message = capsys.readouterr().err
        assert message.startswith("error: "), name
        assert len(message.splitlines()) == 1
        assert not (place / "run").exists(), name


WRONG = (
    ["--size", "many"],
    ["--model", "forest"],
    ["--held-out", "2"],
    ["--target", "nothing"],
    ["--protected", "signal"],
    ["--encoding", "utf-16"],
    ["--epochs", "0"],
    ["--stop-below", "3"],
    ["--total", "0.5"],
    ["--delta", "0.5"],
    ["--class-weight", "yes"],
    ["--class-weight", "yes=much"],
    ["--class-weight", "maybe=5"],
    ["--class-weight", "balanced", "--class-weight", "yes=5"],
    ["--weight-cap", "0"],
    ["--decision", "best"],
    ["--objective", "recall:maybe"],
)


def test_wrong_options_are_refused_before_anything_is_made_or_spent(place, capsys):
    full = place / "full"
    full.mkdir()
    (full / "something").write_text("mine")
    for options in (*WRONG, ["--out", "full"], ["--device", "nowhere"]):
        assert fit(*(["--out", "run"] if "--out" not in options else []), *options) == 2, options
        assert capsys.readouterr().err.startswith("error: ")
        assert {path.name for path in place.iterdir()} == {"full", "schema.toml", "table.csv"}, options


def test_a_folder_of_pictures_wants_an_epsilon_alone(place, capsys):
    (place / "pictures" / "cats").mkdir(parents=True)
    assert main(["fit", "pictures"]) == 2
    assert "error: --epsilon not given" in capsys.readouterr().err


def test_arguments_are_judged_before_torch_is_imported(place):
    """Which takes seconds. The device alone waits for it."""
    calls = [["fit", "table.csv", "--schema", "schema.toml", "--epsilon", "3", *options] for options in WRONG]
    code = f"import sys; from dpilot.cli.main import main; print({{main(c) for c in {calls}}}, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{2} False"


def test_an_interrupted_fit_says_what_is_paid_and_how_to_go_on(place, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpilot.fit.pipeline.softmax", interrupt)  # when all but the figures is released
        assert fit("--out", "run", "--json") == 130
    said = capsys.readouterr().err.splitlines()[-1]
    spent = Ledger.read("table.ledger").spent()
    assert "interrupted" in said
    assert f"epsilon {spent.epsilon:.6g} of 3 is spent" in said
    assert "dpilot fit --resume run" in said
    assert main(["fit", "--resume", "run", "--json"]) == 0
    assert Ledger.read("table.ledger").spent() == spent


def written(name: str, place) -> dict:
    """The same records in another dress, and the options that read it."""
    text = frame().to_csv(index=False, lineterminator="\n")
    if name == "a byte order mark":
        (place / "other.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    elif name == "CRLF":
        (place / "other.csv").write_bytes(text.replace("\n", "\r\n").encode())
    elif name == "latin-1":
        (place / "other.csv").write_bytes(text.replace(",a,", ",\xe9,").encode("latin-1"))
    elif name == "ragged lines":
        (place / "other.csv").write_text(text + "1,2\n" + "1,2,3,4,5,6,7,8\n" + '"open\n')
    elif name == "semicolons":
        (place / "other.csv").write_text(text.replace(",", ";"))
    return {"latin-1": ["--encoding", "latin-1"], "semicolons": ["--delimiter", ";"]}.get(name, [])


@pytest.mark.parametrize("name", ["a byte order mark", "CRLF", "latin-1", "ragged lines", "semicolons"])
def test_files_in_another_dress_are_read(place, capsys, name):
    options = written(name, place)
    assert fit("--out", "run", "--json", "--size", str(SIZE), *options, data="other.csv") == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] <= 3.0


def test_a_folder_that_is_no_run_is_refused(place, capsys):
    assert main(["predict", ".", "table.csv"]) == 2
    assert "error: " in capsys.readouterr().err
    assert fit("--out", "run") == 0
    for out in ("found.txt", "nowhere/found.csv"):
        assert main(["predict", "run", "table.csv", "--out", out]) == 2
    assert main(["predict", "run", "schema.toml"]) == 2


def test_a_fit_with_class_weights_goes_on_with_them(place, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    given = ("--class-weight", "yes=5", "--decision", "prior", "--weight-cap", "8", "--objective", "recall:yes")
    assert fit(*given, "--dry-run", "--json") == 0
    stages = [stage["purpose"] for stage in json.loads(capsys.readouterr().out)["stages"]]
    assert stages.count("class counts") == 1
    with monkeypatch.context() as patch:
        patch.setattr("dpilot.fit.pipeline.softmax", interrupt)
        assert fit(*given, "--out", "run", "--json") == 130
    assert main(["fit", "--resume", "run", "--json"]) == 0
    plan = json.loads((place / "run" / "plan.json").read_text())
    assert plan["class_weights"] == {"no": 0.2, "yes": 1.0}
    assert set(plan["decision_offsets"]) == {"no", "yes"}
    assert plan["objective"] == "recall:yes"
    assert main(["predict", "run", "table.csv", "--out", "found.csv"]) == 0


def test_a_fit_that_protects_patients(place, capsys):
    ids = [f"p{number // 3}" for number in range(SIZE)]
    frame().assign(patient_id=ids).sample(frac=1, random_state=0).to_csv("visits.csv", index=False)
    unit = ("--unit", "patient_id", "--rows-per-unit", "2", "--total", "6")
    assert fit(*unit, "--dry-run", "--json", data="visits.csv") == 0
    rehearsed = json.loads(capsys.readouterr().out)
    assert rehearsed["size"] == len(set(ids))
    assert "one patient_id with all their rows (at most 2 count)" in rehearsed["reasons"][0]
    assert fit(*unit, "--out", "run", data="visits.csv") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one patient_id with all their rows (at most 2 count)" in said
    assert "Each patient_id is one unit" in said
    assert Ledger.read(place / "visits.ledger").unit == "patient_id"
    assert main(["predict", "run", "visits.csv", "--out", "a.csv"]) == 0
    frame().to_csv("without.csv", index=False)
    assert main(["predict", "run", "without.csv", "--out", "b.csv"]) == 0
    assert main(["predict", "run", "without.csv", "--out", "c.csv", "--public"]) == 0
    assert main(["report", "run"]) == 0
    assert "patient_id" in (place / "run" / "report.html").read_text()
    capsys.readouterr()
    assert fit("--out", "other", "--ledger", "visits.ledger") == 2
    assert "was made for 'patient_id'" in capsys.readouterr().err
    assert fit(*unit, "--unit", "absent", "--out", "other", data="visits.csv") == 2
    assert "absent" in capsys.readouterr().err
