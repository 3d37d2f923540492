"""Invented data, models and a server, for pages that show those of a reader."""

from __future__ import annotations

import atexit
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan

PATIENTS_SCHEMA = """
[columns.age]
type = "numeric"
bounds = [18, 100]
[columns.stay_days]
type = "numeric"
bounds = [0, 60]
[columns.smoker]
type = "boolean"
[columns.readmitted]
type = "categorical"
categories = ["no", "yes"]
role = "target"
"""
VISITS_SCHEMA = PATIENTS_SCHEMA + '[columns.patient_id]\nrole = "unit"\n'


def patients(rows: int = 3_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.integers(18, 95, rows), "stay_days": rng.exponential(5, rows).round(1).clip(0, 60)}
    )
    table["smoker"] = rng.choice(["yes", "no"], rows)
    table["readmitted"] = np.where(table["age"] + 4 * table["stay_days"] > 75, "yes", "no")
    return table


def visits(persons: int) -> pd.DataFrame:
    """Two visits of each person."""
    return patients(2 * persons).assign(patient_id=[f"p{row // 2}" for row in range(2 * persons)])


def adult(rows: int = 4_000) -> tuple[pd.DataFrame, Path]:
    """Rows of the bundled table, and the file of its schema."""
    from dpilot.data.bundled import adult

    path, _ = adult()
    return pd.read_parquet(path).head(rows), path.with_suffix(".toml")


def pictures(folder: str, count: int) -> None:
    """Pictures in a folder for each class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for place in range(count):
        name = Path(folder) / ("healthy" if place % 2 else "ill")
        name.mkdir(parents=True, exist_ok=True)
        shades = rng.integers(0, 128, (8, 8)) + 100 * (place % 2)
        Image.fromarray(shades.astype(np.uint8)).save(name / f"{place}.png")


def network(size: int = 64) -> tuple[nn.Module, nn.Module, TensorDataset]:
    """A small network, its loss and data."""
    inputs = torch.randn(size, 10)
    dataset = TensorDataset(inputs, inputs[:, 0].gt(0).long())
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2)), nn.CrossEntropyLoss(reduction="none"), dataset


def plan_of(size: int, **more: Any) -> Plan:
    return Plan.calibrate(Budget(1.0, 1e-6), size=size, **{"batch_size": size // 10, "steps": 10, **more})


def weights() -> None:
    """Random weights of ResNet-20, where dpilot looks for those that were trained on public pictures."""
    from safetensors.torch import save_file

    from dpilot.transfer.models.residual import ResNet20

    folder = Path("weights/cifar100_backbones")
    folder.mkdir(parents=True)
    save_file(ResNet20().state_dict(), folder / "resnet20_cifar100.safetensors")
    os.environ["DPILOT_WEIGHTS"] = "weights"


def gpt2(folder: str) -> None:
    """A tiny language model and its tokenizer."""
    import transformers

    from tests.encoders import WORDS, save_encoder

    save_encoder(Path(folder))
    config = transformers.GPT2Config(
        vocab_size=len(WORDS) + 4, n_positions=256, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def serve() -> None:
    """A PostgreSQL server that is found at db.example, with a user ann."""
    from tests.privacy.postgres_server import Server, programs

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(PGHOSTADDR="127.0.0.1", PGPORT=str(port))
    bin = programs()
    assert bin is not None
    server = Server(bin, listen="127.0.0.1")
    atexit.register(server.stop)
    server.execute("CREATE ROLE ann LOGIN")
