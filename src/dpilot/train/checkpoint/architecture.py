"""A model of the usual torch layers as plain data: rebuilt from an allow-list, never executed."""

from __future__ import annotations

import inspect
from typing import Any, Final

from torch import nn

from dpilot.errors import InvalidInput

_LAYERS: Final[dict[str, type[nn.Module]]] = {
    kind.__name__: kind
    for kind in (
        nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
        nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
        nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
        nn.Sigmoid, nn.Softplus, nn.Softmax, nn.LogSoftmax,
    )
}  # fmt: skip


def describe(model: nn.Module) -> dict[str, Any] | None:
    """The model as data, or None where it holds something else than known layers in sequence.

    >>> described = describe(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    >>> build(described)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): Tanh()
    )
    """
    described = _describe_layer(model)
    try:
        same = described is not None and repr(build(described)) == repr(model)
    except (TypeError, ValueError, RuntimeError):
        return None
    return described if same else None


def build(described: object) -> nn.Module:
    """The model of a description, with fresh weights; only layers of the list above can be named."""
    if not isinstance(described, dict) or not isinstance(described.get("layer"), str):
        raise InvalidInput("the description of the model cannot be understood: give load(folder, model=...) yours.")
    if described["layer"] == "Sequential":
        made = nn.Sequential()
        for name, child in described["children"]:
            made.add_module(name, build(child))
        return made
    if described["layer"] not in _LAYERS:
        raise InvalidInput(f"layer {described['layer']!r} is not known: expected one of {', '.join(_LAYERS)}.")
    arguments = {name: tuple(v) if isinstance(v, list) else v for name, v in described["arguments"].items()}
    return _LAYERS[described["layer"]](**arguments)


def _describe_layer(module: nn.Module) -> dict[str, Any] | None:
    if type(module) is nn.Sequential:
        children = [(name, _describe_layer(child)) for name, child in module.named_children()]
        return None if any(child is None for _, child in children) else {"layer": "Sequential", "children": children}
    if _LAYERS.get(type(module).__name__) is not type(module):
        return None
    arguments: dict[str, Any] = {}
    for name in inspect.signature(type(module)).parameters:
        value = getattr(module, name, None)
        if name == "bias":
            arguments[name] = value is not None
        elif name not in ("device", "dtype") and not name.startswith("_") and value is not None:
            arguments[name] = list(value) if isinstance(value, tuple) else value
    plain = all(isinstance(v, bool | int | float | str | list) for v in arguments.values())
    return {"layer": type(module).__name__, "arguments": arguments} if plain else None
