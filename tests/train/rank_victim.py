"""One of several ranks, to be killed: ``python -m tests.train.rank_victim FOLDER [resume]`` as torchrun starts it."""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from dpilot import Trainer
from tests.train.helpers import LOSS, data, model, plan

STEPS = 14


def options():
    return {"optimizer": "adam", "lr": 0.02, "average": "ema", "chunk_size": 4, "checkpoint_every": 3, "test_seed": 5}


def say(record):
    print(record.step, flush=True)
    time.sleep(0.05)


def main(folder, resume):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    net = model(dropout=0.3, seed=dist.get_rank())  # each its own weights: those of rank 0 count
    if resume:
        run = Trainer.resume(folder, net, LOSS, data(), callback=say)
    else:
        chosen = plan("slack", steps=STEPS)
        run = Trainer(net, LOSS, chosen, checkpoint=folder, callback=say, **options()).fit(data())
    torch.save(run.model.state_dict(), f"{folder}.{dist.get_rank()}")
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
