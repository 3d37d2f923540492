"""A rule and a learner of other packages: found by entry points, held to the contract, never imported by a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpilot import Budget, Plan, clipping
from dpilot.clipping import contract, registry
from dpilot.errors import InvalidInput
from dpilot.fit import learners
from dpilot.fit.declaration import FitOptions

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {"third_party_rule": 'soft = "soft_clip:Soft"', "third_party_learner": 'centroids = "centroids:Centroids"'}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The examples as pip leaves them: their modules, and what their pyproject.toml says of entry points."""
    for name, entry in PACKAGES.items():
        assert entry in (EXAMPLES / name / "pyproject.toml").read_text()
        monkeypatch.syspath_prepend(EXAMPLES / name / "src")
    home = tmp_path / "soft_clip-0.1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: soft-clip\nVersion: 0.1.0\n")
    (home / "entry_points.txt").write_text(
        "[dpilot.clipping]\nsoft = soft_clip:Soft\nnumber = soft_clip:annotations\ngone = nowhere:Rule\n"
        "[dpilot.learners]\ncentroids = centroids:Centroids\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    registry._KNOWN.pop("soft", None)
    for name in ("soft_clip", "centroids"):
        sys.modules.pop(name, None)


def test_a_rule_of_another_package_is_had_by_its_name_and_keeps_the_contract(installed: Path) -> None:
    stored = {"name": "soft", "threshold": 2.0}
    with pytest.raises(InvalidInput, match="a file does not import"):
        clipping.from_dict(stored)
    assert "soft_clip" not in sys.modules
    rule: Any = clipping.get("soft", threshold=2.0)
    contract.check_run(rule, contract.torch.float32, steps=20)
    contract.check_public(rule)
    contract.check_device(rule)
    assert clipping.to_dict(rule) == stored
    assert clipping.from_dict(stored) == rule
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=100, batch_size=50, steps=2, clipping="soft")
    assert Plan.from_json(plan.to_json()) == plan
    assert "soft" not in clipping.names()


def test_what_is_no_rule_is_refused(installed: Path) -> None:
    with pytest.raises(InvalidInput, match="expected a dataclass"):
        clipping.get("number")
    with pytest.raises(InvalidInput, match="does not import"):
        clipping.get("gone")
    with pytest.raises(InvalidInput, match="name is 'nobody'"):
        clipping.get("nobody")


def test_a_learner_of_another_package_is_had_by_its_name(installed: Path) -> None:
    class Declared:
        options = FitOptions(model="centroids")

    assert type(learners.learner(Declared())).__name__ == "Centroids"  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="model is 'nobody'"):
        FitOptions(model="nobody")


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_the_examples_own_tests_pass(installed: Path, name: str) -> None:
    assert pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", str(EXAMPLES / name / "tests")]) == 0
