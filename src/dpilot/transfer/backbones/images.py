"""A backbone for images: pixels in, features out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from dpilot import _validate
from dpilot.transfer.features import extract_rows
from dpilot.transfer.pixels import as_pixels, scale_pixels


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

    def prepared(self, images: Any, *, white: float | None = None) -> Tensor:
        """Images (n, 3, height, width) as the network wants them; ``white`` is 255 for bytes, 1 for floats.

        Without ``white`` each image tells by its own pixels (``transfer.pixels``): the array's type says nothing.
        """
        pixels = as_pixels(images)
        if pixels.dim() != 4 or pixels.shape[1] != 3:
            _validate.refuse("images", tuple(pixels.shape), "(n, 3, height, width)", "Put the colours second.")
        pixels = scale_pixels(pixels.to(next(self.model.parameters()).device), white)
        if tuple(pixels.shape[2:]) != (self.side, self.side):
            pixels = functional.interpolate(pixels, (self.side, self.side), mode="bicubic", antialias=True).clamp(0, 1)
        mean, scale = (pixels.new_tensor(values).view(1, 3, 1, 1) for values in (self.mean, self.scale))
        return ((pixels - mean) / scale).contiguous()  # torch may crash on colours last: docs/transfer.md

    def features(self, images: Any, *, chunk: int = 256, white: float | None = None) -> Tensor:
        """What the network's head would see, (n, width) float32 on the CPU, at most ``chunk`` images at a time.

        The model is put in evaluation mode for it, and back.

        Guarantee:
            That of ``extract_rows``: one image more behind them moves no other's features, not by a rounding either.
        """
        pixels, before = as_pixels(images), self.model.training
        self.model.eval()
        try:
            return extract_rows(lambda some: self.hidden(self.prepared(some, white=white)), pixels, chunk)
        finally:
            self.model.train(before)
