import numpy as np

from dpilot.transfer import Features

rng = np.random.default_rng(0)
values = rng.normal(size=(5_000, 8)).astype(np.float32)
features = Features.of(values, (values[:, 0] > 0).astype(np.int64), classes=2).unit()
