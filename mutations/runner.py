"""Apply one mutation at a time to a copy of the tree and run the tests that should notice."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "mutations", "benchmarks", "docs", "examples", "pyproject.toml")
TIMEOUT = 300


@dataclass(frozen=True, slots=True)
class Mutation:
    """In ``path``, inside ``scope`` (a function or class, such as ``Trainer.fit``), the code ``old`` becomes ``new``.

    ``old`` is an expression, or one or more statements, and is found by its syntax: line breaks, comments and
    parentheses that mean nothing do not matter. One of ``tests`` must fail.
    """

    path: str
    why: str
    scope: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, source: str) -> str:
        """The mutated source; raises if the place is not unique, nothing changes, or it is no Python."""
        if _read(ast.parse(self.old)) == _read(ast.parse(self.new)):
            raise ValueError(f"{self.path}, {self.scope}: {self.new!r} changes nothing.")
        places = list(_places(_parse(source), self.scope, ast.parse(self.old).body))
        if len(places) != 1:
            raise ValueError(f"{self.path}, {self.scope}: {self.old!r} occurs {len(places)} times: expected once.")
        first, last = places[0]
        lines = source.encode().splitlines(keepends=True)
        ends = [0, *(each.end_lineno for each in _parse(source).body)]
        start, stop = next((start, stop) for start, stop in pairwise(ends) if stop >= last.end_lineno)
        before = b"".join(lines[start : first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]
        after = lines[last.end_lineno - 1][last.end_col_offset :] + b"".join(lines[last.end_lineno : stop])
        new = self.new if isinstance(first, ast.expr) else textwrap.indent(self.new, " " * first.col_offset).lstrip()
        changed = before + (f"({new})" if isinstance(first, ast.expr) else new).encode() + after
        ast.parse(changed)  # one statement of the module: the others are as they were
        return (b"".join(lines[:start]) + changed + b"".join(lines[stop:])).decode()


_parse = lru_cache(maxsize=1)(ast.parse)  # mutations of one file follow one another


def _places(module: ast.Module, scope: str, wanted: list[ast.stmt]) -> Iterator[tuple[Any, Any]]:
    """First and last node of each place in the scope that reads like the wanted statements, or like one expression."""
    root = _find_scope(module, scope)
    alone = wanted[0].value if len(wanted) == 1 and isinstance(wanted[0], ast.Expr) else None
    reading = None if alone is None else _read(alone)
    kinds, dumps = [type(each) for each in wanted], [ast.dump(each) for each in wanted]
    for node in ast.walk(root):
        if type(node) is type(alone) and _read(node) == reading:
            yield node, node
        for _, body in ast.iter_fields(node) if alone is None else ():
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                for start in range(len(body) - len(wanted) + 1):
                    run = body[start : start + len(wanted)]
                    if [type(each) for each in run] == kinds and [ast.dump(each) for each in run] == dumps:
                        yield run[0], run[-1]


def _read(node: ast.AST) -> str:
    """An expression as it reads, whether it is loaded or stored to."""
    return ast.dump(node, annotate_fields=False).replace("Store()", "Load()")


def _find_scope(module: ast.Module, scope: str) -> ast.AST:
    node: ast.AST = module
    for name in scope.split(".") if scope else ():
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [each for each in ast.walk(node) if isinstance(each, kinds) and each.name == name and each is not node]
        if not found:
            raise ValueError(f"{scope} is not there.")
        node = found[0]
    return node


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said of one mutation, or of a module left as it is."""

    mutation: Mutation
    killed: bool
    seconds: float


def load_mutations(folder: Path = ROOT / "mutations") -> list[Mutation]:
    """The mutations of all lists in ``folder``, in order."""
    return [
        Mutation(
            module["path"],
            each["why"],
            each["scope"],
            each["old"],
            each["new"],
            tuple(each.get("tests", module["tests"])),
        )
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


def run(mutations: Iterable[Mutation], trees: Sequence[Path]) -> Iterator[Outcome]:
    """Try each mutation in one of ``trees``, copies of the tree, as many at a time as there are copies."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(mutation: Mutation) -> Outcome:
        tree, started = free.get(), time.perf_counter()
        file = tree / mutation.path
        original = file.read_text()
        try:
            _write(file, mutation.apply(original))
            return Outcome(mutation, not passes(mutation.tests, tree), time.perf_counter() - started)
        finally:
            _write(file, original)
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        for each in as_completed([pool.submit(attempt, mutation) for mutation in mutations]):
            yield each.result()


def passes(tests: Iterable[str], tree: Path) -> bool:
    """Whether the tests pass on the code of ``tree``. Code that hangs does not pass."""
    tests = list(tests)
    named = ["-m", "slow or not slow"] if all("::" in test for test in tests) else []  # a test that is named is run
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *named, *tests]
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
    paths = [str(tree / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
