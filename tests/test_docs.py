"""Examples of pages, tutorials and the README run as a user would run them.

Each page is one session: its blocks in order, in a folder of its own, after what the page takes for granted
(``GIVEN``).
"""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("*.py"))
NEEDS = {"hugging_face_lora": "peft", "export.md": "skops", "training.md": "opacus"}

ADULT = """
import pandas as pd
from dpilot.data.bundled import adult
path, schema = adult()
frame = pd.read_parquet(path).head(4_000)
"""
MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
x, y = torch.randn(64, 4), torch.randint(2, (64,))
model, dataset = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), TensorDataset(x, y)
"""
ARRAYS = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
X = rng.normal(size=(2_000, 3))
y = X.sum(1) + rng.normal(size=2_000)
labels = np.where(y > 0, "yes", "no")
"""
GIVEN = {
    "README.md": ADULT
    + MODULE.replace("nn.BatchNorm1d(8), ", "")
    + """
import shutil
shutil.copy(path.with_suffix(".toml"), "adult.toml")
frame.to_parquet("adult.parquet")
""",
    "clipping.md": "import torch\nnorms, released_extras_sum = torch.rand(8), torch.zeros(1)",
    "engine.md": MODULE.replace("nn.BatchNorm1d(8), ", "")
    + """
loss_fn, batch, weights = nn.CrossEntropyLoss(reduction="none"), (x, y), torch.ones(64)
groups, group_weights = [["0.weight", "0.bias"], ["1.weight", "1.bias"]], torch.ones(64, 2)
""",
    "fit.md": ADULT + "from dpilot import AutoClassifier",
    "regression.md": ARRAYS
    + """
from pathlib import Path
from dpilot import AutoRegressor, Schema
Path("houses").mkdir(), Path("visits").mkdir()
table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(price=y, days=y, patient_id=rng.integers(500, size=2_000))
table.drop(columns=["days", "patient_id"]).to_parquet("houses/1.parquet")
table.drop(columns="price").to_parquet("visits/1.parquet")
columns = {name: {"type": "numeric", "bounds": [-5, 5]} for name in "abc"}
columns["price"] = {"type": "numeric", "bounds": [-9, 9], "role": "target"}
columns["patient_id"] = {"role": "ignored"}
schema, prices, ids = Schema.from_dict({"columns": columns}), y, np.asarray(table["patient_id"])
frame = other = table[["a", "b", "c", "patient_id"]]
prices_of_other = y
""",
    "tuning.md": """
import numpy as np
from dpilot.transfer import Features
rng = np.random.default_rng(0)
values = rng.normal(size=(5_000, 8)).astype(np.float32)
features = Features.of(values, (values[:, 0] > 0).astype(np.int64), classes=2).unit()
""",
}
NOT_RUN = {
    "auditing.md": "a run and a function of the reader's: tutorials/auditing.py, tests/audit",
    "autopilot.md": "one line each for four kinds of data: tests/tune runs them",
    "hugging_face.md": "downloads a model: tutorials/hugging_face_lora.py runs the same on a tiny one",
    "ledger.md": "its other blocks need a server and an event of the reader's: tests/privacy runs them",
    "lightning.md": "tests/integrations runs it where Lightning is installed",
    "looking.md": "tests/diagnose/test_docs.py runs it",
    "persons.md": "blocks of several entries with data of the reader's: tutorials/persons.py",
    "probing.md": "needs weights and pictures: tests/transfer",
    "scale.md": "asks for Ray and a module of the reader's: tests/tune runs it",
    "searches.md": "searches over data of the reader's: tests/integrations and tests/fit run them",
    "training.md": "tests/train/test_examples.py runs its scripts",
    "transfer.md": "needs weights and pictures: tests/transfer",
}
PAGES = ["README.md", *sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))]


def blocks(name: str) -> list[str]:
    page = ROOT / name if name == "README.md" else DOCS / name
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


RUN = [name for name in PAGES if blocks(name) and name not in NOT_RUN]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


def skip_without(name: str) -> None:
    if find_spec(NEEDS.get(name, "torch")) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    skip_without(name)
    done = run((DOCS / "tutorials" / f"{name}.py").read_text(encoding="utf-8"), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    skip_without(name)
    done = run("\n".join([GIVEN.get(name, ""), *blocks(name)]), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_public_name_has_an_example_that_runs() -> None:
    """Its own doctest, that of its page (docs/examples), or another page, tutorial or doctest that uses it."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    from docs import hooks

    pages = [code for name in RUN for code in blocks(name)]
    tutorials = [(DOCS / "tutorials" / f"{name}.py").read_text(encoding="utf-8") for name in TUTORIALS]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    doctests = [line for text in sources for line in text.splitlines() if line.lstrip().startswith((">>>", "..."))]
    elsewhere = "\n".join([*pages, *tutorials, *doctests, "RayExecutor"])  # which tests/tune/test_ray.py runs
    for package in map(import_module, hooks.REFERENCE):
        for name in hooks.public_names(package):
            found = getattr(package, name)
            own = inspect.getsource(found) if inspect.isclass(found) or inspect.isfunction(found) else found.__doc__
            assert ">>>" in (own or "") or re.search(rf"\b{name}\b", elsewhere), f"{package.__name__}.{name}"


PATIENTS = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
table = pd.DataFrame({"age": rng.integers(18, 95, 3_000), "stay_days": rng.exponential(5, 3_000).round(1)})
table["smoker"] = rng.choice(["yes", "no"], 3_000)
table.head(20).to_csv("new_patients.csv", index=False)
table["readmitted"] = np.where(table["age"] + 4 * table["stay_days"] > 75, "yes", "no")
table.to_csv("patients.csv", index=False)
"""


@pytest.mark.slow
def test_the_first_five_minutes_are_as_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    (schema,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    commands = [line for line in page.splitlines() if line.startswith("dpilot ")]
    assert len(commands) >= 8
    assert not run(PATIENTS, tmp_path).returncode
    for line in commands:
        if "--install-completion" in line:
            continue
        code = f"from dpilot.cli.main import main; raise SystemExit(main({shlex.split(line, comments=True)[1:]}))"
        words = code.replace(", '>', 'patients.toml'", "")
        done = run(words, tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        if words != code:
            assert "[columns.stay_days]" in done.stdout
            (tmp_path / "patients.toml").write_text(schema)


def test_every_page_that_does_not_run_is_there_and_has_an_example() -> None:
    assert all(blocks(name) for name in NOT_RUN)
