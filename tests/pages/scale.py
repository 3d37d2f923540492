from pathlib import Path

import numpy as np
import pandas as pd

from tests.pages import made_up

SCRIPT = """
import torch
from torch import nn
from dpilot import Budget, Plan, Trainer
from tests.pages import made_up

model, loss, data = made_up.network()
plan = made_up.plan_of(64)
"""
Path("train.py").write_text(SCRIPT + "Trainer(model, loss, plan).fit(data)")
Path("ranks.py").write_text(SCRIPT + "model.blocks = [model[0]]\n")
Path("my_models.py").write_text("from torch import nn\n\ndef Net():\n    return nn.Linear(10, 2)\n")
rng = np.random.default_rng(0)
np.save("x.npy", rng.normal(size=(200, 10)).astype(np.float32))
np.save("y.npy", rng.integers(2, size=200))
Path("visits").mkdir()
made_up.patients(500)[["age", "stay_days"]].assign(ill=0).to_parquet("visits/1.parquet")
Path("houses").mkdir()
for place in range(2):
    table = pd.DataFrame(rng.random((500, 3)), columns=["rooms", "age", "price"])
    table.to_parquet(f"houses/{place}.parquet")
paths = sorted(Path("houses").glob("*.parquet"))

# %% before "MappedDataset"
from torch import nn

_, loss, _ = made_up.network()
model, plan = nn.Linear(2, 2), made_up.plan_of(500)

# %% before "RayExecutor"
_, _, data = made_up.network(1_000)
