"""The examples run, and moving from Opacus changes few lines."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.thin import thin

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SAYS = {
    "opacus_script.py": r"accuracy (0\.[789]\d|1\.00)",
    "own_loop.py": r"accuracy (0\.[789]\d|1\.00)",
    "trainer.py": r"epsilon 2\.99\d at delta 1e-05, thresholds 1\.0 to .*\naccuracy (0\.[89]\d|1\.00)",
    "sft.py": r"epsilon (7\.9\d|8\.00)(.|\n)*README\.md(.|\n)*what is the colour of snow",
    "skorch_net.py": r"accuracy (0\.[89]\d|1\.00)",
    "hugging_face.py": r"trained 256 numbers, epsilon (7\.9\d|8\.00)",
}


NEEDS = {"opacus_script.py": "opacus", "hugging_face.py": "peft", "sft.py": "peft", "skorch_net.py": "skorch"}


@pytest.mark.parametrize("name", thin(SAYS, 5))
def test_an_example_runs(name):
    if find_spec(NEEDS.get(name, "torch")) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", EXAMPLES / name], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


def test_an_opacus_script_changes_at_most_five_lines():
    """Lines that are written anew; those that only go away are no work."""
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("opacus_script.py", "own_loop.py"))
    added = [line[2:].strip() for line in difflib.ndiff(before[1:], after[1:]) if line.startswith("+ ")]
    assert len([line for line in added if line]) <= 5, added


def test_the_page_shows_the_examples_as_they_are():
    page = (ROOT / "docs" / "training.md").read_text()
    for name in ("opacus_script.py", "own_loop.py", "hugging_face.py"):
        code = (EXAMPLES / name).read_text().split('"""', 2)[2].strip()
        assert code in page, name
    net = re.search(r"class PrivateNet.*?return self\n", (EXAMPLES / "skorch_net.py").read_text(), re.DOTALL)
    assert net is not None
    assert net[0] in (ROOT / "docs" / "lightning.md").read_text()
