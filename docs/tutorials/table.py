# %% [markdown]
# # A table
# From a data frame to a private model with held-out figures, inside one budget. The census table comes with the
# package.
# %%
import pandas as pd

from dpilot import AutoClassifier
from dpilot.data.bundled import adult

path, schema = adult()  # bounds, categories, classes: declared, not looked up
table = pd.read_parquet(path).head(6_000)
print(schema.to_toml()[:200])
# %% [markdown]
# `size` is declared. Everything below is paid from epsilon 1: bounds, trials, training and the figures.
# %%
clf = AutoClassifier(epsilon=1.0, delta=1e-5, schema=schema, model="additive", size=6_000, ledger="adult.ledger")
clf.fit(table.drop(columns="income"), table["income"])
print(clf.privacy_)
# %% [markdown]
# Figures are noisy, of records that were not trained on, with intervals.
# %%
print(clf.metrics_)
clf.report("report.html")
clf.save("run")
# %% [markdown]
# Predicting costs nothing: the model was released.
# %%
import dpilot

print(dpilot.load("run").predict(table.head(3)))
