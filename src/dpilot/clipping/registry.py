"""The rules by name: how a configuration becomes a rule, and a rule becomes a configuration."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from dpilot import _validate
from dpilot._plugins import CLIPPING, load_plugin, plugin_names
from dpilot.clipping.automatic import AutoS, AutoV
from dpilot.clipping.base import Clipping
from dpilot.clipping.constant import Constant
from dpilot.clipping.group import Group
from dpilot.clipping.histogram import HistogramE, HistogramP
from dpilot.clipping.layerwise import LayerWise
from dpilot.clipping.mse import MeanSquaredError
from dpilot.clipping.normalized import Normalized
from dpilot.clipping.one_shot import OneShot
from dpilot.clipping.psac import Psac
from dpilot.clipping.quantile import Quantile, esipova, zhao
from dpilot.clipping.slack import Slack, slack_q, slack_with_floor
from dpilot.errors import InvalidInput

_RULES: Final[dict[str, Callable[..., Clipping]]] = {
    "constant": Constant,
    "auto-s": AutoS,
    "auto-v": AutoV,
    "quantile": Quantile,
    "esipova": esipova,
    "bounded": zhao,
    "slack": Slack,
    "slack-q": slack_q,
    "bounded-slack": slack_with_floor,
    "histogram-p": HistogramP,
    "histogram-e": HistogramE,
    "psac": Psac,
    "mse": MeanSquaredError,
    "one-shot": OneShot,
}
_ON_MORE: Final[dict[str, Callable[..., Any]]] = {"group": Group}  # whose clip needs more than norms
_KNOWN: Final[dict[str, Callable[..., Any]]] = {**_RULES, **_ON_MORE}


def names() -> list[str]:
    """Every rule that ``get`` knows and that needs nothing but norms. ``get`` also knows "group", and what installed
    packages add (``plugin_names``).

    Example:
        >>> names()[:3]
        ['constant', 'auto-s', 'auto-v']
    """
    return list(_RULES)


def get(name: str, *, normalized: bool = False, groups: int | None = None, **parameters: Any) -> Clipping:
    """The rule of that name.

    Args:
        name: one of ``names()``, "group", or what an installed package adds by an entry point of "dpilot.clipping".
        normalized: whether weights, extras and bound are divided by the threshold.
        groups: the number of groups of parameters of the layer-wise form; None for one threshold.
        parameters: the fields of the rule.

    Raises:
        InvalidInput: for an unknown name or parameter; it lists the known ones.

    Example:
        >>> get("bounded", threshold=2.0).floor
        0.1
    """
    if isinstance(name, str) and name not in _KNOWN and name in plugin_names(CLIPPING):
        _add_plugin(name)
    make = _KNOWN[_validate.one_of(_KNOWN, name=name)]
    unknown = set(parameters) - _parameters(name)
    if unknown:
        raise InvalidInput(
            f"{name} was given {', '.join(sorted(unknown))}: expected any of {', '.join(sorted(_parameters(name)))}."
        )
    if name in _ON_MORE and (normalized or groups is not None):
        raise InvalidInput(f"{name} has no normalized or layer-wise form: expected neither. Leave both out.")
    rule: Clipping = make(**parameters) if groups is None else LayerWise(make(**parameters), groups)
    return Normalized(rule) if normalized else rule


def to_dict(rule: Clipping | Group) -> dict[str, Any]:
    """The rule as plain data that JSON can hold: its name and every parameter.

    A preset becomes the rule behind it with all parameters written out, so its meaning cannot drift.

    Example:
        >>> to_dict(Constant(threshold=2.0))
        {'name': 'constant', 'threshold': 2.0}
        >>> from_dict(to_dict(get("bounded", normalized=True))) == get("bounded", normalized=True)
        True
    """
    if isinstance(rule, Normalized):
        return {**to_dict(rule.rule), "normalized": True}
    if isinstance(rule, LayerWise):
        return {**to_dict(rule.rule), "groups": rule.groups}
    name = next((name for name, kind in _KNOWN.items() if kind is type(rule)), None)
    if name is None:
        _validate.refuse("the clipping rule", rule, f"one of {', '.join(_KNOWN)}", "Only these can be stored.")
    return {"name": name, **{field.name: _plain(getattr(rule, field.name)) for field in fields(cast(Any, rule))}}


def from_dict(data: object) -> Clipping:
    """The inverse of to_dict, from the names above only: nothing is imported or executed.

    Edge cases:
        a rule of another package    known once ``get`` was asked for it: a file alone imports no package
    """
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InvalidInput(f"a clipping rule is {data!r}: expected an object with a 'name'.")
    if isinstance(data.get("name"), str) and data["name"] not in _KNOWN and data["name"] in plugin_names(CLIPPING):
        raise InvalidInput(
            f"the clipping rule {data['name']!r} is of another package, which a file does not import: expected "
            f"dpilot.clipping.get({data['name']!r}) before, by somebody who trusts it."
        )
    parameters = {key: _from_plain(value) for key, value in data.items() if key not in ("name", "normalized", "groups")}
    normalized, groups = data.get("normalized", False) is True, data.get("groups")
    return get(cast(str, data.get("name")), normalized=normalized, groups=groups, **parameters)


def _add_plugin(name: str) -> None:
    """Take up a rule of another package: a dataclass with ``init``, ``clip`` and ``update``."""
    made = load_plugin(CLIPPING, name)
    if not (
        isinstance(made, type) and is_dataclass(made) and all(hasattr(made, m) for m in ("init", "clip", "update"))
    ):
        _validate.refuse(f"the entry point {name!r}", made, "a dataclass with init, clip and update")
    _KNOWN[name] = made


def _parameters(name: str) -> set[str]:
    """What a rule or preset can be given: its own keywords, and the fields of the rule it makes."""
    make = _KNOWN[name]
    own = inspect.signature(make).parameters.values()
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own)
    made = {field.name for field in fields(cast(Any, make()))} if open_ended else set()
    return made | {parameter.name for parameter in own if parameter.kind is not parameter.VAR_KEYWORD}


def _plain(value: Any) -> Any:
    return "inf" if value == math.inf else list(value) if isinstance(value, tuple) else value


def _from_plain(value: Any) -> Any:
    return math.inf if value == "inf" else tuple(value) if isinstance(value, list) else value
