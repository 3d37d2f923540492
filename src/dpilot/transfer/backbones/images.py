"""A backbone for images: pixels in, features out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpilot import _validate
from dpilot.errors import InvalidInput


@dataclass(frozen=True, slots=True, eq=False)
class ImageBackbone:
    """A pretrained network, what it expects of an image, and how its features are had.

    Guarantee:
        The features of an image are a function of that image alone.
    """

    name: str
    model: nn.Module
    width: int
    side: int
    mean: tuple[float, float, float]
    scale: tuple[float, float, float]
    hidden: Callable[[Tensor], Tensor]

    @property
    def preprocessing(self) -> str:
        """What is done to an image before the network sees it."""
        return (
            f"pixels / 255, resized to {self.side} x {self.side} (bicubic) where they are not, minus {self.mean}, "
            f"over {self.scale}"
        )

    def prepared(self, images: Any) -> Tensor:
        """Images (n, 3, height, width), of bytes or of floats in [0, 1], as the network wants them."""
        pixels = torch.as_tensor(images)
        if pixels.dim() != 4 or pixels.shape[1] != 3:
            _validate.refuse("images", tuple(pixels.shape), "(n, 3, height, width)", "Put the colours second.")
        if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
            raise InvalidInput(f"images are {pixels.dtype}: expected bytes, or floats in [0, 1].")
        device = next(self.model.parameters()).device
        pixels = pixels.to(device).float() / (255 if pixels.dtype == torch.uint8 else 1)
        if tuple(pixels.shape[2:]) != (self.side, self.side):
            pixels = functional.interpolate(pixels, (self.side, self.side), mode="bicubic", antialias=True).clamp(0, 1)
        mean, scale = (pixels.new_tensor(values).view(1, 3, 1, 1) for values in (self.mean, self.scale))
        return ((pixels - mean) / scale).contiguous()  # torch may crash on colours last: docs/transfer.md

    def features(self, images: Any, *, chunk: int = 256) -> Tensor:
        """What the network's head would see, (n, width) float32 on the CPU, ``chunk`` images at a time.

        The model is put in evaluation mode for it, and back.
        """
        step, before = _validate.count(chunk=chunk), self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                parts = [self.hidden(self.prepared(images[i : i + step])).cpu() for i in range(0, len(images), step)]
        finally:
            self.model.train(before)
        return torch.cat(parts).clone() if parts else torch.zeros(0, self.width)
