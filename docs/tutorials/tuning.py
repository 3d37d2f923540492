# %% [markdown]
# # Tuning that is paid
# Trials look at the same people. Here they are inside the total: cheap trials at small budgets, a law through them, and
# one final run where the law points.
# %%
import numpy as np

from dpilot import Budget, tune
from dpilot.data.splits import Split
from dpilot.transfer import Features

rng = np.random.default_rng(0)
values = rng.normal(size=(4_000, 16)).astype(np.float32)
labels = (values[:, 0] + values[:, 1] > 0).astype(np.int64)
features = Features.of(values, labels, classes=2).unit()
# %% [markdown]
# A record is in one part, by a secret coin: trials and the final run train on one, scores are of the other.
# %%
split = Split.draw({"train": 0.9, "held-out": 0.1})
task = tune.ProbeTask.of(features, split, size=4_000)
box = tune.SearchBox(lr=(0.1, 100.0), steps=(10, 50))
tuned = tune.linear_scaling(task, Budget(3.0, 1e-5), box=box, ledger="features.ledger")
print(tuned.spent)
print(*tuned.decisions, sep="\n")
# %% [markdown]
# What the other ways would cost is public:
# %%
print(tune.compare(Budget(3.0, 1e-5), size=4_000))
