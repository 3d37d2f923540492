"""Attacks on what loops of other libraries write beside a private run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpilot import Budget
from dpilot.errors import InvalidInput
from tests.attacks.case import normal

lightning = pytest.importorskip("lightning")


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], place: int) -> Tensor:
        return nn.functional.cross_entropy(self.linear(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_a_profiler_of_lightning_is_refused() -> None:
    """With ``record_shapes`` that of torch writes the size of each batch: in full batches that of the data."""
    from lightning.pytorch.profilers import SimpleProfiler

    from dpilot.integrations.lightning import PrivateStrategy

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        max_steps=1, strategy=PrivateStrategy(Budget(1.0, 1e-5), size=60), accelerator="cpu",
        profiler=SimpleProfiler(), **quiet,
    )  # fmt: skip
    data = TensorDataset(normal(60, 4), torch.zeros(60, dtype=torch.long))
    with pytest.raises(InvalidInput, match="sizes of batches"):
        trainer.fit(Module(), DataLoader(data, batch_size=60, shuffle=True))
