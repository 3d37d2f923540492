"""Attacks on what loops of other libraries write beside a private run."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpilot import Budget
from dpilot.errors import InvalidInput
from tests.attacks.case import normal

lightning = pytest.importorskip("lightning")


@pytest.mark.xfail(strict=True, reason="PrivateStrategy lets a profiler write the shapes of batches")
@pytest.mark.filterwarnings("ignore")
def test_a_profiler_of_lightning_writes_no_sizes_of_batches(tmp_path: Path) -> None:
    """``fit-shapes.txt`` holds the size of each batch: in full batches that of the data, which is protected."""
    from lightning.pytorch.profilers import PyTorchProfiler

    from dpilot.integrations.lightning import PrivateStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def training_step(self, batch: tuple[Tensor, Tensor], place: int) -> Tensor:
            return nn.functional.cross_entropy(self.linear(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def shapes(count: int) -> set[str]:
        folder = tmp_path / str(count)
        how = {"record_shapes": True, "group_by_input_shapes": True, "export_to_chrome": False, "row_limit": -1}
        quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        trainer = lightning.Trainer(
            max_steps=1, strategy=PrivateStrategy(Budget(1.0, 1e-5), size=60, test_seed=1), accelerator="cpu",
            profiler=PyTorchProfiler(dirpath=folder, filename="shapes", **how), enable_model_summary=False, **quiet,
        )  # fmt: skip
        data = TensorDataset(normal(count, 4), torch.zeros(count, dtype=torch.long))
        trainer.fit(Module(), DataLoader(data, batch_size=60, shuffle=True))
        return set(re.findall(r"\[\[.*\]", (folder / "fit-shapes.txt").read_text()))

    with suppress(InvalidInput):
        assert not any("[61, 4]" in each for each in shapes(61))
