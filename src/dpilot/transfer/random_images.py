"""Images of random processes: no photograph is behind them, so a network that learned from them learned from no data.

dead leaves       shapes of all sizes that cover one another, each of one colour with a texture of a power-law spectrum
untrained nets    noise through random convolutional networks with oriented filters, from a few pixels up

A network pretrained on them (two views of one image alike, of others not) gives features for private training where no
public photographs may be used.

    >>> pixels = generate(6, 32, seed=7)
    >>> pixels.shape, pixels.dtype
    (torch.Size([6, 3, 32, 32]), torch.uint8)

Reference:
    Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021; Tang et al., "Differentially Private Image
    Classification by Learning Priors from Random Processes" (DP-RandP), NeurIPS 2023; dead leaves: Lee, Mumford and
    Huang, IJCV 2001.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Generator, Tensor
from torch.nn import functional

from dpilot import _validate

__all__ = ["dead_leaves", "generate", "random_network_images", "spectra"]

_LEAVES: Final = 32
_TEXTURES: Final = 4  # that the leaves of one image share
_SMALLEST: Final = 0.08  # radius of a leaf, in the width of the image
_LARGEST: Final = 0.8
_CHANNELS: Final = 32  # of an untrained net
_SHARE: Final = 64  # images made by one untrained net
_LEAST: Final = 16  # pixels a side, so that a net has a few to begin with
_BLOCK: Final = 1024  # images made at a time, fewer where they are large
_PIXELS: Final = _BLOCK * 48 * 48


def generate(count: int, side: int, *, seed: int, device: torch.device | str = "cpu", block: int = _BLOCK) -> Tensor:
    """Bytes (count, 3, side, side) on ``device``: dead leaves at even places, untrained nets at odd ones.

    Guarantee:
        They depend on the arguments alone: no file, no record, no state of torch's own generators, which stay as they
        were.

    Edge cases:
        another kind of device or release of torch    other images: their random numbers differ
    """
    count, side = _validate.count(count=count), _validate.count(least=_LEAST, side=side)
    coins = Generator(device).manual_seed(_validate.count(least=0, seed=seed))
    made = torch.empty(count, 3, side, side, dtype=torch.uint8, device=device)
    block = max(_SHARE, min(block, _PIXELS // side**2))
    for start in range(0, count, 2 * block):
        for first, kind in enumerate((dead_leaves, random_network_images)):
            places = made[start + first : start + 2 * block : 2]
            if len(places):
                places.copy_((kind(len(places), side, coins) * 255).round())
    return made


def dead_leaves(n: int, side: int, coins: Generator) -> Tensor:
    """Images (n, 3, side, side) in [0, 1] of leaves over leaves, their radii by a power law of exponent 3."""
    textures = spectra(n * _TEXTURES, side, coins).view(n, _TEXTURES, 3, side, side)
    palette = _colours(n, coins)
    strength = _uniform((n, _LEAVES, 1, 1, 1), coins).square() * 0.25
    cover = _covers(n, side, coins)
    image = palette[:, 0] + strength[:, 0] * textures[:, 0]
    for leaf in range(1, _LEAVES):
        filling = palette[:, leaf] + strength[:, leaf] * textures[:, leaf % _TEXTURES]
        image = torch.lerp(image, filling, cover(leaf))
    return image.clamp(0, 1)


def spectra(n: int, side: int, coins: Generator) -> Tensor:
    """Noise (n, 3, side, side) with a power-law spectrum, longer one way; every colour of an image has mean 0.

    Formula::

        amplitude(f) ~ (stretch^2 f_1^2 + f_2^2 + 1 / side^2)^(-a / 2)      in a turned frame; a from 0.5 to 3.5

    Its standard deviation is 1 before the colours' means are taken off, so less after, most so for a steep spectrum.
    """
    across, down = torch.fft.rfftfreq(side, device=coins.device), torch.fft.fftfreq(side, device=coins.device)[:, None]
    turn, stretch = _uniform((n, 1, 1, 1), coins) * math.pi, 1 + 4 * _uniform((n, 1, 1, 1), coins).square()
    along, beside = across * turn.cos() + down * turn.sin(), down * turn.cos() - across * turn.sin()
    radius = ((along * stretch).square() + beside.square() + 1 / side**2).sqrt()
    power = radius ** -(0.5 + 3 * _uniform((n, 1, 1, 1), coins))
    white = torch.fft.rfft2(_normal((n, 3, side, side), coins))
    return _standard(_mix_colours(torch.fft.irfft2(white * power, (side, side)), coins))


def random_network_images(n: int, side: int, coins: Generator) -> Tensor:
    """Images (n, 3, side, side) in [0, 1] that random networks make of noise; each makes 64, every one in its style."""
    maps = torch.cat([_one_net(min(_SHARE, n - start), side, coins) for start in range(0, n, _SHARE)])
    contrast = 0.1 + 0.25 * _uniform((n, 1, 1, 1), coins)
    return (_colours(n, coins)[:, 0] * 0.5 + 0.25 + contrast * _standard(maps)).clamp(0, 1)


def _one_net(n: int, side: int, coins: Generator) -> Tensor:
    """One network: at each of four sizes, enlarge, convolve, normalise, scale and shift by style, roughen."""
    sizes = [math.ceil(side / 2**level) for level in range(4, -1, -1)]
    maps = _normal((n, _CHANNELS, sizes[0], sizes[0]), coins)
    for size in sizes[1:]:
        maps = functional.interpolate(maps, (size, size), mode="bilinear")
        maps = functional.conv2d(functional.pad(maps, (1,) * 4, mode="reflect"), _draw_filters(coins))
        rough = 0.3 * _uniform((n, _CHANNELS, 1, 1), coins) ** 3 * _normal((n, 1, size, size), coins)
        style, shift = _normal((n, _CHANNELS, 1, 1), coins), _normal((n, _CHANNELS, 1, 1), coins)
        maps = functional.leaky_relu(3 * functional.instance_norm(maps) * style + shift + rough, 0.05).tanh()
    return _mix_colours(maps, coins)


def _draw_filters(coins: Generator) -> Tensor:
    """Random filters (channels, channels, 3, 3): a blur and a slope in a random direction."""
    blur = torch.tensor([1.0, 2.0, 1.0], device=coins.device)
    slope = torch.tensor([-1.0, 0.0, 1.0], device=coins.device)
    shape = (_CHANNELS, _CHANNELS, 1, 1)
    turn, amount = _uniform(shape, coins) * 2 * math.pi, _normal(shape, coins)
    edges = turn.cos() * torch.outer(blur, slope) + turn.sin() * torch.outer(slope, blur)
    return _normal(shape, coins) * torch.outer(blur, blur) / 2 + amount * edges


def _covers(n: int, side: int, coins: Generator) -> Callable[[int], Tensor]:
    """How much of each pixel a leaf covers, by its number: |u|^p + |v|^p <= 1 in the leaf's own turned frame."""
    shape = (n, _LEAVES, 1, 1, 1)
    radius = _SMALLEST / (1 - _uniform(shape, coins) * (1 - (_SMALLEST / _LARGEST) ** 2)).sqrt()
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


def _colours(n: int, coins: Generator) -> Tensor:
    """Colours (n, leaves, 3, 1, 1) in [0, 1], mostly greyish, those of one image around a tint of its own."""
    light, tint = _uniform((n, _LEAVES, 1), coins), 0.1 * _normal((n, 1, 3), coins)
    vivid = 0.25 * _uniform((n, _LEAVES, 1), coins).square()
    return (light + tint + vivid * _normal((n, _LEAVES, 3), coins)).clamp(0, 1)[..., None, None]


def _mix_colours(maps: Tensor, coins: Generator) -> Tensor:
    """Three colours mixed of all channels by a random matrix an image, more alike than not."""
    n, channels = maps.shape[:2]
    weights = 0.5 * _normal((n, 3, channels), coins) + _normal((n, 1, channels), coins)
    return torch.einsum("nkc,nchw->nkhw", weights, maps)


def _standard(maps: Tensor) -> Tensor:
    """Each image less its colours' means, over its standard deviation with them."""
    return (maps - maps.mean((2, 3), keepdim=True)) / (maps.std((1, 2, 3), keepdim=True) + 1e-6)


def _uniform(shape: tuple[int, ...], coins: Generator) -> Tensor:
    return torch.rand(shape, generator=coins, device=coins.device)


def _normal(shape: tuple[int, ...], coins: Generator) -> Tensor:
    return torch.randn(shape, generator=coins, device=coins.device)
