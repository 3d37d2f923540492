"""A tuning to be killed: ``python -m tests.tune.victim LEDGER``; says each step, and takes its time."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

from dpilot import Budget, Ledger
from dpilot.tune import ModuleTask, SearchBox, linear_scaling
from tests.tune.helpers import LOSS, dataset


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, place):
        if place == 0:  # the first record of a full batch
            print("step", flush=True)
        time.sleep(0.001)
        return torch.zeros(3), torch.tensor(0)


def main(path: str) -> None:
    how = {"options": {"chunk_size": 64}, "clipping": "constant", "example": dataset()[:1]}
    task = ModuleTask(lambda: nn.Linear(3, 2), LOSS, Slow(), dataset(), 40, 30, 2, **how)
    book = Ledger.open(path, dataset="d", budget=Budget(1.0, 1e-5), mode="precommitted")
    linear_scaling(task, Budget(1.0, 1e-5), box=SearchBox((0.1, 10.0), (10, 40)), ledger=book, too_noisy=1e9)


if __name__ == "__main__":
    main(sys.argv[1])
