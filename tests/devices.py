"""Policies with which the CPU takes the ways of a GPU: what a test of those ways passes in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dpilot.numerics.devices import DevicePolicy, policy_of
from tests.contracts.zoo import DEVICE

CPU, CUDA = policy_of(torch.device("cpu")), policy_of(torch.device("cuda"))


def tensor_cores(**changes: Any) -> dict[str, DevicePolicy]:
    """Records are cut to TF32 on the CPU too; on a GPU that is the setting's affair."""
    tf32 = True if DEVICE.type == "cpu" else None
    return {"cpu": replace(CPU, tf32=tf32, **changes), "cuda": replace(CUDA, tf32=tf32, **changes)}


def like_a_gpu(**changes: Any) -> dict[str, DevicePolicy]:
    """Norms finished together, convolutions entry by entry, records cut to TF32."""
    return tensor_cores(joins_small=True, forms_by_entry=True, **changes)


def recording(record: Any) -> dict[str, DevicePolicy]:
    """Work on the device of these tests is replayed by what ``record`` makes of it."""
    return {DEVICE.type: replace(policy_of(DEVICE), record=record)}


def checking_indices() -> dict[str, DevicePolicy]:
    """Indices are looked at first on the CPU too."""
    return {"cpu": replace(CPU, checks_indices=True)}
