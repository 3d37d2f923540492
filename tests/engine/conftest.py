"""DPILOT_TEST_DEVICE=cuda runs these tests on a GPU: tensors and modules are made there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.contracts.zoo import DEVICE

collect_ignore = [
    "places_opinfo.py",
    "vmap_opinfo.py",
]  # they import torch's test utilities, which freeze settings of the process
if DEVICE.type != "cpu":  # they make tensors and generators of the processor, or have a GPU's kernels end its process
    collect_ignore += ["test_draws.py", "test_places.py", "test_state.py", "test_unchecked.py"]


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    if DEVICE.type == "cpu":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # float32 convolutions unless a test says otherwise
    with torch.device(DEVICE):
        yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
