"""Sums of linear models and heads on a grid: what one record adds is its own to the last bit, and within the bound.

Sums are compared as whole numbers of Python: no tolerance. Records are built to sit at the edges of cells and of
powers of two, to vanish, to overflow, and to come in any order and any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from dpilot._arrays import Floats
from dpilot.hardened import grid_size
from dpilot.linear import LinearRegression, LogisticRegression, gram_matrix, row_gradients, rows
from dpilot.linear.row_gradients import GridRows, HistogramClip, RowGradients, UnitGradients, clip
from dpilot.linear.rows import MemoryRows, UnitChunk
from dpilot.mechanism import svec
from dpilot.noise import HardenedNoise
from dpilot.numerics import grid
from dpilot.numerics.grid import RECORDS, UNIT, add_to_limbs, gram_in_limbs, join_limbs
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.statistics import quantile, second_moment
from dpilot.tape import tape
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks
from dpilot.transfer.joint import JointHeads
from dpilot.transfer.probe import Head, fit_heads
from tests.statistics.helpers import Anything
from tests.tapes import NoiseFree

RNG = np.random.default_rng(0)
TABLE = np.column_stack([RNG.normal(size=(700, 4)) * 10.0 ** np.linspace(-2, 2, 700)[:, None], RNG.normal(size=700)])
METHODS = ["adassp", "dpgd", "boosted", "adaclip", "bsgs", "auto"]
LENGTHS = [1.0, 1 - 2.0**-53, 1 + 2.0**-52, 2.0**-30, 1e-160, 1e-310, 0.0, -0.0, 1e150, 1.7e308]


def hostile(width: int) -> Floats:
    """Records at the edges of cells and of powers of two, huge, denormal, and of signs that cancel."""
    directions = [np.eye(width)[0], np.ones(width), (-1.0) ** np.arange(width), RNG.normal(size=width)]
    made = [length * (each / np.linalg.norm(each)) for length in LENGTHS for each in directions]
    cells = [(k + edge) * 2.0**-20 * np.ones(width) for k in (0, 1, 2**19) for edge in (0.0, 0.5, 1e-12, -1e-12)]
    return np.array(made + cells)


def whole(values: Floats, unit: float) -> list[int]:
    """As multiples of ``unit``, exactly; fails where one is none."""
    found = [Fraction(each) / Fraction(unit) for each in np.ravel(values).tolist()]
    assert all(each.denominator == 1 for each in found)
    return [int(each) for each in found]


def sums_of(limbs: Floats, unit: float) -> list[int]:
    return [high + low for high, low in zip(whole(limbs[0], unit), whole(limbs[1], unit), strict=True)]


def releases(fit: Callable[[Floats], Any], table: Floats) -> list[Any]:
    """Everything that a fit hands to the door, no noise being added."""
    seen = NoiseFree()
    with tape(seen):
        fit(table)
    return [np.concatenate([np.ravel(each) for each in entry.inputs]) for entry in seen.entries]


def regression(method: str) -> Callable[[Floats], Any]:
    return lambda table: LinearRegression(method=method, size=700).fit(table[:, :-1], table[:, -1])


def classes(table: Floats) -> Any:
    return LogisticRegression(classes=[0, 1, 2], size=700).fit(table[:, :-1], np.abs(table[:, -1]) // 1 % 3)


FITS = {"logistic": classes, **{name: regression(name) for name in METHODS}}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bsgs", "adaclip", "auto")]


@pytest.mark.parametrize("name", ["logistic", "adassp", "dpgd", "boosted", *SLOW])
def test_no_order_no_block_and_no_null_record_moves_a_bit_of_a_release(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = FITS[name]
    table = np.concatenate([TABLE, hostile(5)])
    expected = releases(fit, table)
    null = np.full((1, 5), np.nan)
    others = [table[::-1], table[RNG.permutation(len(table))], np.concatenate([null, table, null])]
    found = [releases(fit, each.copy()) for each in others]
    monkeypatch.setattr(rows, "CHUNK", 64)
    monkeypatch.setattr(row_gradients, "RECORDS", 7)
    monkeypatch.setattr(grid, "_GRAM_ROWS", 5)
    found.append(releases(fit, table))
    for each in found:
        assert len(each) == len(expected)
        assert all(np.array_equal(one, other) for one, other in zip(expected, each, strict=True))


def test_it_is_seen_where_rows_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_gradients, "cut_rows", lambda rows: rows)
    monkeypatch.setattr(row_gradients, "cut_pull", lambda pull, lengths: pull)
    one, other = (releases(FITS["dpgd"], each) for each in (TABLE, TABLE[::-1].copy()))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def gradients(rows: Floats, weights: Floats, threshold: float, longest: float | None = None) -> list[int]:
    """The exact sum of a step, in multiples of UNIT."""
    limbs = np.zeros((2, rows.shape[1] - 1, weights.shape[1]))
    for chunk in GridRows.of(MemoryRows.of(rows)).rows.unit_chunks():
        for start in range(0, len(chunk.values), RECORDS):
            piece = RowGradients(chunk.values[start : start + RECORDS], weights, pulls, longest)
            add_to_limbs(limbs, piece.clip_and_sum(clip, HistogramClip(threshold))[0], UNIT)
    return sums_of(limbs, UNIT)


def pulls(target: Floats, scores: Floats) -> Floats:
    return np.asarray(target[:, None] - scores)


@pytest.mark.parametrize("threshold", [1e-3, 0.7, 1e3])
@pytest.mark.parametrize("outputs", [1, 3])
@np.errstate(all="ignore")
def test_one_more_record_adds_its_own_gradient_which_is_within_the_bound(threshold: float, outputs: int) -> None:
    weights, bound = np.ones((4, outputs)) / 3, int(1 / UNIT)
    before = gradients(TABLE, weights, threshold)
    for record in hostile(5):
        alone = gradients(record[None], weights, threshold)
        assert sum(each**2 for each in alone) <= bound**2
        after = gradients(np.concatenate([TABLE[:300], record[None], TABLE[300:]]), weights, threshold)
        assert [b - a for a, b in zip(before, after, strict=True)] == alone


@pytest.mark.parametrize("threshold", [1e-3, 0.7])
@np.errstate(all="ignore")
def test_one_more_unit_adds_the_mean_of_its_own_gradients(threshold: float) -> None:
    table = np.concatenate([TABLE[::7], hostile(5)])
    starts = np.flatnonzero(np.arange(len(table)) % 7 % 3 == 0)  # units of one, two and three rows
    weights, state = np.ones((4, 2)) / 3, HistogramClip(threshold)

    def added(chunk: UnitChunk) -> list[int]:
        rows = GridRows.of(MemoryRows(chunk)).rows
        (piece,) = rows.unit_chunks()
        return whole(UnitGradients(piece, weights, pulls, None).clip_and_sum(clip, state)[0], UNIT)

    ends = [*starts.tolist(), len(table)]
    each = [added(UnitChunk(table[a:b], np.array([0]))) for a, b in pairwise(ends)]
    assert max(sum(number**2 for number in unit) for unit in each) <= int(1 / UNIT) ** 2
    assert added(UnitChunk(table, starts)) == [sum(column) for column in zip(*each, strict=True)]


def test_a_gradient_is_hardly_shortened() -> None:
    for row in TABLE[::50]:
        alone = np.array(gradients(row[None], np.ones((4, 1)), 1.0)) * UNIT
        exact = row[:4] * (row[4] - row[:4].sum())
        assert np.linalg.norm(alone - exact / max(1.0, np.linalg.norm(exact))) < 1e-5


@pytest.mark.parametrize("radius", [1.0, 1 - 2.0**-53, 1.7, 2.0, 2e-3])
@np.errstate(all="ignore")
def test_one_more_row_adds_its_own_products_which_are_within_the_bound(radius: float) -> None:
    fine = Fraction(grid.power_below(radius) * 2.0**-20) ** 2

    def products(table: Floats) -> list[int]:
        return sums_of(gram_matrix._products(UnitChunk(table), radius), float(fine))

    table = np.clip(TABLE, -1e3, 1e3)
    before = products(table)
    for record in np.clip(hostile(5), -1e3, 1e3):
        alone = products(record[None])
        assert sum(each**2 for each in alone) * fine**2 <= Fraction(radius) ** 4
        after = products(np.concatenate([record[None], table]))
        assert [b - a for a, b in zip(before, after, strict=True)] == alone


@pytest.mark.parametrize("most", [2, 3, 9])
def test_a_unit_of_rows_that_cancel_stays_within_the_bound_though_cutting_may_lengthen_it(most: int) -> None:
    radius, longest = 1.5, Fraction(0)
    for seed in range(200):
        generator = np.random.default_rng(seed)
        rows = generator.normal(size=(most, 3)) * [1.0, 1.0, -1.0] ** np.arange(most)[:, None]
        limbs = gram_matrix._products(UnitChunk(9.0 * rows, np.array([0])), radius)
        longest = max(longest, sum(Fraction(high + low) ** 2 for high, low in zip(*map(np.ravel, limbs), strict=True)))
    assert Fraction(0.999 * radius**4) < longest <= Fraction(radius) ** 4


def test_a_unit_at_the_bound_that_cutting_lengthens_stays_within_it() -> None:
    """All numbers on the grid but one, without which the products of the columns cancel less."""
    rows = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, -1.9 * 2.0**-20]])
    radius = math.sqrt(float(np.linalg.norm(rows.T @ rows / 4))) * (1 + 2e-12)
    limbs = gram_matrix._products(UnitChunk(rows, np.array([0])), radius)
    entries = (Fraction(high) + Fraction(low) for high, low in zip(*map(np.ravel, limbs), strict=True))
    assert sum(each**2 for each in entries) <= Fraction(radius) ** 4


@pytest.mark.parametrize(
    "row",
    [
        [1.0, 1 - 2.0**-21, 0.3],
        pytest.param([2.0**-20, 1e-9, 1.0], marks=pytest.mark.slow),
        pytest.param([1 / 3, 1 / 7, -1 / 11], marks=pytest.mark.slow),
    ],
)
def test_a_million_equal_rows_are_a_million_times_one(row: list[float]) -> None:
    count, radius = 1 << 20, float(np.linalg.norm(row)) * (1 + 1e-9)
    table = np.tile(row, (count, 1))
    unit = (grid.power_below(radius) * 2.0**-20) ** 2
    one = sums_of(gram_in_limbs(table[:1], np.ones(1), radius), unit)
    assert sums_of(gram_in_limbs(table, np.ones(count), radius), unit) == [count * each for each in one]
    weights = np.full((2, 1), 0.01)
    steps = gradients(table[:1], weights, 1e-3)
    assert gradients(table, weights, 1e-3) == [count * each for each in steps]


def test_limbs_round_to_a_grid_as_their_exact_sum_does() -> None:
    """Ties of the grid, and sums next to them, which a float to the nearest would turn into ties."""
    size = 2.0**-20
    high = np.array([(k + 0.5) * size for k in range(-20, 20)] + [2.0**26 + 0.5 * size, -(2.0**28) - 1.5 * size])
    for low in (0.0, 2.0**-80, -(2.0**-80), 2.0**-50, -(2.0**-50), size / 3):
        limbs = np.stack([high, np.full(high.shape, low)])
        found = np.rint(join_limbs(limbs) / size)
        exact = [round((Fraction(h) + Fraction(low)) / Fraction(size)) for h in high.tolist()]
        assert found.tolist() == exact


def test_the_triangle_of_a_matrix_is_no_longer_than_the_matrix_and_exact() -> None:
    matrix = np.array([[3.0, 2.0**44 - 1], [2.0**44 - 1, -7.0]])
    made = [Fraction(each) for each in svec(matrix).tolist()]
    assert made[1] == Fraction(181, 128) * Fraction(2**44 - 1)
    assert sum(each**2 for each in made) <= sum(Fraction(each) ** 2 for each in matrix.ravel().tolist())


def test_statistics_do_not_depend_on_the_order_of_the_records() -> None:
    table = np.concatenate([TABLE, hostile(5)])
    points = np.linspace(-3.0, 3.0, 65)

    def both(rows: Floats) -> None:
        paid: dict[str, Any] = {"noise_multiplier": 1.0, "receipt": Anything()}
        second_moment(rows, radius=1.7, **paid)
        quantile(rows, (0.1, 0.8), grid=points, **paid)

    one, other = (releases(both, each) for each in (table, table[::-1].copy()))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


SIGMAS = (3.0, 70.0, 0.4)
JOINT = JointHeads(SIGMAS, (1.0, 0.1, 50.0), (Receipt(Gaussian(1.0)),) * 3)


def head_sums(values: Any, labels: Any) -> Floats:
    weights = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 3, 5))).float()
    blocks = FeatureBlocks.of(Features.of(values, labels, 3), exact=True)
    return blocks.sum_in_units(weights, blocks.limits(torch.tensor(JOINT.thresholds)), JOINT).numpy()


def test_heads_add_each_record_by_itself_within_their_bound() -> None:
    values, labels = np.concatenate([TABLE, hostile(5)]), np.arange(len(TABLE) + len(hostile(5))) % 3
    before = head_sums(values, labels)
    turned = RNG.permutation(len(values))
    assert np.array_equal(head_sums(values[turned], labels[turned]), before)
    units = [grid.power_below(1 / sigma) * 2.0**-40 for sigma in SIGMAS]
    for record in hostile(5):
        alone = head_sums(record[None], [1])
        after = head_sums(np.concatenate([record[None], values]), np.append(1, labels))
        for head, (sigma, unit) in enumerate(zip(SIGMAS, units, strict=True)):
            own = whole(alone[head], unit)
            assert sum(Fraction(each) ** 2 for each in own) * Fraction(unit) ** 2 <= 1 / Fraction(sigma) ** 2
            moved = [b - a for a, b in zip(whole(before[head], unit), whole(after[head], unit), strict=True)]
            assert moved == own


def test_exact_sums_of_heads_are_those_of_others_but_for_rounding() -> None:
    features = Features.of(TABLE, np.arange(len(TABLE)) % 3, 3)
    weights = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 3, 5))).float()
    blocks = FeatureBlocks.of(features)
    plain = blocks.sum_in_units(weights, blocks.limits(torch.tensor(JOINT.thresholds)), JOINT)
    assert np.allclose(head_sums(TABLE, np.arange(len(TABLE)) % 3), plain, rtol=1e-4, atol=1e-3)


def test_the_noise_of_each_of_several_heads_allows_for_the_rounding_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []
    monkeypatch.setattr("dpilot.hardened.rounded_gaussian", lambda n, scale, _: scales.append(scale) or np.zeros(n))
    heads = [Head(lr=1.0, steps=1, noise_multiplier=sigma) for sigma in SIGMAS]
    receipts = [Receipt(head.event) for head in heads]
    features = Features.of(TABLE, np.arange(len(TABLE)) % 3, 3)
    fit_heads(features, heads, receipts=receipts, size=700, noises=[HardenedNoise()] * 3)
    for sigma, scale in zip(SIGMAS, scales, strict=True):
        size = grid_size(1 / sigma, sigma * (1 + 1e-9))
        # in units of the noise a head moves by 1 / sigma, and g sqrt(15) by rounding: over the noise, 1 / sigma at most
        assert (1 / sigma + size * math.sqrt(15)) / (scale * size) <= (1 + 1e-9) / sigma
