"""The page about looking: its code runs."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "looking.md"
NEEDS = {"SummaryWriter": "tensorboard", "import mlflow": "mlflow"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        needed = next((package for word, package in NEEDS.items() if word in block), "torch")
        if find_spec(needed) is None:
            continue
        exec(block, names)
    assert "not private: exact values" in capsys.readouterr().out
    assert {"look.svg", "run.svg", "map.svg"} <= {path.name for path in tmp_path.iterdir()}
    if "run" not in names:  # no tracker is installed
        return
    assert names["run"].epsilon <= 3.0
