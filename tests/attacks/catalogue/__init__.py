"""The catalogue of attacks, by theme. Each is one function that builds a case afresh."""

from tests.attacks.case import ATTACKS
from tests.attacks.catalogue import (
    autograd,
    data,
    draws,
    edges,
    exits,
    guesses,
    kernels,
    layers,
    layouts,
    losses,
    products,
    rows,
    state,
    statistics,
)

THEMES = (
    products,
    rows,
    statistics,
    layouts,
    layers,
    losses,
    state,
    exits,
    autograd,
    data,
    guesses,
    draws,
    edges,
    kernels,
)

__all__ = ["ATTACKS", "THEMES"]
