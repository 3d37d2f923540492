"""What a fixed transform or a pretrained network makes of the cells of a column, for the encoder of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from dpilot.data import sentences
from dpilot.data.cells import Cells
from dpilot.data.column import Column
from dpilot.data.column_types import Embedding
from dpilot.data.encoder import Encoder
from dpilot.data.pictures import PictureForm
from dpilot.data.schema import Schema
from dpilot.data.types.image import PIXELS, SCATTERING, form_of
from dpilot.transfer import backbones
from dpilot.transfer.backbones.images import ImageBackbone
from dpilot.transfer.scattering import Scattering, scatter

__all__ = ["embeddings_of", "encoder_of"]

_MOST: Final = 1 << 16  # features of a picture
_CHANNELS: Final = 81  # that scattering makes of one: 1 + 16 + 64


def encoder_of(schema: Schema, device: str | None = None) -> Encoder:
    """The encoder of a schema, with what its pictures are embedded by, on a GPU where there is one."""
    return Encoder(schema, embeddings_of(schema, device))


def draft_encoder(schema: Schema) -> Encoder:
    """The encoder but for the bounds that are still to be bought."""
    return encoder_of(schema.with_bounds(dict.fromkeys(schema.to_buy, (0.0, 1.0))))


def embeddings_of(schema: Schema, device: str | None = None) -> dict[str, Embedding]:
    """What each column of pictures is embedded by; refused where that is not there, or cannot read their form."""
    pictures = [column for column in schema.features if column.type == "image" and column.backbone != PIXELS]
    return {column.name: _embedding(column, device) for column in pictures}


def _embedding(column: Column, device: str | None) -> Embedding:
    form, where = form_of(column), device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = column.backbone or SCATTERING
    return _scattering(column, form, where) if name == SCATTERING else _network(column, form, name, where)


@dataclass(frozen=True, slots=True, eq=False)
class ScatteringFeatures:
    """Scattering coefficients of pictures, by no data (``transfer.scattering``)."""

    transform: Scattering
    width: int
    device: str

    def __call__(self, pixels: Cells) -> NDArray[np.float32]:
        return scatter(_colours_first(pixels), white=255.0, transform=self.transform, device=self.device).numpy()


@dataclass(frozen=True, slots=True, eq=False)
class BackboneFeatures:
    """What a pretrained network says of pictures, over its length."""

    backbone: ImageBackbone

    @property
    def width(self) -> int:
        return self.backbone.width

    def __call__(self, pixels: Cells) -> NDArray[np.float32]:
        return normalize(self.backbone.features(_colours_first(pixels), white=255.0)).numpy()


def _scattering(column: Column, form: PictureForm, device: str) -> Embedding:
    if form.height % 4 or form.width % 4 or min(form.height, form.width) <= 4:
        column.refuse(f"size is {list(column.size or ())}: expected multiples of 4 above 4, as scattering needs them")
    width = form.channels * _CHANNELS * (form.height // 4) * (form.width // 4)
    if width > _MOST:
        column.refuse(
            f"size is {list(column.size or ())}, of which scattering makes {width:,} features: expected at most "
            f"{_MOST:,}. Choose a smaller size, or a backbone"
        )
    return ScatteringFeatures(Scattering((form.height, form.width)), width, device)


def _network(column: Column, form: PictureForm, name: str, device: str) -> Embedding:
    if form.channels != 3:
        column.refuse(f'mode is "L" beside the backbone {name!r}: expected "RGB", with outside = "convert" for greys')
    is_folder = Path(name).is_dir()
    known = [each for each in backbones.names() if each not in sentences.NAMES]
    if not is_folder and name not in known:
        own = ", ".join(map(repr, (SCATTERING, PIXELS, *known)))
        column.refuse(f"backbone is {name!r}: expected one of {own}, or the folder of an image model that is there")
    return BackboneFeatures(_load(str(Path(name).resolve()) if is_folder else name, device))


@lru_cache(maxsize=4)
def _load(name: str, device: str) -> ImageBackbone:
    found = backbones.load(name)
    assert isinstance(found, ImageBackbone)
    found.model.to(device)
    return found


def _colours_first(pixels: Cells) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
