"""Pictures: files, or arrays of bytes, as pixels of one declared form."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator

from dpilot.data import values
from dpilot.data.cells import Cells, objects
from dpilot.data.pictures import FINE, OTHER_MODE, PictureFile, PictureForm, read_pictures
from dpilot.data.reading import missing_keys
from dpilot.data.types.base import NULL, Block, CellState, Reading

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["PIXELS", "SCATTERING", "Image", "form_of"]

CHANNELS: Final = {"L": 1, "RGB": 3}
SCATTERING: Final = "scattering"
PIXELS: Final = "pixels"
_LARGEST: Final = 1024  # pixels a side
_STATES: Final = {FINE: CellState.FINE, OTHER_MODE: CellState.OUTSIDE}


class Image:
    """A row of unit length of what ``backbone`` says of a picture of ``size`` (width, height) and ``mode``.

    Here a row is that of the pixels; ``fit.embeddings`` hands an encoder what a backbone, or scattering, makes of them.
    A cell is the name of a file below ``folder``, or an array of bytes (height, width), of RGB (height, width, 3).

    Edge cases:
        A picture of another size is resized, by itself. One of another mode makes the record null, or is converted
        where ``outside`` is "convert". What cannot be decoded, is cut short, empty, no plain file, larger than 2^26
        pixels or 2^28 bytes, takes too long, or lies outside the folder makes the record null (``data.pictures``).
    """

    domain: Final = "size"
    example: Final = "[32, 32]"
    keys: Final = ("size", "mode", "folder", "backbone")
    has_groups: Final = False
    is_target: Final = False
    is_unit: Final = True

    def settle(self, column: Column) -> dict[str, Any]:
        size, mode = column.size, "RGB" if column.mode is None else column.mode
        pair = tuple(size) if isinstance(size, list | tuple) else ()
        if len(pair) != 2 or not all(type(side) is int and 1 <= side <= _LARGEST for side in pair):
            said = "missing" if size is None else repr(size)
            column.refuse(f"size is {said}: expected [width, height] in pixels, up to {_LARGEST}, as {self.example}")
        if mode not in CHANNELS:
            column.refuse(f'mode is {mode!r}: expected "RGB" (colours) or "L" (greys)')
        for key in ("folder", "backbone"):
            given = getattr(column, key)
            if given is not None and (not isinstance(given, str) or not given or "\0" in given):
                column.refuse(f"{key} is {given!r}: expected a text")
        if importlib.util.find_spec("PIL") is None:
            column.refuse("its type is 'image', and Pillow is not there: pip install 'dpilot[images]'")
        return {"size": pair, "mode": mode, "backbone": SCATTERING if column.backbone is None else column.backbone}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.OUTSIDE, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        form, absent, root = form_of(column), missing_keys(missing), os.path.abspath(column.folder or os.curdir)
        states = np.full(len(cells), CellState.UNREADABLE, dtype=np.int8)
        pixels = np.zeros((len(cells), *form.shape), dtype=np.uint8)
        files: dict[int, PictureFile] = {}
        for place, cell in enumerate(cells.tolist() if cells.ndim == 1 else ()):
            if isinstance(cell, np.ndarray):
                if (found := values.attempt(_array, cell, form, otherwise=None)) is not None:
                    pixels[place], states[place] = found, CellState.FINE
            elif values.key(cell.name if type(cell) is PictureFile else cell) in absent:
                states[place] = CellState.MISSING
            elif (file := values.attempt(_file, cell, root, otherwise=None)) is not None:
                files[place] = file
        places = np.fromiter(files, np.int64, len(files))
        pixels[places], codes = read_pictures(list(files.values()), form)
        states[places] = [_STATES.get(code, CellState.UNREADABLE) for code in codes.tolist()]
        return Reading(pixels, states)

    def names(self, column: Column) -> list[str]:
        return [f"{column.name}#{place}" for place in range(int(np.prod(form_of(column).shape)))]

    def lowest(self, column: Column) -> list[float]:
        return [-1.0] * int(np.prod(form_of(column).shape))

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        rows = values.reshape(len(values), -1).astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        block[:] = rows / np.where(lengths > 0, lengths, 1.0)

    def describe(self, column: Column) -> str:
        width, height = column.size or (0, 0)
        kind = "colour" if column.mode == "RGB" else "grey"
        return f"pictures, made {width} x {height} pixels of {kind}: a row of features by {column.backbone!r}"

    def describe_outside(self, column: Column) -> str:
        mode = f"it is converted to {column.mode}" if column.outside == "convert" else NULL
        return f"A picture of another mode: {mode}; no picture: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        return {"no such file": "no such picture.png"}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        shape = form_of(column).shape
        return objects(rng.integers(256, size=(rows, *(shape if shape[2] == 3 else shape[:2])), dtype=np.uint8))


def form_of(column: Column) -> PictureForm:
    """The form that a column's pictures are read in."""
    width, height = column.size or (0, 0)
    return PictureForm(width, height, CHANNELS[column.mode or ""], convert=column.outside == "convert")


def _array(cell: Any, form: PictureForm) -> Any:
    """An array of bytes as pixels; None where it is none of the declared form."""
    pixels = np.asarray(cell)
    shaped = pixels[..., None] if pixels.ndim == 2 else pixels
    return shaped if shaped.dtype == np.uint8 and shaped.shape == form.shape else None


def _file(cell: Any, root: str) -> PictureFile | None:
    if type(cell) is PictureFile:
        return cell
    name = str(os.fspath(cell)) if isinstance(cell, os.PathLike) else values.text(cell)
    return None if name is None else PictureFile(root, name)
