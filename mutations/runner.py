"""Apply one mutation at a time to a copy of the tree and run the tests that should notice."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "mutations", "benchmarks", "docs", "examples", "pyproject.toml")
TIMEOUT = 300


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old``, which occurs once in ``path``, becomes ``new``; one of ``tests`` must fail."""

    path: str
    why: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The mutated source; raises if the place is not unique, nothing changes, or it is no Python."""
        if source.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.path}: {self.old!r} occurs {source.count(self.old)} times: expected once.")
        mutated = source.replace(self.old, self.new)
        ast.parse(mutated)
        return mutated


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said of one mutation, or of a module left as it is."""

    mutation: Mutation
    killed: bool
    seconds: float


def listed(folder: Path = ROOT / "mutations") -> list[Mutation]:
    """The mutations of all lists in ``folder``, in order."""
    return [
        Mutation(module["path"], each["why"], each["old"], each["new"], tuple(each.get("tests", module["tests"])))
        for path in sorted(folder.glob("*.toml"))
        for module in tomllib.loads(path.read_text())["module"]
        for each in module["mutation"]
    ]


def sample(mutations: list[Mutation], size: int) -> list[Mutation]:
    """``size`` of them, evenly spread."""
    size = min(size, len(mutations))
    return [mutations[place * len(mutations) // size] for place in range(size)]


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """Copy what the tests need, without compiled files: a stale one would hide a mutation."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target / name)


def run(mutations: Iterable[Mutation], tree: Path) -> Iterator[Outcome]:
    """Try each mutation in ``tree``, a copy, and put the file back after it."""
    for mutation in mutations:
        file = tree / mutation.path
        original = file.read_text()
        started = time.perf_counter()
        _write(file, mutation.applied(original))
        try:
            killed = not passes(mutation.tests, tree)
        finally:
            _write(file, original)
        yield Outcome(mutation, killed, time.perf_counter() - started)


def passes(tests: Iterable[str], tree: Path) -> bool:
    """Whether the tests pass on the code of ``tree``. Code that hangs does not pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=_environment(tree), capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.returncode == 0


def imported_from(tree: Path) -> Path:
    """Where Python finds dpilot when the tests of ``tree`` run: it must be the copy."""
    command = [sys.executable, "-c", "import dpilot; print(dpilot.__file__)"]
    done = subprocess.run(command, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def _write(file: Path, source: str) -> None:
    file.write_text(source)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):  # of the same second and size it would pass as new
        compiled.unlink()


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src")}
