"""Whether samples follow the law they should: p-values, small when they do not."""

from __future__ import annotations

import numpy as np
from scipy import stats

REJECT = 1e-9


def normal_p_value(samples, scale) -> float:
    """The smaller p-value of two tests of N(0, scale^2): Kolmogorov-Smirnov, and chi-square on the variance."""
    samples = np.asarray(samples, dtype=np.float64).ravel()
    shape = stats.kstest(samples, stats.norm(scale=scale).cdf).pvalue
    squares = stats.chi2(samples.size)
    total = float(np.sum((samples / scale) ** 2))
    return float(min(shape, 2 * squares.cdf(total), 2 * squares.sf(total)))


def frequency_p_value(counts, probabilities) -> float:
    """The p-value of a chi-square test of observed ``counts`` against ``probabilities``."""
    counts = np.asarray(counts)
    return float(stats.chisquare(counts, counts.sum() * np.asarray(probabilities)).pvalue)


def largest_correlation(streams) -> float:
    """The largest correlation between two different rows, in standard deviations of independent ones."""
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    return float(np.abs(correlations).max() * np.sqrt(np.shape(streams)[1]))
