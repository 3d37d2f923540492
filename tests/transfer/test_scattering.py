"""The scattering transform beside its definition, its invariance, its energy, its shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpilot.errors import InvalidInput
from dpilot.transfer.scattering import Filters, Scattering, scattered
from dpilot.transfer.scattering.transform import blocks, modulus
from tests.thin import thin

GENERATOR = np.random.default_rng(2)


def wavelet(size, j, angle, angles):
    """A Morlet wavelet from the formula, on a grid around 0 large enough to hold it, folded onto the torus."""
    sigma, xi, slant, turn = 0.8 * 2**j, 3 * math.pi / 4 / 2**j, 4 / angles, math.pi * angle / angles
    reach = 3 * size
    y, x = np.mgrid[-reach:reach, -reach:reach].astype(np.float64)
    u, v = x * np.cos(turn) + y * np.sin(turn), -x * np.sin(turn) + y * np.cos(turn)
    envelope = slant / (2 * np.pi * sigma**2) * np.exp(-(u**2 + slant**2 * v**2) / (2 * sigma**2))
    gabor = envelope * np.exp(1j * xi * u)
    full = gabor - envelope * gabor.sum() / envelope.sum()
    folded = np.zeros((size, size), dtype=complex)
    np.add.at(folded, (y.astype(int) % size, x.astype(int) % size), full)
    return folded


def gaussian(size, sigma):
    reach = 3 * size
    y, x = np.mgrid[-reach:reach, -reach:reach].astype(np.float64)
    full = np.exp(-(x**2 + y**2) / (2 * sigma**2))
    folded = np.zeros((size, size))
    np.add.at(folded, (y.astype(int) % size, x.astype(int) % size), full)
    return folded / folded.sum()


def convolve(image, kernel):
    """Circular convolution as the sum over shifts that it is."""
    total = np.zeros(image.shape, dtype=complex)
    for dy, dx in np.argwhere(np.abs(kernel) > 1e-16):
        total += kernel[dy, dx] * np.roll(image, (dy, dx), (0, 1))
    return total


def by_definition(image, scales=2, angles=8):
    margin = 2**scales
    padded = np.pad(image, margin, mode="reflect")
    size = len(padded)
    low = gaussian(size, 0.8 * 2 ** (scales - 1))

    def read(maps):
        inside = convolve(maps, low).real[margin:-margin, margin:-margin]
        return inside[:: 2**scales, :: 2**scales]

    bank = [(j, wavelet(size, j, t, angles)) for j in range(scales) for t in range(angles)]
    firsts = [(j, np.abs(convolve(padded, psi))) for j, psi in bank]
    seconds = [np.abs(convolve(u, psi)) for i, u in firsts for j, psi in bank if j > i]
    return np.stack([read(padded), *(read(u) for _, u in firsts), *(read(u) for u in seconds)])


def picture(size):
    image = GENERATOR.uniform(size=(size, size))
    image[size // 4 : size // 2, size // 3 :] += 2.0
    return image


@pytest.mark.parametrize(("scales", "angles"), [(1, 2), (2, 3), (3, 2)])
def test_small_images_give_what_the_definition_gives(scales, angles):
    image = picture(16)
    found = Scattering((16, 16), scales, angles)(torch.from_numpy(image)[None, None])
    assert np.allclose(found[0].numpy(), by_definition(image, scales, angles), atol=1e-10)


@pytest.mark.parametrize("size", thin([28, 32], 2))
def test_whole_images_give_what_the_definition_gives(size):
    image = picture(size)
    expected = by_definition(image)
    assert expected.shape == (81, size // 4, size // 4)
    transform = Scattering((size, size))
    assert np.allclose(transform(torch.from_numpy(image)[None, None])[0].numpy(), expected, atol=1e-10)
    single = transform(torch.from_numpy(image).float()[None, None])
    assert single.dtype == torch.float32
    assert np.allclose(single[0].numpy(), expected, atol=1e-5)


def test_wavelets_have_mean_zero_and_the_average_keeps_constants():
    filters = Filters.of((28, 28), 4, 2, 8)
    assert torch.allclose(filters.wavelets[..., 0, 0], torch.zeros(2, 8, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(filters.rows.sum(1), torch.ones(7, dtype=torch.float64))
    found = Scattering((28, 28))(torch.full((1, 1, 28, 28), 3.0))
    assert torch.allclose(found[0, 0], torch.full((7, 7), 3.0), atol=1e-5)
    assert float(found[0, 1:].abs().max()) < 1e-5


def test_the_transform_keeps_most_of_the_energy_and_stretches_no_distance():
    filters = Filters.of((32, 32), 4, 2, 8)
    bands = filters.wavelets.square().sum((0, 1))
    mirrored = torch.roll(bands.flip(0, 1), (1, 1), (0, 1))
    frequency = torch.fft.fftfreq(40, dtype=torch.float64) * 2 * math.pi
    low = torch.exp(-((1.6 * frequency) ** 2) / 2)
    covered = (low[:, None] * low[None, :]).square() + (bands + mirrored) / 2
    assert float(covered.max()) < 1.05
    inner = (frequency[:, None] ** 2 + frequency[None, :] ** 2).sqrt() < 0.75 * math.pi
    assert float(covered[inner].min()) > 0.2


def test_a_small_shift_changes_the_features_much_less_than_the_pixels():
    smooth = torch.nn.functional.avg_pool2d(torch.from_numpy(GENERATOR.uniform(size=(1, 1, 40, 40))), 3, 1)
    image, moved = smooth[..., 4:36, 4:36], smooth[..., 4:36, 5:37]
    transform = Scattering((32, 32))
    before, after = transform(image), transform(moved)

    def change(a, b):
        return float((a - b).norm() / a.norm())

    wavelets = slice(1, None)
    assert change(before, after) < 0.25 * change(image, moved) / float(image.std() / image.square().mean().sqrt())
    assert change(before[:, wavelets], after[:, wavelets]) < 0.5


def test_images_and_colours_are_transformed_each_on_its_own():
    images = torch.from_numpy(GENERATOR.uniform(size=(20, 3, 16, 16)))
    transform = Scattering((16, 16), 2, 2)
    found = transform(images)
    assert found.shape == (20, 3 * transform.channels, 4, 4)
    alone = transform(images[17:18, 1:2])[0]
    assert torch.allclose(found[17, transform.channels : 2 * transform.channels], alone, atol=1e-12)


def test_images_are_worked_on_in_blocks_of_one_size_whatever_their_number():
    for count in (0, 1, 16, 17):
        found = list(blocks(torch.ones(count, 16, 16)))
        assert [block.shape for block in found] == [(16, 16, 16)] * max(1, -(-count // 16))
        assert torch.cat(found).sum() == count * 16 * 16
        assert bool((torch.cat(found)[:count] == 1).all())


def test_an_image_that_is_not_finite_leaves_the_others_as_they_are():
    images = torch.from_numpy(GENERATOR.uniform(size=(3, 1, 16, 16)))
    transform = Scattering((16, 16), 2, 2)
    beside = images.clone()
    beside[1, 0, 0, 0] = math.nan
    found, spoiled = transform(images), transform(beside)
    assert torch.equal(found[[0, 2]], spoiled[[0, 2]])
    assert not bool(torch.isfinite(spoiled[1]).any())


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_moduli_are_absolute_values_small_and_large(kind):
    values = torch.polar(torch.logspace(-15, 15, 301, dtype=torch.float64), torch.linspace(0, 7, 301).double()).to(kind)
    assert torch.allclose(modulus(values), values.abs(), rtol=1e-6, atol=0)
    assert float(modulus(torch.zeros(1, dtype=kind))) == 0


@pytest.mark.parametrize(("size", "outputs"), [(28, 7), (32, 8)])
def test_channels_and_outputs_are_those_of_the_literature(size, outputs):
    transform = Scattering((size, size))
    assert transform.channels == 81
    assert transform(torch.zeros(2, 1, size, size)).shape == (2, 81, outputs, outputs)
    assert transform(torch.zeros(0, 1, size, size)).shape == (0, 81, outputs, outputs)


def test_features_are_unit_rows_of_normalised_groups():
    images = GENERATOR.integers(256, size=(5, 28, 28)).astype(np.uint8)
    found = scattered(images, [0, 1, 2, 3, 9], classes=4)
    assert found.values.shape == (5, 3969)
    assert torch.allclose(found.values[:4].norm(dim=1), torch.ones(4), atol=1e-5)
    groups = found.values[:4].view(4, 27, 147)
    assert torch.allclose(groups.mean(2), torch.zeros(4, 27), atol=1e-5)
    plain = torch.nn.functional.group_norm(Scattering((28, 28))(torch.from_numpy(images[:, None]) / 255), 27).flatten(1)
    assert torch.allclose(found.values[:4], (plain / plain.norm(dim=1, keepdim=True))[:4], atol=1e-6)
    assert found.labels.tolist() == [0, 1, 2, 3, -1]
    bright = scattered(images / 255.0, [0, 1, 2, 3, 0], classes=4)
    assert torch.allclose(bright.values[:4], found.values[:4], atol=1e-4)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="width is 30: expected a multiple of 4"):
        Scattering((28, 30))
    with pytest.raises(InvalidInput, match=r"shape of images is \(2, 28, 28\)"):
        Scattering((28, 28))(torch.zeros(2, 28, 28))
    with pytest.raises(InvalidInput, match="groups is 10: expected a divisor of the 81 channels"):
        scattered(np.zeros((1, 28, 28)), [0], classes=2, groups=10)
