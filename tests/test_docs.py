"""Examples of pages, tutorials and the README run as a user would run them (tests/pages says how)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import pages

ROOT = pages.ROOT
TUTORIALS = sorted(path.stem for path in (pages.DOCS / "tutorials").glob("*.py"))
NEEDS = {
    "hugging_face_lora": ("peft",),
    "export.md": ("skops", "onnx"),
    "hugging_face.md": ("peft", "accelerate"),
    "ledger.md": ("psycopg",),
    "lightning.md": ("lightning", "skorch"),
    "looking.md": ("tensorboard", "mlflow", "matplotlib"),
    "pictures.md": ("PIL",),
    "scale.md": ("polars", "ray"),
    "searches.md": ("optuna",),
    "training.md": ("opacus", "peft"),
}
RUN = [name for name in pages.PAGES if any(pages.blocks(name))]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    alone = {"PYTHONPATH": found, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, cwd=folder, env={**os.environ, **alone}, capture_output=True, text=True, check=False)


def skip_without(name: str) -> None:
    if missing := [each for each in NEEDS.get(name, ()) if find_spec(each) is None]:
        pytest.skip(f"{missing[0]} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    skip_without(name)
    done = run((pages.DOCS / "tutorials" / f"{name}.py").read_text(encoding="utf-8"), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    skip_without(name)
    done = run(pages.session(name), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_public_name_has_an_example_that_runs() -> None:
    """Its own doctest, that of its page (docs/examples), or another page, tutorial or doctest that uses it."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    from docs import hooks

    blocks = [code for name in RUN for code in pages.python(name)]
    tutorials = [(pages.DOCS / "tutorials" / f"{name}.py").read_text(encoding="utf-8") for name in TUTORIALS]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    doctests = [line for text in sources for line in text.splitlines() if line.lstrip().startswith((">>>", "..."))]
    elsewhere = "\n".join([*blocks, *tutorials, *doctests])
    for package in map(import_module, hooks.REFERENCE):
        for name in hooks.public_names(package):
            found = getattr(package, name)
            own = inspect.getsource(found) if inspect.isclass(found) or inspect.isfunction(found) else found.__doc__
            assert ">>>" in (own or "") or re.search(rf"\b{name}\b", elsewhere), f"{package.__name__}.{name}"


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_block_is_of_a_kind_that_runs(name: str) -> None:
    text = pages.text_of(name)
    assert set(re.findall(r"^```(\w+)", text, re.MULTILINE)) <= {"python", "toml"}
    assert not re.search(r"^ {4}(dpilot|torchrun|python|pip) ", text, re.MULTILINE), "fence commands, so that they run"
    pages.session(name)
