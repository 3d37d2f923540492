"""The package as an importer sees it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import dpilot

HEAVY = ("torch", "dp_accounting", "scipy", "sklearn", "pandas", "matplotlib", "rich")


def loaded_after(statement: str, names: tuple[str, ...] = HEAVY) -> set[str]:
    code = f"import sys\n{statement}\nprint(*(m for m in {names!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import dpilot",
        "from dpilot import Budget, privacy; Budget(1.0, 1e-5)",
        "from dpilot import Ledger",
        "from dpilot.privacy import events",
        "from dpilot.cli.main import app",
    ],
)
def test_import_is_light(statement: str) -> None:
    assert loaded_after(statement) == set()


@pytest.mark.parametrize("name", ["AutoClassifier", "AutoRegressor"])
def test_an_estimator_imports_scikit_learn_and_nothing_else_that_is_heavy(name: str) -> None:
    """So it takes no longer than torch alone; torch is imported by the first fit."""
    heavy = ("torch", "dp_accounting", "jinja2", "matplotlib", "rich", "safetensors", "sklearn.model_selection")
    assert loaded_after(f"from dpilot import {name}", heavy) == set()


def test_every_public_name_resolves() -> None:
    for name in dpilot.__all__:
        assert getattr(dpilot, name) is not None
    assert set(dir(dpilot)) == set(dpilot.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dpilot.nonsense


def test_importing_is_quick() -> None:
    """0.03 s of work on a quiet machine, under the 0.1 s that are promised; three times that is allowed here."""
    assert loaded_after("import dpilot", ("numpy", *HEAVY)) == set()
    assert statistics.median(work("-c", "import dpilot") - work("-c", "") for _ in range(3)) < 0.3


def work(*arguments: str) -> float:
    """Seconds of computing that Python takes with these arguments."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_the_module_is_the_command() -> None:
    said = subprocess.run([sys.executable, "-m", "dpilot", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"dpilot {dpilot.__version__}\n"


def test_a_shell_can_complete_commands() -> None:
    """What the script of ``dpilot --install-completion`` asks for when a user presses tab."""
    asked = {**os.environ, "_DPILOT_COMPLETE": "complete_bash", "COMP_WORDS": "dpilot pl", "COMP_CWORD": "1"}
    code = "from dpilot.cli.main import main; main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=asked, check=True)
    assert done.stdout.split() == ["plan"]


def test_a_plot_without_matplotlib_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from dpilot.cli.main import main
    from dpilot.diagnose.stamp import new_figure

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    remedy = "matplotlib is not installed: expected it. pip install 'dpilot[plot]'."
    with pytest.raises(dpilot.errors.InvalidInput) as refused:
        new_figure(1, 1, "")
    assert str(refused.value) == remedy
    plan = ["plan", "--size", "5000", "--epochs", "2", "--epsilon", "1", "--plot", str(tmp_path / "plan.png")]
    assert main(plan) == 2
    assert remedy in capsys.readouterr().err


def test_help_is_quick() -> None:
    """Under 0.5 s of work on a quiet machine; three times that is allowed here, where tests run side by side."""

    assert statistics.median(work("-m", "dpilot", "--help") for _ in range(3)) < 1.5
