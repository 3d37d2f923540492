"""Numbers that a kernel would take for a place without a look are errors, whichever engine computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.trace.tracker import Constants, Tracker
from dpilot.engine.writes import WriteGuard, watch_writes

N, CLASSES = 3, 4
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a chunk": lambda: Tracker(N, [], Constants(), WriteGuard()),
    "one by one": lambda: watch_writes(WriteGuard()),
}


def ctc(label: int) -> Tensor:
    labels = torch.ones(N, 2, dtype=torch.int64)
    labels[0, 1] = label
    logarithms = torch.zeros(5, N, CLASSES).log_softmax(-1)
    return F.ctc_loss(logarithms, labels, torch.full((N,), 5), torch.full((N,), 2), reduction="none")


def sampled(coordinate: float) -> Tensor:
    grid = torch.zeros(N, 2, 2, 2)
    grid[0] = coordinate
    return F.grid_sample(torch.ones(N, 1, 2, 2), grid, padding_mode="border", align_corners=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", [-1, CLASSES, CLASSES + 3])
def test_a_label_that_is_no_class_is_an_error(mode: str, label: int) -> None:
    with MODES[mode](), pytest.raises(IndexError, match="does not take"):
        ctc(label)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coordinate", [torch.nan, torch.inf])
def test_a_coordinate_that_is_not_finite_is_an_error(mode: str, coordinate: float) -> None:
    with MODES[mode](), pytest.raises(IndexError, match="does not take"):
        sampled(coordinate)


@pytest.mark.parametrize("mode", MODES)
def test_places_that_exist_are_taken(mode: str) -> None:
    with MODES[mode]():
        found = [*(ctc(label) for label in range(CLASSES)), sampled(0.5), sampled(1e9)]
    assert all(bool(each.isfinite().all()) for each in found)
