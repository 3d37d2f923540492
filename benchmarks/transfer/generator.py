"""Images of random processes: no photograph is behind them, so a network that learned from them learned from no data.

dead leaves       shapes of all sizes that cover one another, each of one colour with a texture of a power-law spectrum
untrained nets    noise through a random convolutional network with oriented filters, from 3 x 3 pixels up

Reference:
    Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021; Tang et al., "Differentially Private Image
    Classification by Learning Priors from Random Processes" (DP-RandP), NeurIPS 2023; dead leaves: Lee, Mumford and
    Huang, IJCV 2001.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

LEAVES = 32
TEXTURES = 4  # that the leaves of one image share
SMALLEST, LARGEST = 0.08, 0.8  # radius of a leaf, in the width of the image
CHANNELS = 32  # of an untrained net


def images(count: int, side: int, seed: int, device: str, chunk: int = 1024) -> Tensor:
    """Bytes (count, 3, side, side): dead leaves and untrained nets in turns of ``chunk``, by a seed."""
    coins = torch.Generator(device).manual_seed(seed)
    made = torch.empty(count, 3, side, side, dtype=torch.uint8, device=device)
    for turn, start in enumerate(range(0, count, chunk)):
        rows = min(chunk, count - start)
        some = dead_leaves(rows, side, coins) if turn % 2 == 0 else untrained(rows, side, coins)
        made[start : start + rows] = (some * 255).round().to(torch.uint8)
    return made


def dead_leaves(n: int, side: int, coins: torch.Generator) -> Tensor:
    """Images (n, 3, side, side) in [0, 1] of leaves over leaves, radii by a power law of exponent 3."""
    textures = spectra(n * TEXTURES, side, coins).view(n, TEXTURES, 3, side, side)
    palette = _colours(n, coins)
    strength = _uniform((n, LEAVES, 1, 1, 1), coins).square() * 0.25
    covers = _covers(n, side, coins)
    image = palette[:, 0] + strength[:, 0] * textures[:, 0]
    for leaf in range(1, LEAVES):
        filling = palette[:, leaf] + strength[:, leaf] * textures[:, leaf % TEXTURES]
        image = torch.lerp(image, filling, covers(leaf))
    return image.clamp(0, 1)


def spectra(n: int, side: int, coins: torch.Generator) -> Tensor:
    """Noise (n, 3, side, side) of mean 0 and variance 1 an image, its spectrum |f|^-a, longer along one direction."""
    across, down = torch.fft.rfftfreq(side, device=coins.device), torch.fft.fftfreq(side, device=coins.device)[:, None]
    turn, stretch = _uniform((n, 1, 1, 1), coins) * math.pi, 1 + 4 * _uniform((n, 1, 1, 1), coins).square()
    along, beside = across * turn.cos() + down * turn.sin(), down * turn.cos() - across * turn.sin()
    radius = ((along * stretch).square() + beside.square() + 1 / side**2).sqrt()
    power = radius ** -(0.5 + 3 * _uniform((n, 1, 1, 1), coins))
    white = torch.fft.rfft2(_normal((n, 3, side, side), coins))
    return _standard(_mixed(torch.fft.irfft2(white * power, (side, side)), coins))


def untrained(n: int, side: int, coins: torch.Generator, group: int = 64) -> Tensor:
    """Images (n, 3, side, side) in [0, 1] that random networks, a new one every ``group`` images, make of noise."""
    parts = [_one_net(min(group, n - start), side, coins) for start in range(0, n, group)]
    contrast = 0.1 + 0.25 * _uniform((n, 1, 1, 1), coins)
    return (_colours(n, coins)[:, 0] * 0.5 + 0.25 + contrast * _standard(torch.cat(parts))).clamp(0, 1)


def _one_net(n: int, side: int, coins: torch.Generator) -> Tensor:
    sizes = [math.ceil(side / 2**level) for level in range(4, -1, -1)]
    maps = _normal((n, CHANNELS, sizes[0], sizes[0]), coins)
    for size in sizes[1:]:
        maps = functional.interpolate(maps, (size, size), mode="bilinear")
        maps = functional.conv2d(functional.pad(maps, (1,) * 4, mode="reflect"), _oriented(coins))
        rough = 0.3 * _uniform((n, CHANNELS, 1, 1), coins) ** 3 * _normal((n, 1, size, size), coins)
        style, shift = _normal((n, CHANNELS, 1, 1), coins), _normal((n, CHANNELS, 1, 1), coins)
        maps = functional.leaky_relu(3 * functional.instance_norm(maps) * style + shift + rough, 0.05).tanh()
    return _mixed(maps, coins)


def _oriented(coins: torch.Generator) -> Tensor:
    """Random filters (channels, channels, 3, 3): a blur and a slope in a random direction."""
    blur = torch.tensor([1.0, 2.0, 1.0], device=coins.device)
    slope = torch.tensor([-1.0, 0.0, 1.0], device=coins.device)
    shape = (CHANNELS, CHANNELS, 1, 1)
    turn, amount = _uniform(shape, coins) * 2 * math.pi, _normal(shape, coins)
    edges = turn.cos() * torch.outer(blur, slope) + turn.sin() * torch.outer(slope, blur)
    return _normal(shape, coins) * torch.outer(blur, blur) / 2 + amount * edges


def _covers(n: int, side: int, coins: torch.Generator):
    """Which pixels each leaf covers, as a function of its number: |u|^p + |v|^p <= 1 in its own turned frame."""
    shape = (n, LEAVES, 1, 1, 1)
    radius = SMALLEST / (1 - _uniform(shape, coins) * (1 - (SMALLEST / LARGEST) ** 2)).sqrt()
    slim, turn = 0.4 + 0.6 * _uniform(shape, coins), _uniform(shape, coins) * 2 * math.pi
    power = 1 + 7 * _uniform(shape, coins).square()
    x, y = _uniform(shape, coins), _uniform(shape, coins)
    grid = (torch.arange(side, device=coins.device) + 0.5) / side

    def cover(leaf: int) -> Tensor:
        right, down = grid - x[:, leaf], grid[:, None] - y[:, leaf]
        cos, sin, wide, p = turn[:, leaf].cos(), turn[:, leaf].sin(), radius[:, leaf], power[:, leaf]
        u, v = (right * cos + down * sin) / wide, (down * cos - right * sin) / (wide * slim[:, leaf])
        reach = (u.abs() ** p + v.abs() ** p) ** (1 / p)
        return ((1 - reach) * wide * side + 0.5).clamp(0, 1)  # an edge of one pixel

    return cover


def _colours(n: int, coins: torch.Generator) -> Tensor:
    """Colours (n, leaves, 3, 1, 1) in [0, 1], mostly greyish, those of one image around a tint of its own."""
    light, tint = _uniform((n, LEAVES, 1), coins), 0.1 * _normal((n, 1, 3), coins)
    vivid = 0.25 * _uniform((n, LEAVES, 1), coins).square()
    return (light + tint + vivid * _normal((n, LEAVES, 3), coins)).clamp(0, 1)[..., None, None]


def _mixed(maps: Tensor, coins: torch.Generator) -> Tensor:
    """Colours mixed by a random matrix an image, so that some textures are grey and some are not."""
    n, channels = maps.shape[:2]
    weights = 0.5 * _normal((n, 3, channels), coins) + _normal((n, 1, channels), coins)
    return torch.einsum("nkc,nchw->nkhw", weights, maps)


def _standard(maps: Tensor) -> Tensor:
    return (maps - maps.mean((2, 3), keepdim=True)) / (maps.std((1, 2, 3), keepdim=True) + 1e-6)


def _uniform(shape: tuple[int, ...], coins: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=coins, device=coins.device)


def _normal(shape: tuple[int, ...], coins: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=coins, device=coins.device)
