"""One of several ranks, to be killed: ``python -m tests.train.rank_victim FOLDER [resume] [sharded]``."""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from dpilot import Trainer
from dpilot.train.shards import whole_state
from tests.train.helpers import LOSS, data, model, plan

STEPS = 14


def options():
    return {"optimizer": "adam", "lr": 0.02, "average": "ema", "chunk_size": 4, "checkpoint_every": 3, "test_seed": 5}


def say(record):
    print(record.step, flush=True)
    time.sleep(0.05)


def main(folder, resume, sharded):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    net = model(dropout=0.3, seed=0 if sharded else dist.get_rank())  # of whole ones those of rank 0 count
    if sharded:
        fully_shard(net[0])
        fully_shard(net)
    if resume:
        run = Trainer.resume(folder, net, LOSS, data(), callback=say)
    else:
        chosen = plan("slack", steps=STEPS)
        run = Trainer(net, LOSS, chosen, checkpoint=folder, callback=say, **options()).fit(data())
    torch.save(whole_state(run.model), f"{folder}.{dist.get_rank()}")
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "resume" in sys.argv, "sharded" in sys.argv)
