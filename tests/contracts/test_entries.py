"""What every entry that spends keeps: one process, a small delta, a ledger at a path, no look at how many records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpilot import Budget, Ledger
from dpilot.errors import InvalidInput
from dpilot.privacy.events import Gaussian
from tests.contracts.entries import ENTRIES, EPSILON, SIZE
from tests.thin import thin

DELTA = 1e-4


@pytest.mark.parametrize("name", thin(ENTRIES, 2))
def test_a_ledger_at_a_path_is_made_charged_and_charged_again(name: str, tmp_path: Path) -> None:
    path = tmp_path / "people.ledger"
    ENTRIES[name](str(path), DELTA, allow=False)
    book = Ledger.read(path)
    assert book.budget == Budget(EPSILON, DELTA)
    assert 0.9 * EPSILON < book.spent().epsilon <= EPSILON
    book = Ledger.open(path, dataset=book.dataset)
    book.extend(Budget(3 * EPSILON, 3 * DELTA), reason="a second run")
    ENTRIES[name](path, DELTA, allow=False)
    assert 1.8 * EPSILON < book.spent().epsilon < 2.1 * EPSILON


@pytest.mark.parametrize("name", ENTRIES)
def test_a_delta_of_one_over_the_size_is_refused_before_anything_is_spent(name: str, tmp_path: Path) -> None:
    book = Ledger.open(tmp_path / "ledger", dataset="d", budget=Budget(2 * EPSILON, 0.1))
    with pytest.raises(InvalidInput, match=r"delta is 0\.005: expected a number below 1/size = 0\.005\..*allow_large"):
        ENTRIES[name](book, 1 / SIZE, allow=False)
    assert book.spent().epsilon == 0
    ENTRIES[name](book, 1 / SIZE, allow=True)
    assert book.spent().epsilon > 0


@pytest.mark.parametrize("name", ENTRIES)
def test_one_of_several_ranks_spends_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Ledger.open(tmp_path / "ledger", dataset="d", budget=Budget(2 * EPSILON, 0.1))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    for ledger in (book, None, tmp_path / "new"):
        with pytest.raises(InvalidInput, match="one of 2 ranks"):
            ENTRIES[name](ledger, DELTA, allow=False)
    assert len(book.entries()) == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", thin(ENTRIES, 2))
def test_no_records_at_all_cost_the_same_and_raise_nothing(name: str, tmp_path: Path) -> None:
    """Whether there is any record is about the records, where their number is declared."""
    spent = []
    for size in (0, 1):
        book = Ledger.open(tmp_path / f"{size}", dataset="d", budget=Budget(2 * EPSILON, 0.1))
        ENTRIES[name](book, DELTA, allow=False, size=size)
        spent.append([(each.purpose.split(" of fit ")[0], each.event, each.state) for each in book.entries()])
    assert spent[0] == spent[1]


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_stage_that_was_committed_before_is_not_begun_on_a_rank(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Ledger.open(tmp_path / "ledger", dataset="d", budget=Budget(2.0, 1e-5))
    made = book.commit([("a", Gaussian(5.0))])
    with made.stage("a") as receipt:
        monkeypatch.setenv(variable, "4")
        with pytest.raises(InvalidInput, match="one of 4 ranks"):
            receipt.draw(Gaussian(5.0))
        monkeypatch.setenv(variable, "1")
        receipt.draw(Gaussian(5.0))


RANK = """
import torch.distributed as dist, os, sys
dist.init_process_group("gloo")
for name in ("WORLD_SIZE", "RANK"):
    del os.environ[name]  # what torch itself says is enough
from dpilot.engine import check
from dpilot.errors import InvalidInput
from tests.contracts.entries import ENTRIES
for name in ENTRIES:
    if name in ("Trainer", "PrivateStep"):
        ENTRIES[name](None, 1e-5, allow=False)  # all ranks take part in these
        continue
    try:
        ENTRIES[name](None, 1e-5, allow=False)
    except InvalidInput as refusal:
        assert "one of 2 ranks (torch.distributed is initialised)" in str(refusal), (name, refusal)
    else:
        raise AssertionError(name)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))
sharded = fully_shard(nn.Sequential(nn.Linear(4, 4)), mesh=mesh)
for wrapped in (nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), sharded, nn.DataParallel(nn.Linear(2, 2))):
    assert check(wrapped), wrapped
assert {each.where for each in check(sharded)} >= {"0.weight", "0.bias"}
dist.barrier()
dist.destroy_process_group()
print("refused everything")
"""


@pytest.mark.slow
def test_two_real_ranks_refuse_all_that_one_process_does(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused everything") == 2
