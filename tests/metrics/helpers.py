"""A small population with known figures, and draws of held-out records from it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from dpilot.metrics.counts import EDGES, Counts, Layout, Scored, counts_event, exact_counts, noisy_counts
from dpilot.metrics.ranking import score_curves
from dpilot.metrics.scores import scores
from dpilot.noise import seeded_noise
from dpilot.privacy.receipt import Receipt

LAYOUT = Layout(("no", "yes"), ("a", "b"), "site")
MANY = Layout(("x", "y", "z"))


def drawn(size: int, seed: int, layout: Layout = LAYOUT) -> Scored:
    """Records whose scores carry some information about their class, and differ a little between groups."""
    rng = np.random.default_rng(seed)
    classes = len(layout.classes)
    target = rng.choice(classes, size=size, p=np.arange(classes, 0, -1) / np.arange(classes, 0, -1).sum())
    group = rng.integers(len(layout.groups), size=size)
    logits = rng.normal(size=(size, classes)) + 1.5 * (target[:, None] == np.arange(classes))
    logits[:, -1] += 0.4 * group
    weights = np.exp(logits)
    grouped = group.astype(float) if len(layout.groups) > 1 else None
    return Scored(target.astype(float), weights / weights.sum(axis=1, keepdims=True), grouped)


def noisy(scored: Scored, layout: Layout, deviation: float, seed: int) -> Counts:
    paid = Receipt(counts_event(deviation))
    return noisy_counts(scored, layout, noise_multiplier=deviation, receipt=paid, noise=seeded_noise(seed))


def figures(counts: Counts) -> dict[tuple[str, str], float]:
    return {(each.name, each.of): each.value for each in scores(counts)}


@lru_cache
def population(layout: Layout) -> dict[tuple[str, str], float]:
    """The figures of what records are drawn from."""
    return truth(drawn(300_000, 11, layout), layout)


def truth(scored: Scored, layout: Layout) -> dict[tuple[str, str], float]:
    """Exact figures, and the curves of the score as its bins show them."""
    exact = exact_counts(scored, layout)
    if not layout.has_scores:
        return figures(exact)
    bins = np.searchsorted(EDGES, scored.probabilities[:, 1], side="right")
    table = np.zeros((2, len(EDGES) + 1))
    np.add.at(table, (scored.target.astype(int), bins), 1.0)
    curves = score_curves(replace(exact, scores=table, deviation=1e-12, score_deviation=1e-12))
    empty = {f"score {low:.3g} to {high:.3g}" for low, high, count in
             zip((0.0, *EDGES), (*EDGES, 1.0), table.sum(axis=0), strict=True) if not count}  # fmt: skip
    return {**figures(exact), **{(each.name, each.of): each.value for each in curves if each.of not in empty}}


__all__ = ["EDGES", "LAYOUT", "MANY", "drawn", "figures", "noisy", "population", "truth"]


def pairs_auc(scores, positive):
    """The share of pairs of a positive and a negative record that the scores put in order, ties counted half."""
    negative, positive = np.sort(scores[positive == 0]), scores[positive == 1]
    below, upto = (np.searchsorted(negative, positive, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / negative.size)
