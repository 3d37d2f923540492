import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import DataLoader

from dpilot import Plan, PrivateStep, poisson_loader
from tests.pages import made_up

_, _, dataset = made_up.network(1_000)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(10, 2)

    def training_step(self, batch, _):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


# %% before "ckpt_path"
class Stop(L.Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 9:
            raise RuntimeError("stopped")


saves = ModelCheckpoint("checkpoints", every_n_train_steps=4, save_top_k=-1, filename="{step}")
strategy = PrivateStrategy(Budget(3.0, 1e-5), ledger="others.ledger", secret="first.secret")
try:
    stopped = L.Trainer(max_epochs=3, strategy=strategy, callbacks=[saves, Stop()])
    stopped.fit(Classifier(), DataLoader(dataset, batch_size=256))
except RuntimeError:
    pass
