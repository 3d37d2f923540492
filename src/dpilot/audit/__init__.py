"""Tools that try to prove us wrong: replay of neighbouring data sets."""

from dpilot.audit.neighbours import Pair, neighbours
from dpilot.audit.replay import Replay, replay
from dpilot.privacy.lower_bounds import LowerBound, TradeOffRegion, one_run, trade_off_region
from dpilot.train.canaries import Canaries

__all__ = [
    "Canaries",
    "LowerBound",
    "Pair",
    "Replay",
    "TradeOffRegion",
    "neighbours",
    "one_run",
    "replay",
    "trade_off_region",
]
