"""The arrows of the map, read from the syntax trees: imports point down only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import dpilot

SOURCE = Path(__file__).parents[1] / "src" / "dpilot"

LAYERS = [
    {"errors", "tape", "__init__", "__version__"},
    {"_validate", "_arrays", "_html", "_plugins", "_quiet"},
    {"keys", "hardened"},
    {"noise"},
    {"numerics", "privacy"},
    {"engine", "clipping", "mechanism", "sampling", "records"},
    {"statistics", "private_sum"},
    {"data", "metrics"},
    {"train", "transfer", "linear"},
    {"tune"},
    {"fit"},
    {"report", "diagnose", "audit", "export"},
    {"cli", "integrations"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
KNOW_NOTHING_OF_PRIVACY = {"clipping", "engine", "numerics"}
GROUND = LAYERS[0] | LAYERS[1]
ACCOUNTANTS = ["events", "gaussian", "amplification", "rdp", "pld", "selection", "accountant", "calibrate"]


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules(tree: ast.AST) -> Iterator[str]:
    """Full names of all that a file imports, wherever in the file: also by import_module("..") and __import__("..")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrow"
            if node.module == "dpilot":
                yield from (dpilot._HOMES.get(alias.name, f"dpilot.{alias.name}") for alias in node.names)
            elif node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__") and is_constant(node):
            name = ast.literal_eval(first_argument(node))
            assert not name.startswith("."), "relative imports hide the arrow"
            yield name


def first_argument(node: ast.Call) -> ast.expr:
    return node.args[0] if node.args else node.keywords[0].value


def is_constant(node: ast.Call) -> bool:
    return isinstance(first_argument(node), ast.Constant)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@cache
def modules_of(path: Path) -> tuple[str, ...]:
    """The names, not the trees, are kept: a million nodes would slow every collection of garbage after this file."""
    return tuple(modules(ast.parse(path.read_text())))


def faults(name: str, imported: Iterable[str]) -> list[str]:
    """What is wrong with the imports of a file that lives in part ``name``."""
    found = []
    for target in (module.split(".")[1] for module in imported if module.startswith("dpilot.")):
        if target not in LEVEL:
            found.append(f"{name} imports {target}, which is not on the map")
        elif target != name and LEVEL[target] >= LEVEL[name]:
            found.append(f"{name} imports {target}, which lies above it or beside it")
        elif name in KNOW_NOTHING_OF_PRIVACY and target not in GROUND | {name, "numerics"}:
            found.append(f"{name} knows nothing of {target}")
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    assert part(path) in LEVEL, f"{part(path)} is not on the map"
    assert faults(part(path), modules_of(path)) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("privacy", "from dpilot.mechanism import release"),
        ("clipping", "def f():\n    from dpilot.privacy import events"),
        ("clipping", "from dpilot import engine"),
        ("train", "from dpilot import transfer"),
        ("data", "import dpilot.train.plan"),
        ("transfer", "from dpilot.tune import autopilot"),
        ("statistics", "from dpilot.cli import console"),
        ("report", "from dpilot.unknown import x"),
        ("privacy", 'def f():\n    import_module("dpilot.train.plan")'),
        ("data", 'importlib.import_module("dpilot.cli.fit")'),
        ("engine", '__import__("dpilot.privacy.events")'),
    ],
)
def test_a_wrong_arrow_is_seen(name: str, source: str) -> None:
    assert faults(name, modules(ast.parse(source)))


def users(library: str) -> set[str]:
    """The files that import ``library``."""
    return {
        str(path.relative_to(SOURCE)) for path in FILES for name in modules_of(path) if name.split(".")[0] == library
    }


COMPUTED_NAMES = {
    "transfer/__init__.py",  # names that load on first use, from its own modules
    "tune/__init__.py",
    "cli/named.py",  # the user's model
}


def test_imports_whose_name_is_computed_are_few() -> None:
    """``modules`` cannot read them: each is named here with its reason."""
    computed = {
        str(path.relative_to(SOURCE))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__") and not is_constant(node)
    }
    assert computed == COMPUTED_NAMES


def test_only_the_console_imports_the_terminal_library() -> None:
    assert users("rich") <= {"cli/console.py"}


def test_nothing_of_privacy_imports_torch() -> None:
    assert not {name for name in users("torch") if name.startswith("privacy/")}


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_accountants_know_nothing_of_those_above_them(name: str) -> None:
    """Backends (rdp, pld) are below selection, which is below the accountant that chooses among them."""
    above = ACCOUNTANTS[ACCOUNTANTS.index(name) + 1 :]
    imported = modules_of(SOURCE / "privacy" / f"{name}.py")
    assert not [each for each in imported if each.removeprefix("dpilot.privacy.").split(".")[0] in above]


ROOMS = [
    {"base", "generators"},
    {"batch"},
    {"writes", "check"},
    {"state"},
    {"trace"},
    {"layers", "isolate", "outputs"},
    {"single_backward"},
    {"made_up"},
    {"api"},
    {"replay", "self_check"},
]
"""The rooms of the engine, the lowest first: a room imports what lies below it, and nothing beside it."""
ROOM_LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}


def room_faults(path: Path) -> list[str]:
    """What is wrong with the imports of a file of the engine."""
    own = part_of_engine(path)
    found = []
    for name in modules_of(path):
        if name.startswith("dpilot.engine."):
            target = name.split(".")[2]
            if target != own and ROOM_LEVEL[target] >= ROOM_LEVEL[own]:
                found.append(f"engine/{own} imports engine/{target}")
    return found


def part_of_engine(path: Path) -> str:
    return path.relative_to(SOURCE / "engine").parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if part(path) == "engine" and path.name != "__init__.py"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_rooms_of_the_engine_import_what_lies_below_them(path: Path) -> None:
    assert room_faults(path) == []


PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_package_says_what_it_promises_and_what_it_may_import(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert "Promises" in text
    assert re.search(r"May\s+import|Imports", text)


def test_the_map_in_the_readme_names_every_package() -> None:
    map_of_packages = (SOURCE.parents[1] / "README.md").read_text().split("The packages of `src/dpilot`")[1]
    words = set(re.findall(r"\w+", map_of_packages))
    assert not [str(package.relative_to(SOURCE)) for package in PACKAGES if package.name not in words]
