"""Pixels: what white is is told by each image alone, and no image is read as another says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpilot.transfer.pixels import as_pixels, scale_pixels


def test_each_image_says_by_itself_what_white_is():
    images = torch.tensor([[[0.0, 255.0]], [[0.0, 1.0]], [[0.5, 0.25]]])
    assert torch.allclose(scale_pixels(images), torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]], [[0.5, 0.25]]]))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.float64])
def test_the_type_of_the_array_says_nothing(kind):
    dark = torch.tensor([[[0, 1]], [[0, 255]]])
    assert torch.equal(scale_pixels(dark.to(kind)), torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]]))


def test_a_declared_white_holds_for_all():
    assert scale_pixels(torch.tensor([[0.5, 2.0]]), white=2.0).tolist() == [[0.25, 1.0]]


class Broken:
    """An image that ends the process when it is read."""

    def __array__(self, *_, **__):
        raise SystemExit(1)


ODD = [
    np.zeros((3, 3)),
    np.zeros((1, 2)),  # numpy would repeat it to the shape of the others
    7.0,
    [[1.0, 2.0], [3.0]],
    "text",
    None,
    object(),
    Broken(),
    np.array([["x", 1.0], [2.0, 3.0]], object),
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_an_image_that_is_none_is_not_a_number_and_leaves_the_others(odd):
    good = np.arange(4.0).reshape(2, 2)
    found = as_pixels([good, odd, good + 1])
    assert torch.equal(found[[0, 2]], torch.from_numpy(np.stack([good, good + 1])).float())
    assert not torch.isfinite(found[1]).all()


def test_a_pixel_with_an_imaginary_part_is_not_a_number():
    for images in (torch.tensor([[1.0 + 0j, 2.0 + 1j]]), np.array([[1.0 + 0j, 2.0 + 1j]])):
        assert torch.isfinite(as_pixels(images)).tolist() == [[True, False]]
