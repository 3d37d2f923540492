import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
X = rng.normal(size=(2_000, 3))
y = X.sum(1) + rng.normal(size=2_000)
labels = np.where(y > 0, "yes", "no")

from pathlib import Path

from dpilot import Schema

Path("houses").mkdir(), Path("visits").mkdir()
table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(price=y, days=y, patient_id=rng.integers(500, size=2_000))
table.drop(columns=["days", "patient_id"]).to_parquet("houses/1.parquet")
table.drop(columns="price").to_parquet("visits/1.parquet")
columns = {name: {"type": "numeric", "bounds": [-5, 5]} for name in "abc"}
columns["price"] = {"type": "numeric", "bounds": [-9, 9], "role": "target"}
columns["patient_id"] = {"role": "ignored"}
schema, prices, ids = Schema.from_dict({"columns": columns}), y, np.asarray(table["patient_id"])
frame = other = table[["a", "b", "c", "patient_id"]]
prices_of_other = y
