# %% [markdown]
# # Regression
# A linear model that asks for no bounds: what it needs to know of the columns it buys, inside the budget.
# %%
import numpy as np

from dpilot.linear import LinearRegression

rng = np.random.default_rng(0)
X = rng.normal(size=(5_000, 4)) * [1.0, 10.0, 100.0, 1.0] + [0.0, 5.0, 1_000.0, 0.0]
y = X @ [2.0, 0.1, 0.01, 0.0] + rng.normal(size=5_000)

model = LinearRegression(epsilon=1.0, delta=1e-6, size=5_000, ledger="houses.ledger").fit(X, y)
print(model.coef_.round(3), model.intercept_)
# %% [markdown]
# Standard errors count sampling and privacy noise, and cost nothing more. The method that was chosen may have none.
# %%
errors = model.coef_std_
print("no standard errors" if errors is None else errors.round(3))
print(model.privacy_)
