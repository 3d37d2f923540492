"""The methods by name."""

from __future__ import annotations

from typing import Final

from dpilot.linear.adaclip import AdaClip
from dpilot.linear.adassp import AdaSSP
from dpilot.linear.auto import Auto
from dpilot.linear.boosted import BoostedAdaSSP
from dpilot.linear.bsgs import BSGS
from dpilot.linear.dpgd import Dpgd
from dpilot.linear.fitting import Method
from dpilot.linear.ssp import SSP
from dpilot.linear.tukey import TukeyEM

__all__ = ["METHODS"]

METHODS: Final[dict[str, Method]] = {
    "auto": Auto(),
    "dpgd": Dpgd(),
    "adassp": AdaSSP(),
    "boosted": BoostedAdaSSP(),
    "ssp": SSP(),
    "adaclip": AdaClip(),
    "bsgs": BSGS(),
    "tukey": TukeyEM(),
}
