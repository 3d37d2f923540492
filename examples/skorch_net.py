"""A skorch net that trains privately: its fit loop in ten lines, the rest of skorch and scikit-learn as it is."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from dpilot import Budget, Plan, PrivateStep, poisson_loader


class PrivateNet(NeuralNetClassifier):
    """As NeuralNetClassifier, of logits; batch_size is the expected batch; no record is held out for exact scores."""

    budget, ledger = Budget(3.0, 1e-4), None

    def fit_loop(self, X, y=None, epochs=None, _routing_method=None):  # which skorch 1.4 gives
        data, epochs = self.get_dataset(X, y), epochs or self.max_epochs
        how = {"batch_size": self.batch_size, "epochs": epochs, "public_size": True}  # their number is published
        plan = Plan.calibrate(self.budget, size=len(data), **how)
        loss = type(self.criterion_)(reduction="none")
        step = PrivateStep(self.module_, loss, self.optimizer_, plan, ledger=self.ledger)
        self._set_training(True)
        for batch in poisson_loader(data, plan):
            step(batch)
        self.record_ = step.record
        return self


torch.manual_seed(0)
X = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
net = PrivateNet(
    nn.Linear, module__in_features=4, module__out_features=2, criterion=nn.CrossEntropyLoss, classes=[0, 1],
    lr=1.0, batch_size=200, max_epochs=5,
)  # fmt: skip
net.fit(X, y)
print(f"accuracy {net.score(X, y):.2f} on these made-up records, epsilon {net.record_.epsilon:.2f}")
