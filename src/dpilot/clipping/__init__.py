"""Clipping rules: one paper a file, one contract for all.

Promises (w n)^2 + |x|^2 <= bound^2 for every record, with a bound that depends on the public state only (``base``).
Imports the ground only: a rule knows neither the engine nor what a step costs.

>>> import torch
>>> rule = get("bounded", threshold=1.0, floor=0.1)
>>> state = rule.init(noise_multiplier=1.0, expected_batch_size=4, dimension=10)
>>> weights, extras = rule.clip(torch.tensor([0.5, 1.0, 2.0, 4.0]), state)
>>> weights
tensor([1.0000, 1.0000, 0.5000, 0.2500])
>>> state = rule.update(state, extras.sum(0))  # in a run: what came back through the door
>>> float(state.threshold)
0.9512...
"""

from dpilot.clipping.automatic import AutoS, AutoV
from dpilot.clipping.base import Clipping, State, update_from_release
from dpilot.clipping.constant import Constant
from dpilot.clipping.group import Group
from dpilot.clipping.histogram import HistogramE, HistogramP, histogram_share
from dpilot.clipping.layerwise import LayerWise
from dpilot.clipping.mse import MeanSquaredError
from dpilot.clipping.normalized import Normalized
from dpilot.clipping.one_shot import OneShot
from dpilot.clipping.psac import Psac
from dpilot.clipping.quantile import Quantile, bit_share
from dpilot.clipping.registry import from_dict, get, names, to_dict
from dpilot.clipping.slack import Slack, slots_for

__all__ = [
    "AutoS",
    "AutoV",
    "Clipping",
    "Constant",
    "Group",
    "HistogramE",
    "HistogramP",
    "LayerWise",
    "MeanSquaredError",
    "Normalized",
    "OneShot",
    "Psac",
    "Quantile",
    "Slack",
    "State",
    "bit_share",
    "from_dict",
    "get",
    "histogram_share",
    "names",
    "slots_for",
    "to_dict",
    "update_from_release",
]
