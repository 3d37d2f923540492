"""Randomness comes through keys and noise: nothing that sees records makes its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dpilot"
SEES_RECORDS = (
    "privacy",
    "sampling",
    "mechanism",
    "statistics",
    "clipping",
    "data",
    "metrics",
    "linear",
    "tune",
    "fit",
)
SEES_NONE = {
    "clipping/contract.py": "draws made-up norms",
    "tune/search.py": "draws settings, which depend on no record",
    "fit/rehearsal.py": "makes up records",
    "metrics/simulation.py": "measures noise of what was released",
    "tune/scoring.py": "measures noise of what was released",
}
TORCH = {"rand", "randn", "rand_like", "randn_like", "randint", "randperm", "normal", "bernoulli", "multinomial"}
METHODS = {"standard_normal", "normal_", "uniform_", "bernoulli_", "exponential_", "random_", "laplace", "gumbel"}
MODULES = {"random", "numpy.random"}


def own_randomness(source: str) -> list[str]:
    """What in a file draws random numbers by itself."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if (owner in ("np", "numpy") and node.attr == "random") or (owner == "torch" and node.attr in TORCH):
                found.append(f"{owner}.{node.attr}")
            elif node.attr in METHODS:
                found.append(node.attr)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            found += [alias.name for alias in node.names if alias.name != "Generator"]  # a type: somebody hands it in
    return found


FILES = sorted(
    path
    for path in SOURCE.rglob("*.py")
    if path.relative_to(SOURCE).parts[0].startswith(SEES_RECORDS) and str(path.relative_to(SOURCE)) not in SEES_NONE
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_sees_records_makes_no_randomness_of_its_own(path):
    assert own_randomness(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.random.default_rng(0).normal()",
        "import random",
        "from random import random",
        "from numpy.random import default_rng",
        "import torch\nx = torch.randn(3)",
        "x.normal_(0, 1)",
        "generator.standard_normal(3)",
    ],
)
def test_own_randomness_is_seen(source):
    assert own_randomness(source)


def test_the_noise_source_would_be_seen_if_it_were_looked_at():
    assert {"np.random"} <= set(own_randomness((SOURCE / "keys.py").read_text()))
    assert {"standard_normal", "gumbel", "normal_"} <= set(own_randomness((SOURCE / "noise.py").read_text()))
