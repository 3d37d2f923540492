from torch import nn

from tests.pages import made_up

_, loss_fn, dataset = made_up.network()
model, plan = nn.Sequential(nn.Linear(10, 100), nn.Tanh(), nn.Linear(100, 2)), made_up.plan_of(64)

# %% before "dpilot verify out/fit"
Trainer(model, loss_fn, made_up.plan_of(64)).fit(dataset).save("out/fit")
