"""The contract of a private sum: every rule keeps its bound, every provider's norms bound what it adds.

The rules of ``dpilot.clipping`` and the engine go through ``test_clipping`` and ``test_engines``; here are those of
linear heads and linear models, and the release itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dpilot.clipping import contract
from dpilot.errors import BudgetExceeded
from dpilot.linear.row_gradients import HistogramClip, OneHot, RowGradients, UnitGradients, clip
from dpilot.linear.rows import UnitChunk
from dpilot.noise import seeded_noise
from dpilot.numerics import precision
from dpilot.numerics.grid import cut_rows
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.private_sum import PerSampleGradients, clip_and_sum, private_sum
from dpilot.tape import tape
from dpilot.transfer import head_kernels
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits
from dpilot.transfer.joint import JointHeads, clip_heads
from tests.tapes import NoiseFree

SIGMAS = (0.5, 3.0, 700.0)
JOINT = JointHeads(SIGMAS, (1.0, 0.1, 50.0), (Receipt(Gaussian(1.0)),) * 3)
STATES = [HistogramClip(c, kappa) for c in (1e-6, 0.7, 1.0, 1e6) for kappa in (0.0, 0.1, 0.25)]


def draw(family: str, seed: int, threshold: float, n: int = 3000) -> torch.Tensor:
    return contract.FAMILIES[family](n, threshold, torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", contract.FAMILIES)
def test_joint_norm_of_heads_never_exceeds_bound(family: str, dtype: torch.dtype) -> None:
    norms = draw(family, 1, 1.0).to(dtype).reshape(-1, len(SIGMAS))
    weights, extras = clip_heads(norms, JOINT)
    assert weights.shape == norms.shape
    assert extras.shape == (len(norms), 0)
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()
    null = ~torch.isfinite(norms)
    assert (weights[null] == 0).all()
    n = torch.where(null, 0.0, norms.double())  # in thresholds: released in units of C sigma, so over sigma
    joint = (weights.double() * n / torch.tensor(SIGMAS, dtype=torch.float64)).square().sum(1)
    assert float(joint.max()) <= JOINT.bound**2
    assert JOINT.noise_multiplier * JOINT.bound >= 1


def test_a_head_is_clipped_as_if_it_were_alone() -> None:
    norms = draw("everything", 2, 1.0).reshape(-1, len(SIGMAS))
    together, _ = clip_heads(norms, JOINT)
    for j in range(len(SIGMAS)):
        assert torch.equal(together[:, [j]], clip_heads(norms[:, [j]], JOINT)[0])


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("family", contract.FAMILIES)
def test_joint_norm_of_rows_never_exceeds_bound(family: str, state: HistogramClip) -> None:
    norms = draw(family, 3, state.threshold).numpy() * (1.0 if family == "around the threshold" else state.threshold)
    weights, one_hot = clip(norms, state)
    extras = np.asarray(one_hot)
    assert weights.shape == norms.shape
    assert len(extras) == len(norms)
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    null = ~np.isfinite(norms)
    assert not weights[null].any()
    assert not extras[null].any()
    joint = (weights * np.where(null, 0.0, norms)) ** 2 + (extras**2).sum(1)
    assert float(joint.max()) <= state.bound**2
    assert np.allclose(one_hot.sum(0), extras.sum(0))
    for part in np.array_split(np.arange(len(norms)), 7):  # row by row
        pieces, more = clip(norms[part], state)
        assert np.array_equal(pieces, weights[part])
        assert np.array_equal(np.asarray(more), extras[part])


def test_norms_are_told_apart_by_their_bin() -> None:
    _, one_hot = clip(np.array([1e-9, 0.9, 1.1, 1e9, np.nan]), HistogramClip(1.0, 0.5))
    assert one_hot.columns.tolist() == [0, 4, 5, 9, -1]
    assert one_hot.sum(0).tolist() == [0.5, 0, 0, 0, 0.5, 0.5, 0, 0, 0, 0.5]
    assert OneHot(np.array([0]), 0, 0.0).sum(0).shape == (0,)


WIDTH, CLASSES, HEADS = 6, 4, 3
SCALES = 10.0 ** np.linspace(-3, 4, 40)
GENERATOR = np.random.default_rng(5)
ROWS = GENERATOR.normal(size=(40, WIDTH + 1)) * SCALES[:, None]
LABELS = np.arange(40) % CLASSES
THRESHOLDS = torch.tensor([1.0, 0.1, 50.0])
HEAD_WEIGHTS = torch.from_numpy(GENERATOR.normal(size=(HEADS, CLASSES, WIDTH))).float()
ROW_WEIGHTS = GENERATOR.normal(size=(WIDTH, 2))


def pull(target: Any, scores: Any) -> Any:
    return np.column_stack([target - scores[:, 0], np.tanh(scores[:, 1])])


def short(rows: Any) -> Any:
    """Rows whose features are no longer than 2."""
    lengths = np.linalg.norm(rows[:, :-1], axis=1, keepdims=True)
    return np.column_stack([rows[:, :-1] * np.minimum(1.0, 1.99 / lengths), rows[:, -1]])


def on_grid(rows: Any) -> Any:
    return np.column_stack([cut_rows(rows[:, :-1].copy()), rows[:, -1]])


def of_heads(places: Any, grade: precision.Grade = precision.FULL) -> PerSampleGradients:
    blocks = FeatureBlocks.of(Features.of(ROWS[places, :-1], LABELS[places], CLASSES), grade=grade)
    limits = residual_limits(blocks.lengths, THRESHOLDS, CLASSES, blocks.grade)
    (gradients,) = blocks.gradients(HEAD_WEIGHTS, limits)
    return gradients


def of_units(rows: Any) -> PerSampleGradients:
    """Gradients of units of three rows, each made of one."""
    three = np.repeat(rows, 3, axis=0) * np.tile([1.0, -0.5, 2.0], len(rows))[:, None]
    return UnitGradients(UnitChunk(three, 3 * np.arange(len(rows))), ROW_WEIGHTS, pull, None)


def in_thresholds(sums: Any) -> Any:
    return np.linalg.norm(sums / THRESHOLDS.double()[:, None, None], axis=(1, 2))


PROVIDERS: dict[str, tuple[Callable[[Any], PerSampleGradients], Callable[[Any], Any], Any]] = {
    "heads": (of_heads, in_thresholds, (clip_heads, JOINT)),
    "heads in TF32": (partial(of_heads, grade=precision.TF32), in_thresholds, (clip_heads, JOINT)),
    "rows": (
        lambda p: RowGradients(on_grid(ROWS[p]), ROW_WEIGHTS, pull),
        np.linalg.norm,
        (clip, HistogramClip(0.7, 0.1)),
    ),
    "units": (lambda p: of_units(ROWS[p]), np.linalg.norm, (clip, HistogramClip(0.7, 0.1))),
    "bounded rows": (
        lambda p: RowGradients(on_grid(short(ROWS[p])), ROW_WEIGHTS, pull, longest=2.0),
        np.linalg.norm,
        (clip, HistogramClip(0.7)),
    ),
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_norms_bound_what_one_record_adds(name: str) -> None:
    provider, length, _ = PROVIDERS[name]
    for place in range(len(ROWS)):
        gradients = provider([place])
        norms = np.asarray(gradients.norms)
        weights = np.zeros(norms.shape, norms.dtype)
        weights[0] = 0.37
        added = length(gradients.weighted_sum(torch.from_numpy(weights) if name.startswith("heads") else weights))
        assert (added <= 0.37 * norms[0] * (1 + 1e-12) + 1e-12).all()  # squares of tiny float32 residuals vanish
        if name != "bounded rows":
            assert (added >= 0.36 * norms[0] - 1e-5).all()  # and tightly, but for what is cut off


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_record_adds_the_same_alone_and_among_others(name: str) -> None:
    provider, _, (rule, state) = PROVIDERS[name]
    together, extras = provider(np.arange(40)).clip_and_sum(rule, state)
    pieces = [provider([place]).clip_and_sum(rule, state) for place in range(40)]
    assert np.allclose(together, sum(sums for sums, _ in pieces), rtol=1e-5, atol=1e-6)
    assert np.allclose(extras, sum(more for _, more in pieces) if len(extras) else ())
    norms = np.asarray(provider(np.arange(40)).norms)
    for place in range(40):
        assert np.allclose(norms[place], np.asarray(provider([place]).norms)[0], rtol=1e-5)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_sum_in_one_pass_is_norms_then_weights_then_the_weighted_sum(name: str) -> None:
    provider, _, (rule, state) = PROVIDERS[name]
    gradients = provider(np.arange(40))
    plain, _ = PerSampleGradients.clip_and_sum(gradients, rule, state)
    again, _ = gradients.clip_and_sum(rule, state)
    assert np.array_equal(plain, again)


def test_the_fused_residuals_of_heads_are_those_of_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's formula in plain operations: what it leaves is what norms, weights and weighted sum leave."""

    calls = []

    def fused(scores: torch.Tensor, labels: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
        calls.append(scores.shape)
        residuals = torch.softmax(scores, 1) - torch.nn.functional.one_hot(labels, scores.shape[1]).T
        residuals = residuals * (limits / residuals.norm(dim=1)).clamp_max(1.0).unsqueeze(1)
        return precision.truncate_tf32(residuals.nan_to_num(nan=0.0))

    plain, _ = of_heads(np.arange(40), precision.TF32).clip_and_sum(clip_heads, JOINT)
    monkeypatch.setattr(head_kernels, "clip_residuals", fused)
    made, extras = of_heads(np.arange(40), precision.TF32).clip_and_sum(clip_heads, JOINT)
    assert extras == ()
    assert len(calls) == 1
    assert np.allclose(made, plain, rtol=2e-3, atol=1e-3)


def test_a_null_record_of_rows_adds_nothing() -> None:
    rows = np.concatenate([ROWS, [[1e308] * WIDTH + [-1e308]]])  # whose residual overflows
    state = HistogramClip(0.7, 0.1)
    with np.errstate(all="ignore"):
        sums, extras = RowGradients(rows, ROW_WEIGHTS, pull).clip_and_sum(clip, state)
    alone, without = RowGradients(ROWS, ROW_WEIGHTS, pull).clip_and_sum(clip, state)
    assert np.allclose(sums, alone)
    assert np.array_equal(extras, without)


def release(pieces: list[PerSampleGradients], receipt: Receipt, state: HistogramClip) -> Any:
    empty = RowGradients(np.zeros((0, WIDTH + 1)), ROW_WEIGHTS, pull)
    paid = {"noise_multiplier": 2.0, "receipt": receipt, "noise": seeded_noise(3)}
    return private_sum(pieces, clip, state, empty=empty, **paid)  # type: ignore[arg-type]


def test_gradients_and_extras_are_one_release_of_the_rules_bound() -> None:
    state, listener = HistogramClip(0.7, 0.1), NoiseFree()
    pieces: list[PerSampleGradients] = [RowGradients(part, ROW_WEIGHTS, pull) for part in np.array_split(ROWS, 3)]
    receipt = Receipt(Gaussian(2.0))
    with tape(listener):
        sums, extras = release(pieces, receipt, state)
    (entry,) = listener.entries
    exact = clip_and_sum(pieces, clip, state)
    assert exact is not None
    assert entry.bound == state.bound == math.sqrt(1.01)
    assert [value.tolist() for value in entry.inputs] == [part.tolist() for part in exact]
    assert sums.shape == ROW_WEIGHTS.shape
    assert extras.shape == (10,)
    with pytest.raises(BudgetExceeded):
        release(pieces, receipt, state)


def test_a_batch_without_records_is_noise_alone_and_paid() -> None:
    receipt, state = Receipt(Gaussian(2.0)), HistogramClip(0.7, 0.1)
    sums, extras = release([], receipt, state)
    assert np.abs(sums).min() > 0
    assert extras.shape == (10,)
    with pytest.raises(BudgetExceeded):
        release([], receipt, state)
