"""Every picture of the pages is drawn by code that is here, and is what it draws of the stored figures."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.linear import real
from benchmarks.papers import lines, picture
from benchmarks.tune import report

ROOT = Path(__file__).parents[2]
TOY = runpy.run_path(str(ROOT / "examples" / "clipping_toy.py"))
SHARES = ROOT / "benchmarks/tune/measured/shares.json"
DRAWN: dict[str, Callable[[Path], object]] = {
    "docs/clipping_toy.svg": TOY["draw"],
    "benchmarks/linear/tables.svg": real.draw,
    "benchmarks/papers/papers.svg": lambda target: picture.draw(lines.read(), target),
    "benchmarks/tune/shares.svg": lambda target: report.draw_shares(json.loads(SHARES.read_text()), target),
}
MEASURED = {  # drawn as they are measured, in minutes
    "benchmarks/clipping/trajectories.svg": "benchmarks/clipping/__main__.py",
    "benchmarks/linear/curve.svg": "benchmarks/linear/questions.py",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_what_its_code_draws(name: str, tmp_path: Path) -> None:
    DRAWN[name](tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_bytes() == (ROOT / name).read_bytes()


def test_no_picture_is_without_code() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "benchmarks")
        for kind in ("svg", "png", "jpg", "gif")
        for path in (ROOT / folder).rglob(f"*.{kind}")
    }
    assert found == DRAWN.keys() | MEASURED.keys()
    assert all(Path(name).name in (ROOT / code).read_text(encoding="utf-8") for name, code in MEASURED.items())
