"""Tools that try to prove us wrong: replay of neighbouring data sets."""

from dpilot.audit.neighbours import Pair, neighbours
from dpilot.audit.replay import Replay, replay

__all__ = ["Pair", "Replay", "neighbours", "replay"]
