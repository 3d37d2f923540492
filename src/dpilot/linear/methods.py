"""The methods by name."""

from __future__ import annotations

from typing import Final

from dpilot.linear.adassp import AdaSSP
from dpilot.linear.dpgd import Dpgd
from dpilot.linear.fitting import Method

__all__ = ["METHODS"]

METHODS: Final[dict[str, Method]] = {"dpgd": Dpgd(), "adassp": AdaSSP()}
