"""Small private queries through the door: count, mean, second moment, histogram, table, quantiles.

Each takes the data, what is declared about them, a noise multiplier and a receipt; ``<name>_event`` gives its cost
beforehand, for the ledger. Promises the sensitivity that it passes to the mechanism. Imports mechanism, privacy and
the ground.
"""

from dpilot.statistics.histogram import histogram, histogram_event, table, table_event
from dpilot.statistics.moments import (
    Ball,
    Box,
    count,
    count_event,
    mean,
    mean_event,
    second_moment,
    second_moment_event,
)
from dpilot.statistics.partition import partition_terms, partitions, partitions_event, threshold_for
from dpilot.statistics.quantile import chosen_quantile, chosen_quantile_event, log_grid, quantile, quantile_event

__all__ = [
    "Ball",
    "Box",
    "chosen_quantile",
    "chosen_quantile_event",
    "count",
    "count_event",
    "histogram",
    "histogram_event",
    "log_grid",
    "mean",
    "mean_event",
    "partition_terms",
    "partitions",
    "partitions_event",
    "quantile",
    "quantile_event",
    "second_moment",
    "second_moment_event",
    "table",
    "table_event",
    "threshold_for",
]
