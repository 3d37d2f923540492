"""Free text, as counts of hashed words and parts of words, or as what a sentence encoder says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator

from dpilot.data import sentences, values
from dpilot.data.cells import Cells, objects
from dpilot.data.hashing import hash_texts
from dpilot.data.reading import cell_keys, missing_keys
from dpilot.data.types.base import NULL, Block, CellState, Reading

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["Text"]

FEATURES: Final = 2048
LENGTH: Final = 10_000
_FEWEST: Final = 16
_MOST: Final = 1 << 20
_ROWS: Final = 4096  # hashed at a time
_WORDS: Final = "the of and to in is was for on as with by he that his at it from are an this were not but one all out"


class Text:
    """Half of ``features`` for words, half for stretches of 3 and 4 letters of them, each n-gram by a public hash.

    ::

        x_j     the sum over the n-grams in column j of a sign that its hash gives; sign(x_j) sqrt|x_j|; each half over
                its length, and sqrt(1/2): a row of unit length

    With ``encoder``, what that says of the text, a row of unit length. Nothing is learned from the records, so there is
    nothing to pay. Case does not count, unless to the encoder.

    Edge cases:
        What is longer than ``length`` letters, or tokens of an encoder, is cut. A text without a word is a row of
        zeros. A cell is the text of its ``values.key``: a number or a time is the same text in every container. Bytes
        that are no UTF-8, and what is no single value, make the record null.

    Reference:
        Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009; scikit-learn's
        HashingVectorizer.
    """

    domain: Final = ""
    example: Final = ""
    keys: Final = ("features", "length", "encoder", "fingerprint")
    has_groups: Final = False
    is_target: Final = False
    is_unit: Final = True

    def settle(self, column: Column) -> dict[str, Any]:
        if column.encoder is not None:
            return _settle_encoder(column)
        if column.fingerprint is not None:
            column.refuse(f"fingerprint is {column.fingerprint!r} without an encoder: expected that of one")
        features = FEATURES if column.features is None else column.features
        length = LENGTH if column.length is None else column.length
        if not _is_count(features) or not _FEWEST <= features <= _MOST or features % 2:
            column.refuse(
                f"features are {features!r}: expected an even number from {_FEWEST} to {_MOST}, as {FEATURES}"
            )
        if not _is_count(length) or length < 1:
            column.refuse(f"length is {length!r}: expected how many letters of a text count, as {LENGTH}")
        return {"features": features, "length": length}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        absent = missing_keys(missing)
        texts = [None if key is None else values.attempt(_storable, key, otherwise=None) for key in cell_keys(cells)]
        states = np.zeros(len(texts), dtype=np.int8)
        states[[place for place, each in enumerate(texts) if each is None]] = CellState.UNREADABLE
        states[[place for place, each in enumerate(texts) if each in absent]] = CellState.MISSING
        return Reading(objects(None if each in absent else each for each in texts), states)

    def names(self, column: Column) -> list[str]:
        return [f"{column.name}#{place}" for place in range(column.features or 0)]

    def lowest(self, column: Column) -> list[float]:
        return [-1.0] * (column.features or 0)

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        if column.encoder is not None:
            _embed(block, values, column)
            return
        for start in range(0, len(values), _ROWS):
            some = slice(start, start + _ROWS)
            block[some] = hash_texts(values[some].tolist(), column.features or 0, column.length or 0).toarray()

    def describe(self, column: Column) -> str:
        if column.encoder is not None:
            return f"text, its first {column.length:,} tokens: {column.features:,} numbers by {column.encoder}"
        return (
            f"text, its first {column.length:,} letters: words and parts of them in {column.features:,} hashed columns"
        )

    def describe_outside(self, column: Column) -> str:
        return f"No text: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        return {"a text": "a text of some words", "no words": "..."}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        words = np.array(_WORDS.split())
        return objects(" ".join(words[each]) for each in rng.integers(len(words), size=(rows, 100)))


def _settle_encoder(column: Column) -> dict[str, Any]:
    """The width is the encoder's; it is asked where a schema does not say it, so that a saved one needs no files."""
    encoder: Any = column.encoder
    if not isinstance(encoder, str) or not encoder:
        column.refuse(f"encoder is {encoder!r}: expected {', '.join(map(repr, sentences.NAMES))}, or a folder")
    known = encoder in sentences.NAMES or column.features is None
    width: Any = sentences.width_of(encoder) if known else column.features
    if column.features not in (None, width) or not _is_count(width):
        column.refuse(f"features are {column.features!r}, but the encoder gives {width}: leave them out")
    length = sentences.LENGTH if column.length is None else column.length
    if not _is_count(length) or length < 3:
        column.refuse(f"length is {length!r}: expected how many tokens of a text count, as {sentences.LENGTH}")
    if not isinstance(column.fingerprint, str | None):
        column.refuse(f"fingerprint is {column.fingerprint!r}: expected a text")
    return {"features": width, "length": length}


def _embed(block: Block, values: Cells, column: Column) -> None:
    """Write what the encoder says of each text by itself; zeros where there is none."""
    encoder = sentences.shared_encoder(column.encoder or "", column.length or 0, column.fingerprint)
    if encoder.width != block.shape[1]:
        column.refuse(f"features are {block.shape[1]}, but the encoder {encoder.name!r} gives {encoder.width}")
    for start in range(0, len(values), _ROWS):
        found = encoder.features(values[start : start + _ROWS].tolist()).numpy()
        block[start : start + _ROWS] = np.nan_to_num(found, nan=0.0)  # None among the texts


def _storable(written: str) -> str:
    written.encode("utf-8")  # raises on half a character, which no hash takes
    return written


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
