"""The arrows of the map, read from the syntax trees: imports point down only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpilot

SOURCE = Path(__file__).parents[1] / "src" / "dpilot"

LAYERS = [
    {"errors", "_validate", "records", "__init__"},
    {"privacy"},
    {"keys", "tape"},
    {"noise"},
    {"sampling", "mechanism", "clipping", "engine"},
    {"statistics", "private_sum"},
    {"data", "metrics"},
    {"train", "transfer", "linear"},
    {"tables"},
    {"tune"},
    {"report", "diagnose", "audit"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
SIBLINGS_STRANGERS = {"sampling", "mechanism", "clipping", "engine"}
KNOW_NOTHING_OF_PRIVACY = {"clipping", "engine"}
GROUND = {"errors", "_validate", "records", "__init__"}


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of our own packages and modules that a file imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dpilot."))
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrow"
            if node.module == "dpilot":
                homes = (dpilot._HOMES.get(alias.name, f"dpilot.{alias.name}") for alias in node.names)
                yield from (home.split(".")[1] for home in homes)
            elif node.module and node.module.startswith("dpilot."):
                yield node.module.split(".")[1]


def faults(name: str, source: str) -> list[str]:
    """What is wrong with the imports of a file that lives in part ``name``."""
    found = []
    for target in imported(ast.parse(source)):
        if target not in LEVEL:
            found.append(f"{name} imports {target}, which is not on the map")
        elif LEVEL[target] > LEVEL[name]:
            found.append(f"{name} imports {target}, which lies above it")
        elif target != name and {name, target} <= SIBLINGS_STRANGERS:
            found.append(f"{name} imports its sibling {target}")
        elif name in KNOW_NOTHING_OF_PRIVACY and target not in GROUND | {name}:
            found.append(f"{name} knows nothing of {target}")
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    assert part(path) in LEVEL, f"{part(path)} is not on the map"
    assert faults(part(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("privacy", "from dpilot.mechanism import release"),
        ("clipping", "def f():\n    from dpilot.privacy import events"),
        ("clipping", "from dpilot import engine"),
        ("data", "import dpilot.train.plan"),
        ("transfer", "from dpilot.tune import autopilot"),
        ("statistics", "from dpilot.cli import console"),
        ("report", "from dpilot.unknown import x"),
    ],
)
def test_a_wrong_arrow_is_seen(name: str, source: str) -> None:
    assert faults(name, source)


def test_only_the_console_imports_the_terminal_library() -> None:
    users = {
        path.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rich")
        or (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "rich" for alias in node.names))
    }
    assert users <= {"console.py"}
