"""Tools that try to prove us wrong: replay of neighbours, canaries, tests of noise and sampling, second prices.

Promises: what an audit reports was observed, and it never calls a run private; it says what was tried and not refuted.
May import: train and what is below; it takes a run as a function, and knows neither fit nor tune.
"""

from dpilot.audit.books import audit_ledger
from dpilot.audit.check import Check
from dpilot.audit.mechanism import audit_mechanism
from dpilot.audit.neighbours import Pair, neighbours
from dpilot.audit.replay import Replay, audit_replays, replay
from dpilot.privacy.lower_bounds import LowerBound, TradeOffRegion, one_run, trade_off_region
from dpilot.train.canaries import Canaries

__all__ = [
    "Canaries",
    "Check",
    "LowerBound",
    "Pair",
    "Replay",
    "TradeOffRegion",
    "audit_ledger",
    "audit_mechanism",
    "audit_replays",
    "neighbours",
    "one_run",
    "replay",
    "trade_off_region",
]
