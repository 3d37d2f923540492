"""A tuning in worker processes, to be killed: ``python -m tests.tune.pool_victim LEDGER``."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import TensorDataset

from dpilot import Budget, Ledger
from dpilot.tune import ModuleTask, SearchBox, linear_scaling
from tests.tune import pool_cases
from tests.tune.helpers import LOSS


def main(path: str) -> None:
    data = TensorDataset(torch.full((40, 3), 7.0), torch.zeros(40, dtype=torch.long))
    how = {"options": {"chunk_size": 64, "engine": "loop"}, "clipping": "constant", "workers": 2}
    task = ModuleTask(pool_cases.Slow, LOSS, data, data, 40, 30, 2, **how)
    book = Ledger.open(path, dataset="d", budget=Budget(1.0, 1e-5), mode="precommitted")
    linear_scaling(task, Budget(1.0, 1e-5), box=SearchBox((0.1, 10.0), (10, 40)), ledger=book, too_noisy=1e9)


if __name__ == "__main__":
    main(sys.argv[1])
