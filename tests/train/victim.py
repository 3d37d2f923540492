"""A run to be killed: ``python -m tests.train.victim FOLDER``; says each step, slowly enough to be killed in one."""

from __future__ import annotations

import sys
import time

from tests.train.helpers import LOSS, data, model, plan


def options():
    return {
        "optimizer": "adam",
        "lr": 0.02,
        "average": "ema",
        "schedule": "cosine",
        "chunk_size": 16,
        "checkpoint_every": 3,
        "test_seed": 5,
    }


def main(folder: str) -> None:
    from dpilot import Trainer

    def say(record):
        print(record.step, flush=True)
        time.sleep(0.002)

    chosen = plan("slack", steps=30)
    Trainer(model(dropout=0.3), LOSS, chosen, checkpoint=folder, callback=say, **options()).fit(data())


if __name__ == "__main__":
    main(sys.argv[1])
