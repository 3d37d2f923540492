"""The study behind the defaults: surfaces of every other data set, then the losses of each choice on them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.tune import defaults, other
from benchmarks.tune.defaults import DEFAULTS
from benchmarks.tune.surface import Recipe, Surface
from benchmarks.tune.surface import measure as surface_of

SIGNALS = tuple(float(m) for m in np.geomspace(4, 1.5e5, 18))
RATIOS = tuple(2.0 ** (place / 2) for place in range(-16, 7))
KAPPAS = tuple(2.0 ** (-place / 2) for place in range(2, 15))
SIZES = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)
LARGE = 40_000


def measure(device: str, quick: bool) -> dict[str, Any]:
    """Losses to the oracle in points, (mean, worst), by kappa and by variant of the defaults."""
    found: dict[str, tuple[Surface, int]] = {}
    for name in ("mixture of 10",) if quick else other.TASKS:
        train, test = other.load(name, device)
        options = {"seeds": 2 if len(train) > LARGE else 3, "sizes": SIZES}
        signals, ratios = (SIGNALS[::6], RATIOS[::6]) if quick else (SIGNALS, RATIOS)
        recipe = Recipe(DEFAULTS.cap, 10, 20) if quick else Recipe(DEFAULTS.cap, DEFAULTS.few, DEFAULTS.many)
        found[name] = (surface_of(train, test, recipe, signals, ratios, **options), len(train))
    return judged(found)


def judged(surfaces: dict[str, tuple[Surface, int]], repeats: int = 8) -> dict[str, Any]:
    """What the surfaces say."""
    every = defaults.cases(surfaces)
    losses = defaults.kappa_losses(every, KAPPAS)
    return {
        "data": {name: size for name, (_, size) in surfaces.items()},
        "chosen": asdict(DEFAULTS),
        "kappa": {f"{kappa:.4f}": defaults.summary(values) for kappa, values in losses.items()},
        "variants": defaults.table(every, DEFAULTS, repeats),
        "best kappa": {
            name: {
                f"{m:.0f}": float(surface.ratios[column])
                for m, column in zip(surface.signals, surface.test.mean(2).argmax(1), strict=True)
            }
            for name, (surface, _) in surfaces.items()
        },
    }
