"""Images as numbers from 0 to 1, each by its own pixels: the type of the array they lie in says nothing.

One image of floats among bytes makes floats of all of them in the array, and must not change how the others are read.
So what white is is declared, or told by each image alone: one with a value above 1 is of bytes, 0 to 255.

>>> bytes_beside_a_float = torch.tensor([[[0.0, 255.0]], [[0.0, 1.0]]])
>>> scale_pixels(bytes_beside_a_float).tolist()
[[[0.0, 1.0]], [[0.0, 1.0]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpilot import _validate
from dpilot.data.cells import plain, unmask
from dpilot.data.reading import numbers
from dpilot.data.values import attempt
from dpilot.errors import InvalidInput

__all__ = ["as_pixels", "scale_pixels"]


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def as_pixels(images: Any) -> Tensor:
    """The images as one tensor of real numbers; what is no number is not finite, in its own image.

    Edge cases:
        A complex pixel is a number where its imaginary part is 0. Of a list, an image that has not the shape of the
        first one is not a number.
    """
    if isinstance(images, Tensor):
        return torch.where(images.imag == 0, images.real, torch.nan) if images.is_complex() else images
    if isinstance(images, Sequence) and not isinstance(images, str | bytes):
        return torch.from_numpy(_stack(images))
    return torch.as_tensor(_real(np.asarray(unmask(images))))


def scale_pixels(images: Tensor, white: float | None = None) -> Tensor:
    """Images (n, ...) in float32, over ``white``: the value of white, 255 of bytes and 1 of floats.

    Guarantee:
        An image's pixels depend on that image, and on ``white``, alone.

    Edge cases:
        white None    each image by itself: over 255 if it has a value above 1
    """
    pixels = images.to(torch.float32)
    if white is not None:
        return pixels / _validate.positive(white=white)
    brightest = pixels.flatten(1).amax(1) if pixels.numel() else pixels.new_zeros(len(pixels))
    return torch.where((brightest > 1).view(-1, *[1] * (pixels.dim() - 1)), pixels / 255, pixels)


def _stack(images: Sequence[Any]) -> Any:
    if not len(images):
        raise InvalidInput("images are an empty list: expected an array, which has a shape without images too.")
    shape: tuple[int, ...] | None = attempt(np.shape, images[0], otherwise=None)
    if shape is None:
        raise InvalidInput("the first entry of the list of images is no image: expected images of one shape.")
    made = np.full((len(images), *shape), np.nan, dtype=np.float32)
    for place, each in enumerate(images):
        made[place] = attempt(_picture, each, shape, otherwise=np.nan)
    return made


def _picture(image: Any, shape: tuple[int, ...]) -> Any:
    pixels = _real(np.asarray(unmask(image)))
    return pixels if pixels.shape == shape else np.nan


def _real(array: Any) -> Any:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and size > 1:
        return array.astype(np.float64)  # torch has few operations on these
    if kind in "fiub":
        return array.astype(np.float64) if kind == "f" and size > 8 else array
    if kind == "c":
        return np.where(array.imag == 0, array.real, np.nan)
    read = numbers(plain(array.ravel()), ())
    return np.where(np.isfinite(read), read, np.nan).reshape(array.shape)
