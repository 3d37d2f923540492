"""Images of random processes: made by a seed alone, within their range, and with the statistics they are named for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpilot.errors import InvalidInput
from dpilot.transfer import random_images

SIDE = 32


def coins(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_seed_makes_the_same_bytes_again_and_another_seed_makes_others() -> None:
    first, again, other = (random_images.generate(9, SIDE, seed=seed) for seed in (3, 3, 4))
    assert first.dtype == torch.uint8
    assert first.shape == (9, 3, SIDE, SIDE)
    assert torch.equal(first, again)
    assert all(not torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


def test_torchs_own_generators_neither_matter_nor_move() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = random_images.generate(4, SIDE, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(random_images.generate(4, SIDE, seed=3), first)


def test_no_two_images_are_alike_across_blocks_and_nets() -> None:
    made = random_images.generate(140, 16, seed=0, block=64)
    assert len({bytes(image.flatten().tolist()) for image in made}) == 140


@pytest.mark.parametrize("kind", [random_images.dead_leaves, random_images.random_network_images])
@pytest.mark.parametrize("side", [16, 33])
def test_pixels_are_finite_and_between_0_and_1_and_use_the_range(kind, side: int) -> None:
    made = kind(96, side, coins())
    assert made.shape == (96, 3, side, side)
    assert torch.isfinite(made).all()
    assert 0 <= float(made.min()) < 0.05
    assert 0.95 < float(made.max()) <= 1
    assert 0.35 < float(made.mean()) < 0.65


@pytest.mark.parametrize("count", [1, 2, 5])
def test_even_places_are_dead_leaves_and_odd_ones_untrained_nets(count: int) -> None:
    generator, made = coins(6), random_images.generate(count, SIDE, seed=6)
    leaves = random_images.dead_leaves(len(made[0::2]), SIDE, generator)
    assert torch.equal(made[0::2], (leaves * 255).round().byte())
    if count > 1:
        nets = random_images.random_network_images(len(made[1::2]), SIDE, generator)
        assert torch.equal(made[1::2], (nets * 255).round().byte())


def test_textures_have_mean_0_and_at_most_variance_1_and_a_power_law_between_its_exponents() -> None:
    made = random_images.spectra(400, 64, coins())
    assert made.mean((2, 3)).abs().max() < 1e-4
    assert 0.5 < float(made.var((1, 2, 3)).mean()) < 1
    assert float(made.var((1, 2, 3)).max()) < 1.001
    slopes = torch.stack([slope(image) for image in made])
    assert float(slopes.min()) > -3.9
    assert float(slopes.max()) < 0
    assert -2.4 < float(slopes.mean()) < -1.4  # exponents from 0.5 to 3.5, a little flatter near the lowest frequency


def slope(image: Tensor) -> Tensor:
    """The slope of the logarithm of the amplitude over that of the frequency, from 1/16 to 1/3 of the sampling rate."""
    side = image.shape[-1]
    amplitude = torch.fft.rfft2(image).abs().square().mean(0).sqrt().flatten()
    across, down = torch.fft.rfftfreq(side), torch.fft.fftfreq(side)[:, None]
    radius = (across.square() + down.square()).sqrt().flatten()
    kept = (radius > 1 / 16) & (radius < 1 / 3)
    x, y = radius[kept].log(), amplitude[kept].log()
    return ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()


def test_radii_of_leaves_follow_a_power_law_of_exponent_3() -> None:
    """The area that a leaf in the middle of a large image covers tells its size; P(radius > r) falls like r^-2."""
    cover = random_images._covers(4000, SIDE, coins())
    areas = torch.cat([cover(leaf).mean((1, 2, 3)) for leaf in range(4)])
    small, large = (areas > 0.02).double().mean(), (areas > 0.08).double().mean()
    assert 2.5 < float(small / large) < 6  # four times the area is twice the radius: a quarter as many, but for edges


def test_leaves_hide_what_is_under_them() -> None:
    """Edges: neighbouring pixels mostly differ little, and sometimes by much; in plain noise they would not."""
    made = random_images.dead_leaves(64, SIDE, coins())
    steps = (made[..., 1:] - made[..., :-1]).abs().flatten()
    spread = float(made.std())
    assert float(steps.median()) < 0.15 * spread
    assert float(steps.quantile(0.99)) > 1.5 * spread


def test_a_net_is_shared_by_few_images_and_colours_are_more_alike_than_not() -> None:
    made = random_images.random_network_images(128, SIDE, coins())
    red, green = made[:, 0].flatten(1), made[:, 1].flatten(1)
    centred = [part - part.mean(1, keepdim=True) for part in (red, green)]
    likeness = (centred[0] * centred[1]).sum(1) / (centred[0].norm(dim=1) * centred[1].norm(dim=1))
    assert 0.4 < float(likeness.mean()) < 0.99
    assert math.isfinite(float(likeness.sum()))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"count": 0, "side": 32, "seed": 0}, "count"),
        ({"count": 4, "side": 15, "seed": 0}, "side"),
        ({"count": 4, "side": 32, "seed": -1}, "seed"),
        ({"count": 2.5, "side": 32, "seed": 0}, "count"),
    ],
)
def test_what_is_wrong_with_the_call_is_named(arguments: dict, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        random_images.generate(**arguments)
