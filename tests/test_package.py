"""The package as an importer sees it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import pytest

HEAVY = ("torch", "dp_accounting", "scipy", "sklearn", "pandas", "matplotlib", "rich")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
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


def test_every_public_name_resolves() -> None:
    import dpilot

    for name in dpilot.__all__:
        assert getattr(dpilot, name) is not None
    assert set(dir(dpilot)) == set(dpilot.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dpilot.nonsense


def test_help_is_quick() -> None:
    """Under 0.5 s of work on a quiet machine; three times that is allowed here, where tests run side by side."""

    def once() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-m", "dpilot.cli.main", "--help"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    once()
    assert statistics.median(once() for _ in range(3)) < 1.5
