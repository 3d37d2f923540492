"""A stranger checks a saved model: what is claimed holds, and whatever was altered is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dpilot.audit.verify import verify
from dpilot.cli.main import main
from dpilot.errors import InvalidInput, PrivacyWarning
from dpilot.train.checkpoint import statement as statements
from tests.train.helpers import data, fit

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one's own model, unsigned."""
    return Path(fit(test_seed=None).save(tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``dpilot fit`` writes, with its report."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "t.toml").write_text(
        '[columns.x]\ntype = "numeric"\nbounds = [0, 1]\n'
        '[columns.y]\ntype = "categorical"\ncategories = ["no", "yes"]\nrole = "target"\n'
    )
    (folder / "t.csv").write_text("x,y\n" + "".join(f"{i / 200},{'yes' if i > 90 else 'no'}\n" for i in range(200)))
    code = main(["fit", str(folder / "t.csv"), "--schema", str(folder / "t.toml"), "--epsilon", "1", "--delta", "1e-4",
                 "--out", str(folder / "run"), "--json"])  # fmt: skip
    assert code == 0
    return folder / "run"


@pytest.fixture
def copies(saved: Path, fitted: Path, tmp_path: Path) -> list[Path]:
    return [Path(shutil.copytree(each, tmp_path / name)) for name, each in (("saved", saved), ("fitted", fitted))]


def test_an_unsigned_run_verifies_and_is_called_unsigned(
    saved: Path, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (saved, fitted):
        capsys.readouterr()
        assert main(["verify", str(folder), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["verified"], said["signer"]) == (True, None)
        assert "unsigned" in {check["found"] for check in said["checks"]}
        assert verify(folder / "model.safetensors").held


def test_any_file_that_was_altered_or_is_gone_is_found(copies: list[Path]) -> None:
    for folder in copies:
        for name in statements.file_hashes(folder):
            file = folder / name
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            assert main(["verify", str(folder)]) == 1, name
            file.unlink()
            assert main(["verify", str(folder)]) == 1, name
            file.write_bytes(content)
        assert main(["verify", str(folder)]) == 0


def test_a_signature_names_its_key_and_covers_statement_files_and_weights(copies: list[Path], tmp_path: Path) -> None:
    key, other = tmp_path / "a.key", tmp_path / "b.key"
    assert main(["key", "create", str(key)]) == main(["key", "create", str(other)]) == 0
    assert key.stat().st_mode & 0o777 == 0o600
    public, strange = (each.with_name(each.name + ".pub") for each in (key, other))
    for folder in copies:
        assert not verify(folder, key=public).held  # not signed yet
        assert main(["sign", str(folder), "--key", str(key)]) == 0
        for model in (folder, folder / "model.safetensors"):
            assert main(["verify", str(model), "--key", str(public)]) == 0
            assert main(["verify", str(model), "--key", str(strange)]) == 1
        written = json.loads((folder / statements.STATEMENT).read_text())
        written["statement"]["epsilon"] *= 2  # claims more, which is no longer what was signed
        (folder / statements.STATEMENT).write_text(json.dumps(written))
        assert main(["verify", str(folder)]) == 1
    with pytest.raises(InvalidInput, match="there already"):
        statements.create_key(key)


def test_weights_that_travel_alone_are_told_from_others(copies: list[Path], tmp_path: Path) -> None:
    for folder in copies:
        model = folder / "model.safetensors"
        stated, _, _ = statements.read_embedded(model)
        tensors = load_file(model)
        first = next(iter(tensors))
        tensors[first] = tensors[first] + 1e-3
        save_file(tensors, tmp_path / "other.safetensors", {statements.METADATA: json.dumps({"statement": stated})})
        assert main(["verify", str(tmp_path / "other.safetensors")]) == 1
    torch.save({}, tmp_path / "x.pt")
    with pytest.raises(InvalidInput, match="holds no privacy statement"):
        verify(tmp_path / "x.pt")


def test_an_epsilon_below_what_the_events_cost_is_found(copies: list[Path]) -> None:
    for folder in copies:
        stated, _ = statements.read_statement(folder)
        statements.write_statement(folder, {**stated, "epsilon": 0.9 * stated["epsilon"]})
        (failed,) = (check for check in verify(folder).checks if check.held is False)
        assert (failed.name, "claimed" in failed.found) == ("epsilon", True)


@pytest.mark.parametrize(
    "changed", [{"epsilon": "5"}, {"events": []}, {"files": ["model.safetensors"]}, {"stamps": []}, {"delta": None}]
)
def test_a_statement_that_says_nothing_does_not_hold(copies: list[Path], changed: dict[str, object]) -> None:
    for folder in copies:
        written = json.loads((folder / statements.STATEMENT).read_text())
        written["statement"].update(changed)
        (folder / statements.STATEMENT).write_text(json.dumps(written))
        assert not verify(folder).held


@pytest.mark.parametrize("edit", [lambda text: text.replace('"python"', '"Python"'), lambda text: text + " "])
def test_an_edit_of_an_unsigned_statement_is_found(copies: list[Path], edit: Callable[[str], str]) -> None:
    for folder in copies:
        statement = folder / statements.STATEMENT
        statement.write_text(edit(statement.read_text()))
        assert main(["verify", str(folder)]) == 1


def test_a_run_with_noise_of_a_seed_does_not_verify_and_bought_figures_are_told(tmp_path: Path) -> None:
    run = fit()
    with pytest.warns(PrivacyWarning):
        bought = run.evaluate(data(), epsilon=0.5)
    found = verify(run.save(tmp_path / "run", evaluation=bought))
    assert [check.name for check in found.checks if check.held is False] == ["noise"]
    assert found.statement["epsilon"] == pytest.approx(run.epsilon + 0.5)
    assert found.statement["delta"] == 2 * run.delta
    assert [each["purpose"] for each in found.statement["events"]] == ["training", "evaluation"]
    weights = verify(tmp_path / "run" / "model.safetensors").statement
    assert (weights["epsilon"], len(weights["events"])) == (run.epsilon, 1)


def test_a_ledger_that_does_not_go_on_from_the_head_is_found(copies: list[Path]) -> None:
    folder = copies[1]
    ledger = folder.parent / "other.ledger"
    assert main(["ledger", "create", str(ledger), "--total", "1", "--delta", "1e-6"]) == 0
    assert main(["verify", str(folder), "--ledger", str(ledger)]) == 1


def test_what_is_saved_under_a_key_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = statements.create_key(tmp_path / "a.key")
    monkeypatch.setenv(statements.KEY, str(tmp_path / "a.key"))
    folder = fit(test_seed=None).save(tmp_path / "run")
    assert verify(folder, key=public).held


def test_the_signed_statement_of_the_weights_does_not_stand_for_that_of_the_folder(
    copies: list[Path], tmp_path: Path
) -> None:
    public = statements.create_key(tmp_path / "a.key")
    for folder in copies:
        assert main(["sign", str(folder), "--key", str(tmp_path / "a.key")]) == 0
        stated, signature, _ = statements.read_embedded(folder / "model.safetensors")
        (folder / statements.STATEMENT).write_text(json.dumps({"statement": stated, "signature": signature}))
        (folder / "model.safetensors").write_bytes(b"other weights")
        assert not verify(folder, key=public).held


@pytest.mark.parametrize("left", ["an old signature", "no signature", "a signature of another key"])
def test_a_page_that_is_added_does_not_sign_what_was_altered(
    copies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    public, other = (statements.create_key(tmp_path / name) for name in ("a.key", "b.key"))
    monkeypatch.setenv(statements.KEY, str(tmp_path / "a.key"))
    folder = copies[1]
    assert main(["sign", str(folder), "--key", str(tmp_path / "a.key")]) == 0
    written = json.loads((folder / statements.STATEMENT).read_text())
    model = folder / "model.safetensors"
    model.write_bytes(b"other weights")
    written["statement"]["files"][model.name] = statements.file_hashes(folder)[model.name]
    if left == "no signature":
        del written["signature"]
    elif left == "a signature of another key":
        written["signature"] = statements.sign(written["statement"], other.with_suffix(""))
    (folder / statements.STATEMENT).write_text(json.dumps(written))
    assert main(["report", str(folder)]) == 0
    assert not verify(folder, key=public).held


def test_tensors_of_no_numbers_and_of_one_are_hashed() -> None:
    """Those of arrays without numbers have a stride of 0: a table of categories could not be saved once it was paid."""
    empty = {"int32": torch.from_numpy(np.zeros(0, np.int32)), "float64": torch.from_numpy(np.zeros((0, 2)))}
    single = {"a": torch.ones(3)[:1].as_strided((1,), (0,))}
    assert statements.tensor_hash(empty) != statements.tensor_hash({**empty, "float64": torch.zeros(0, 2)})
    assert statements.tensor_hash(single) == statements.tensor_hash({"a": torch.ones(1)})
