"""Hardened noise: its law is exact, everything lies on the grid, and it is the Gaussian's price."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer, audit, statistics
from dpilot.errors import InvalidInput
from dpilot.hardened import _MIDDLE, _STEEP, _decide, _round, _sizes, grid_size, keyed_streams, rounded_gaussian
from dpilot.keys import Chain
from dpilot.mechanism import release
from dpilot.noise import HARDENED, HardenedNoise, KeyedNoise
from dpilot.numerics.grid import LOST, Grid
from dpilot.privacy.events import ExponentialMechanism, Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.tape import tape
from dpilot.train.gradients import per_sample_of
from dpilot.train.options import Options
from dpilot.train.run import Run
from tests.distributions import REJECT, frequency_p_value, normal_p_value
from tests.tapes import Recorder


def test_the_law_is_that_of_a_rounded_normal_number() -> None:
    drawn = rounded_gaussian(200_000, 2.5)
    cells = np.arange(-12, 13)
    edges = np.concatenate([[-np.inf], cells[1:] - 0.5, [np.inf]])
    probabilities = np.diff(stats.norm(scale=2.5).cdf(edges))
    seen = np.bincount((np.clip(drawn, -12, 12) + 12).astype(int), minlength=25)
    assert frequency_p_value(seen, probabilities) > REJECT
    assert frequency_p_value(seen, np.full(25, 1 / 25)) < REJECT


def test_the_law_at_the_grid_of_a_release_is_the_normal_one() -> None:
    drawn = rounded_gaussian(200_000, 1.5 * 2**20)
    assert normal_p_value(drawn, 1.5 * 2**20) > REJECT
    assert normal_p_value(drawn, 1.65 * 2**20) < REJECT


def test_the_inverse_in_floating_point_is_right_to_far_more_than_is_allowed_for() -> None:
    from mpmath import mp, mpf, ncdf

    tails = 2.0 ** -np.random.default_rng(0).uniform(1, 63, 300)
    with mp.workdps(40):
        for p in tails.tolist():
            x = -float(ndtri(p))
            for sign in (-1, 1):  # the true inverse lies between x (1 - 1e-13) and x (1 + 1e-13)
                shifted = mpf(x) + sign * mpf(1e-13) * (1 + mpf(x))
                assert (ncdf(-shifted) < mpf(p)) == (sign == 1)


def draw(words: list[int], further: bytes, scale: float) -> list[float]:
    """The numbers of these 32-bit words, all further bits being as given."""
    drawn = np.empty(len(words))
    first = [np.array(words, dtype="<u4").tobytes()]
    _round(drawn, scale, lambda size: first.pop() if first else (further * size)[:size])
    return drawn.tolist()


@pytest.mark.parametrize("scale", [0.3, 1.0, 1000.0, 1.7 * 2**20])
@pytest.mark.parametrize("further", [b"\x00", b"\x80", b"\xff"])
def test_the_quick_way_and_the_long_one_agree(scale: float, further: bytes) -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 150).tolist()
    words += [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    words += [edge + step for edge in (_MIDDLE, 2**32 - _MIDDLE) for step in (-1, 0, 1)]  # where the middle ends
    rest = int.from_bytes(further * 4, "little")
    for word, quick in zip(words, draw(words, further, scale), strict=True):
        tail = (word if word < 2**31 else 2**32 - 1 - word) << 32 | rest
        size = _decide(tail, scale, lambda size: (further * size)[:size])
        assert quick == (-size if word < 2**31 else size)
    assert draw([0], b"\x00", scale)[0] <= -9 * scale + 1  # the first bits are all zero: far out


def test_every_word_of_few_bits_is_decided_as_its_probability_says() -> None:
    """All words near each edge of a small law, by what scipy's normal law says: the probability of each integer."""
    scale, law = 0.8, stats.norm(scale=0.8)
    for integer in range(-2, 2):
        edge = int(law.cdf(integer + 0.5) * 2**32)
        below, above = draw([edge - 2, edge + 2], b"\x80", scale)
        assert (below, above) == (integer, integer + 1)


def test_what_32_bits_leave_open_in_the_middle_is_allowed_for() -> None:
    assert 1 / stats.norm.pdf(ndtri(_MIDDLE / 2**32)) < _STEEP
    spread = ndtri((_MIDDLE + 1) / 2**32) - ndtri((_MIDDLE + 0.5) / 2**32)
    assert spread < 2.0**-33 * _STEEP


def test_a_doubtful_number_is_decided_by_more_bits() -> None:
    """The tail probability of exactly 1/2 over the scale: the first 64 bits leave 0 and 1 open."""
    from mpmath import mp, mpf, ncdf

    with mp.workdps(60):
        first = int(ncdf(-mpf(1) / 2 / mpf(1000)) * mpf(2) ** 64)
    for further, expected in ((b"\x00", 1), (b"\xff", 0)):  # further in the tail, and nearer
        assert _decide(first, 1000.0, lambda size, f=further: f * size) == expected
        assert _sizes(np.array([first], dtype=np.uint64), 1000.0, lambda size, f=further: f * size) == [expected]
        words = iter([(first >> 32).to_bytes(4, "little"), (first & 0xFFFFFFFF).to_bytes(4, "little"), further * 8])
        drawn = np.empty(1)
        _round(drawn, 1000.0, lambda size, words=words: next(words))
        assert drawn.tolist() == [-expected]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_what_is_released_lies_on_the_grid_whatever_the_sum(kind: type) -> None:
    grid = grid_size(1.0, 2.0)
    sums = np.array([0.0, 1 / 3, 1e-30, -7.123456789, 5.0], dtype=kind)
    receipt = Receipt(Gaussian(2.0))
    noisy = release(sums, bound=1.0, noise_multiplier=2.0, receipt=receipt, noise=HardenedNoise())
    assert noisy.dtype == kind
    assert (np.mod(noisy.astype(np.float64), grid) == 0).all()
    tensor = HardenedNoise().gaussian([torch.from_numpy(sums)], bound=1.0, noise_multiplier=2.0)[0]
    assert (np.mod(tensor.double().numpy(), grid) == 0).all()


def keyed() -> KeyedNoise:
    return KeyedNoise(Chain(bytes(32)), hardened=True)


def test_two_sums_that_round_alike_release_alike() -> None:
    """With the same noise only the rounded sum decides: nothing below the grid is in a release."""
    grid = grid_size(1.0, 1.0)
    one, other = (np.array([3.0 + shift * grid]) for shift in (-0.4, 0.4))
    released = [keyed().gaussian([each], bound=1.0, noise_multiplier=1.0)[0] for each in (one, other)]
    assert released[0] == released[1]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_zero_does_not_tell_on_which_side_of_it_a_sum_was(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    for nothing in (0.0, -0.0):
        monkeypatch.setattr("dpilot.hardened.rounded_gaussian", lambda n, *_, z=nothing: np.full(n, z))
        sums = np.array([0.0, -0.0, 1e-9, -1e-9], dtype=kind)
        released = HardenedNoise().gaussian([sums], bound=1.0, noise_multiplier=1.0)[0]
        assert not np.signbit(released).any()
        assert not released.any()


def test_keyed_noise_repeats_itself_from_its_key_and_no_block_repeats_another() -> None:
    assert (
        rounded_gaussian(200_000, 5.0, keyed_streams(b"k")) == rounded_gaussian(200_000, 5.0, keyed_streams(b"k"))
    ).all()
    blocks = rounded_gaussian(2 << 16, 1e6, keyed_streams(b"k")).reshape(2, -1)
    assert abs(np.corrcoef(blocks)[0, 1]) < 0.03
    source = keyed()
    assert source.stamp == source.spawn().stamp == HARDENED
    assert source.choice(np.zeros(3)) in (0, 1, 2)
    noisy = keyed().gaussian([np.zeros(100_000)], bound=1.0, noise_multiplier=3.0)[0]
    assert normal_p_value(noisy, 3.0) > REJECT


def test_the_noise_allows_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = []
    monkeypatch.setattr("dpilot.hardened.rounded_gaussian", lambda n, scale, _: scales.append(scale) or np.zeros(n))
    HardenedNoise().gaussian([np.zeros(30), np.zeros((7, 10))], bound=2.0, noise_multiplier=1.5)
    grid = grid_size(2.0, 1.5)
    assert scales[0] * grid == pytest.approx(1.5 * (2.0 + math.sqrt(100) * grid * (1 + 2**-8)), rel=1e-12)


def test_sums_of_any_size_are_released_without_a_word() -> None:
    values = np.array([np.nan, np.inf, 1e300, -1e-300])
    assert np.isnan(HardenedNoise().gaussian([values], bound=1.0, noise_multiplier=1.0)[0][0])


def test_choices_follow_their_law() -> None:
    weights = np.log([1.0, 2.0, 5.0])
    made = np.bincount([HardenedNoise().choice(weights) for _ in range(20_000)], minlength=3)
    assert frequency_p_value(made, np.array([1, 2, 5]) / 8) > REJECT
    assert ExponentialMechanism(1.0)


def test_an_accelerator_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected the CPU"):
        HardenedNoise().gaussian([torch.zeros(2, device="meta")], bound=1.0, noise_multiplier=1.0)


def runs(noise: str, **options: object) -> Run:
    data = TensorDataset(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=40, batch_size=10, steps=6, clipping="quantile")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    return Trainer(model, loss, plan, lr=0.5, noise=noise, test_seed=3, **options).fit(data)


def test_a_hardened_run_costs_and_learns_as_another(tmp_path: Path) -> None:
    hard, plain = runs("hardened"), runs("float")
    assert (hard.epsilon, hard.record.plan) == (plain.epsilon, plain.record.plan)
    assert hard.record.options["noise"] == "hardened"
    stored = runs("hardened", checkpoint=tmp_path / "run")
    assert all((stored.model.state_dict()[k] == v).all() for k, v in hard.model.state_dict().items())


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_what_each_record_of_a_hardened_run_adds_is_rounded(engine: str) -> None:
    """What is handed to the door are multiples of public grids, in float64; products have a finer one than the rest."""
    seen = Recorder()
    with tape(seen):
        record = runs("hardened", engine=engine).record
    sums = seen.entries
    assert [each.bound for each in sums] == [step.bound * (1 + LOST) for step in record.steps]  # lost by factors
    for each in sums:
        size = grid_size(each.bound, record.plan["noise_multiplier"])
        grid = Grid(size, each.bound / (1 + LOST), 4, 4096 + 160)
        for value in each.inputs:
            factors = {(5, 6): grid.factors(6, 5), (3, 5): grid.factors(5, 3)}.get(value.shape)
            unit = grid.size if factors is None or engine != "auto" else factors[0] * factors[1]
            assert value.dtype == np.float64
            assert (np.mod(value, unit) == 0).all()
    assert any(value.any() for value in sums[0].inputs)


def test_the_sums_of_a_hardened_run_do_not_depend_on_the_order_of_the_records(replay: object) -> None:
    def run(data: tuple, engine: str = "loop") -> object:
        rows = TensorDataset(*(torch.from_numpy(part) for part in data))
        plan = Plan.calibrate(Budget(2.0, 1e-5), size=9, batch_size=9, steps=1, clipping="constant")
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        return Trainer(model, loss, plan, lr=0.5, noise="hardened", engine=engine).fit(rows).thresholds

    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    y = np.zeros(9, dtype=np.int64)
    turned = audit.replay(run, (x, y), (x[::-1].copy(), y))
    assert turned.differences == ()
    assert turned.largest == 0
    replay(partial(run, engine="auto"), (x, y), tolerance=1e-5)  # rounding each number of a record


def chunk(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)), torch.zeros(shape[0])


def test_a_bound_of_a_norm_is_left_as_it_is_whoever_is_beside_it() -> None:
    """Elsewhere that of a record whose tokens cancel is tightened with those of all such records of its chunk."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Flatten(), torch.nn.Linear(256, 1))
    x, y = chunk(2, 4, 64)
    x[0, 1], x[0, 2:] = -x[0, 0], 0
    model[2].weight.data[:, :128] = 1.0
    found = {
        noise: per_sample_of(model, lambda out, y: out[:, 0] - y, Options(noise=noise))((x, y)).squares["0.weight"]
        for noise in ("hardened", "float")
    }
    assert found["hardened"][0] > found["float"][0]
    assert found["hardened"][1] == found["float"][1]


def test_records_of_another_form_are_computed_alone() -> None:
    pooled = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.AdaptiveAvgPool2d((1, 2)), torch.nn.Flatten())
    ways = {
        noise: per_sample_of(pooled, lambda out, y: out[:, 0] - y, Options(noise=noise), 8, chunk(8, 4, 3))
        for noise in ("hardened", "float")
    }
    assert {noise: way(chunk(5, 6, 3)).engine for noise, way in ways.items()} == {
        "hardened": "loop",
        "float": "single-backward",
    }


def test_hardly_any_batch_of_a_hardened_run_overflows_its_places() -> None:
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=1000, batch_size=64, steps=2, clipping="constant")
    loss, usual = torch.nn.CrossEntropyLoss(reduction="none"), []
    for noise in ("float", "hardened"):
        job = Trainer(torch.nn.Linear(3, 2), loss, plan, noise=noise, chunk_size=256)._job
        usual.append(job.options.chunk_size)
    assert usual == [80, 112]
    assert stats.binom.sf(112, 1000, 0.064) < 1e-6


def test_what_hardened_training_cannot_do_is_refused() -> None:
    for options in ({"low_memory": True}, {"amp": True}):
        with pytest.raises(InvalidInput, match="neither amp nor low_memory"):
            runs("hardened", **options)
    with pytest.raises(InvalidInput, match="noise"):
        runs("soft")


def test_statistics_are_hardened_by_default() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 3))
    domain = statistics.Ball(2.0)
    noisy = statistics.mean(rows, domain=domain, size=1, noise_multiplier=2.0, receipt=Receipt(Gaussian(2.0)))
    assert (np.mod(noisy, grid_size(2.0, 2.0)) == 0).all()
    totals = {statistics_sum(each) for each in (rows, rows[::-1])}
    assert len(totals) == 1


def statistics_sum(rows: np.ndarray) -> tuple[float, ...]:
    """The exact sum that a mean releases, with the noise taken off."""
    receipt = Receipt(Gaussian(2.0))
    made = statistics.mean(
        rows, domain=statistics.Ball(2.0), size=1, noise_multiplier=2.0, receipt=receipt, noise=Silent()
    )
    return tuple(made.tolist())


class Silent(HardenedNoise):
    def gaussian(self, values: list, *, bound: float, noise_multiplier: float) -> list:
        return [np.asarray(value) for value in values]
