"""Images as the records of a fit: scattering features of each, computed from nothing but its own pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.cells import Cells
from dpilot.data.column import Column
from dpilot.data.encoder import Encoded
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit.source import RowReader, Seen
from dpilot.transfer.scattering import scattered

__all__ = ["ImageSource", "Scatterer", "image_schema"]

IMAGE: Final = "image"
_TARGET: Final = "y"


def image_schema(classes: int) -> Schema:
    """One feature, the image, and the place of the class as the target."""
    target = Column(_TARGET, "categorical", categories=tuple(map(str, range(classes))), role="target")
    return Schema({IMAGE: Column(IMAGE, "numeric", bounds=(0.0, 1.0)), _TARGET: target})


@dataclass(frozen=True, slots=True)
class Scatterer:
    """Reads images of one shape as rows of scattering features; a row of nan for an image that cannot be read.

    It is its own ``widen``: a head sees the features as they are.
    """

    shape: tuple[int, ...]
    classes: int

    @property
    def schema(self) -> Schema:
        return image_schema(self.classes)

    @property
    def shapes(self) -> str:
        return "scattering features of the images"

    def encode_features(self, images: Any) -> NDArray[np.float32]:
        if tuple(np.shape(images)[1:]) != self.shape:
            raise InvalidInput(f"images have the shape {np.shape(images)[1:]}: expected {self.shape}, as fitted.")
        found = scattered(images, np.zeros(len(images)), 2)
        rows = found.values.numpy().copy()
        rows[found.labels.numpy() < 0] = np.nan
        return rows

    def widen(self, features: NDArray[Any]) -> NDArray[Any]:
        """The rows as a head sees them."""
        return features


@dataclass(frozen=True, slots=True, eq=False)
class ImageSource:
    """Images in memory with the code of each one's class, nan where it has none of the declared ones."""

    images: Any
    codes: Floats
    classes: int
    units: Cells | None = None  # the id of each image's unit, if there are units
    unit: str = "unit"
    name: str = "images in memory"

    @property
    def schema(self) -> Schema:
        schema = image_schema(self.classes)
        return schema if self.units is None else schema.with_roles(unit=self.unit)

    @property
    def flaws(self) -> list[tuple[str, str]]:
        return [(IMAGE, "unreadable"), (_TARGET, "unknown class")]

    def length(self) -> int:
        return len(self.images)

    def frames(self) -> Iterator[Any]:
        yield self.images

    def blanks(self) -> Iterator[Floats]:
        yield np.zeros(len(self.images))

    def ids(self) -> Iterator[Cells]:
        """The ids of each image's unit. Sensitive."""
        assert self.units is not None
        yield self.units

    def select(self, places: Indices) -> ImageSource:
        """The same with the images at ``places`` alone, in their order."""
        assert self.units is not None
        kept = np.sort(places)
        return replace(self, images=self.images[kept], codes=self.codes[kept], units=self.units[kept])

    @property
    def is_file(self) -> bool:
        return False

    def inspect(self) -> Iterator[tuple[NDArray[np.bool_], Floats]]:
        """For each record whether it can be used, and its flaws. Sensitive: for the door only."""
        rows = self._reader().encode_features(self.images)
        flaws = np.column_stack([~np.isfinite(rows).all(axis=1), np.isnan(self.codes)])
        yield np.logical_not(flaws.any(axis=1)), flaws.astype(np.float64)

    def read(self, reader: RowReader, seen: Seen | None = None) -> Encoded:
        del seen
        features, target = reader.encode_features(self.images), self.codes.copy()
        null = ~np.isfinite(features).all(axis=1) | np.isnan(target)
        features[null], target[null] = np.nan, np.nan
        return Encoded(features, target, None)

    def _reader(self) -> Scatterer:
        return Scatterer(tuple(np.shape(self.images)[1:]), self.classes)
