"""Histograms and tables of counts: every record is in one cell at most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.mechanism import EXACT, Draws, Noise, gaussian_event, release
from dpilot.privacy.events import Event
from dpilot.statistics.rows import Data, check_increasing, only_column, parts


def histogram_event(noise_multiplier: float) -> Event:
    """What ``histogram`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def table_event(noise_multiplier: float) -> Event:
    """What ``table`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def histogram(
    data: Data,
    *,
    edges: Sequence[float],
    noise_multiplier: float,
    receipt: Draws,
    outside: str = "null",
    noise: Noise = EXACT,
) -> Floats:
    """Noisy counts of one column's values between the declared ``edges``: [e0, e1), ..., and the last bin closed.

    Guarantee:
        One record adds one to one bin, so L2 sensitivity 1 for all bins together. A Gaussian of ``noise_multiplier``.

    Edge cases:
        outside = "null"    a value outside the edges is the null record: in no bin
        outside = "edge"    a value outside the edges is counted in the nearer edge bin
        A value that is not finite is the null record either way. Counts may be negative.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> paid = Receipt(histogram_event(1.0))
        >>> noisy = histogram(np.arange(100.0), edges=[0, 25, 100], noise_multiplier=1.0, receipt=paid)
        >>> bool(np.abs(noisy - [25, 75]).max() < 10)
        True
    """
    _validate.one_of(("null", "edge"), outside=outside)
    limits = check_increasing("edges", edges)
    total = sum(_cells(only_column(rows), limits, outside) for rows in parts(data))
    return release(np.asarray(total), bound=1.0, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)


def table(data: Data, *, shape: Sequence[int], noise_multiplier: float, receipt: Draws, noise: Noise = EXACT) -> Floats:
    """Noisy counts of every combination of ``len(shape)`` columns of codes, each 0 .. size - 1: a contingency table.

    Every rate computed from it, by group, class or prediction, is post-processing.

    Guarantee:
        One record adds one to one cell, so L2 sensitivity 1 for the whole table. A Gaussian of ``noise_multiplier``.

    Edge cases:
        A code that is out of range, not whole or not finite makes the null record: in no cell. Counts may be negative.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> paid = Receipt(table_event(1.0))
        >>> codes = np.array([[0, 1], [1, 2]]).repeat(100, axis=0)
        >>> noisy = table(codes, shape=(2, 3), noise_multiplier=1.0, receipt=paid)
        >>> bool(np.abs(noisy - [[0, 100, 0], [0, 0, 100]]).max() < 10)
        True
    """
    sizes = tuple(_validate.count(shape=size) for size in shape)
    total = sum(_count_codes(rows, sizes) for rows in parts(data))
    return release(np.asarray(total), bound=1.0, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)


def _cells(values: Floats, edges: Floats, outside: str) -> Floats:
    if outside == "edge":
        values = np.clip(values, edges[0], edges[-1])
    return np.histogram(values, bins=edges)[0].astype(np.float64)


def _count_codes(rows: Floats, shape: tuple[int, ...]) -> Floats:
    if rows.shape[1] != len(shape):
        raise InvalidInput(f"data has {rows.shape[1]} columns: expected {len(shape)}, one an axis of shape {shape}.")
    inside = ((rows >= 0) & (rows < np.asarray(shape)) & (rows == np.floor(rows))).all(axis=1)
    flat = np.ravel_multi_index(tuple(rows[inside].astype(np.int64).T), shape)
    return np.bincount(flat, minlength=math.prod(shape)).astype(np.float64).reshape(shape)
