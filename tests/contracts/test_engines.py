"""Every engine, every model of the zoo, against one sample at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dpilot import engine
from dpilot.numerics.devices import use_policy
from tests.contracts.zoo import DEVICE, ZOO, Case, N, build
from tests.devices import like_a_gpu
from tests.thin import thin

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
LOOSENESS = {torch.float64: 1e-9, torch.float32: 1e-3}
"""By how much a norm may exceed the gradient's: what rounding could hide of it at worst."""
WAYS = ("single-backward", "low-memory", "vmap")
QUICK_VMAP = {"mlp", "conv2d", "embedding", "transformer_encoder", "lora"}


def pairs() -> list[Any]:
    """Every model in every way and type, marked slow where it repeats what a quick one shows.

    Each model is quick in one pass in float64, and in turns either in one pass in float32 or with low memory.
    """
    found = []
    for (place, name), way, dtype in itertools.product(enumerate(ZOO), WAYS, (torch.float64, torch.float32)):
        exact = dtype == torch.float64
        first = way == "single-backward" and (exact or place % 2 == 1)
        second = way == "low-memory" and exact and place % 2 == 0
        quick = first or second or (name in QUICK_VMAP and exact)
        kind = str(dtype).removeprefix("torch.")
        marks = () if quick else pytest.mark.slow
        found.append(pytest.param(name, way, dtype, marks=marks, id=f"{name}-{way}-{kind}"))
    return found


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    """Products in float32 unless a test says otherwise; convolutions too, which use TF32 by default."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def handle(case: Case, way: str) -> engine.PerSample:
    chosen = "single-backward" if way == "low-memory" else way
    low = way == "low-memory"
    return engine.per_sample(case.model, case.loss, case.batch, chosen, per_batch=case.per_batch, low_memory=low)


def assert_same_sums(ours: dict[str, Tensor], theirs: dict[str, Tensor], scale: float, tolerance: float) -> None:
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        assert ours[name].dtype == expected.dtype, name
        assert torch.isfinite(ours[name]).all(), name
        worst = float((ours[name] - expected).abs().max())
        assert worst <= tolerance * max(float(expected.abs().max()), 1e-3 * scale), (name, worst)


def assert_contract(case: Case, way: str, dtype: torch.dtype, tolerance: float | None = None) -> None:
    """Norms bound and match the oracle's, sums match, and a binding clip is never exceeded, outliers included."""
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    ours, oracle = handle(case, way), handle(case, "loop")
    expected = oracle.norms.double()
    assert (ours.norms.double() >= expected * (1 - tolerance)).all()
    assert (ours.norms.double() <= expected * (1 + max(tolerance, LOOSENESS[dtype])) + 1e-17).all()
    scale = float(expected.max())
    weights = (torch.rand(N, dtype=dtype) + 0.1).to(DEVICE)
    assert_same_sums(ours.weighted_sum(weights), oracle.weighted_sum(weights), scale, tolerance)
    outliers = torch.tensor([1.0, 1e4, 1e-4, 0.0], dtype=dtype, device=DEVICE)
    assert_same_sums(ours.weighted_sum(outliers), oracle.weighted_sum(outliers), scale * 1e4, tolerance)
    assert_clipped(ours, float(expected.median()) * 0.5)


def assert_clipped(ours: engine.PerSample, threshold: float) -> None:
    """|w_i g_i| <= C for what is really added, evaluated in float64."""
    ulp = torch.finfo(ours.norms.dtype).eps
    weights = (threshold * (1 - 4 * ulp) / ours.norms).clamp(max=1.0)
    for i in range(N):
        alone = torch.where(torch.arange(N, device=weights.device) == i, weights, 0.0)
        added = sum(float(g.double().square().sum()) for g in ours.weighted_sum(alone).values()) ** 0.5
        assert added <= threshold, (i, added / threshold)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch is slow there on CPU, and says so
@pytest.mark.parametrize(("name", "way", "dtype"), pairs())
def test_engine_agrees_with_one_sample_at_a_time(name: str, way: str, dtype: torch.dtype) -> None:
    case = build(name, dtype)
    if way == "vmap" and not case.vmap:
        pytest.skip("torch.func cannot run this model")
    assert_contract(case, way, dtype)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("way", ["single-backward", pytest.param("low-memory", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", thin(ZOO, 4))
def test_engine_agrees_where_products_use_tf32(name: str, way: str) -> None:
    """What a GPU does where TF32 is allowed: cut records, norms finished together, kernels entry by entry.

    On the CPU the same code runs with exact products of the cut records.
    """
    case = build(name, torch.float32)
    if DEVICE.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    with use_policy(**like_a_gpu(even_channels=1)):
        assert_contract(case, way, torch.float32, 2e-2)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="bfloat16 records stay as they are on a GPU only")
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:.*RNN module weights", "ignore:Mismatch dtype")
@pytest.mark.parametrize("way", ["single-backward", "low-memory"])
@pytest.mark.parametrize("name", ZOO)
def test_engine_agrees_under_bfloat16_autocast(name: str, way: str) -> None:
    case = build(name, torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        ours, oracle = handle(case, way), handle(case, "loop")
    assert ((ours.norms - oracle.norms).abs() <= 0.15 * oracle.norms + 1e-2 * oracle.norms.max()).all()
    weights = torch.linspace(0.5, 1.5, N, device=DEVICE)
    scale = float(oracle.norms.max())
    for key, expected in oracle.weighted_sum(weights).items():
        assert ours.weighted_sum(weights)[key].dtype == torch.float32
        assert (
            float((ours.weighted_sum(weights)[key] - expected).norm()) <= 0.15 * float(expected.norm()) + 0.02 * scale
        )
    assert_clipped(ours, float(oracle.norms.median()) * 0.5)
