"""A PrivateTrainer as one of several processes: ``torchrun -m tests.integrations.hf_ranks FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from dpilot import Budget, Plan
from dpilot.integrations.hf import PrivateTrainer

SIZE, LENGTH = 60, 8


def train(folder: Path) -> PrivateTrainer:
    """One run of GPT-2, without dropout, which ranks draw otherwise than one process."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(rank)  # each its own weights: those of rank 0 count
    quiet: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    shape = {"vocab_size": 20, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **quiet, bos_token_id=0, eos_token_id=0))
    ids = torch.randint(1, 20, (SIZE, LENGTH), generator=torch.Generator().manual_seed(1))
    whole = torch.ones(LENGTH, dtype=torch.long)
    data = [{"input_ids": each, "labels": each, "attention_mask": whole} for each in ids]
    how: dict[str, Any] = {"save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-2, "optim": "sgd"}
    how |= {
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "lr_scheduler_type": "linear",
        "eval_strategy": "epoch",
    }
    args = transformers.TrainingArguments(str(folder), per_device_train_batch_size=10, **how)
    plan = Plan.calibrate(Budget(8.0, 1e-4), size=SIZE, batch_size=20, steps=4)
    public = {"eval_dataset": data[:6], "eval_public": True}
    made = PrivateTrainer(
        model, args, train_dataset=data, plan=plan, ledger=str(folder / "a.ledger"), test_seed=3, **public
    )
    made.train()
    return made


if __name__ == "__main__":
    home = Path(sys.argv[1])
    trainer = train(home)
    torch.save(trainer.model.state_dict(), home / f"weights.{dist.get_rank()}")
    trainer.save_model(str(home / "model"))
    dist.destroy_process_group()
