"""The models of the papers, by name, with fresh weights. Promises: no layer mixes records. May import: the ground.

>>> model = get("cnn-2")
>>> sum(weights.numel() for weights in model.parameters())
26010
>>> get("mlp", features=12, classes=3)[0]
Linear(in_features=12, out_features=64, bias=True)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from torch import nn

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.transfer.models import convolutional, residual, tables, text, wide

__all__ = ["get", "names"]

_MODELS: Final[dict[str, Callable[..., nn.Module]]] = {
    "cnn-2": convolutional.cnn_2,
    "cnn-2-wide": convolutional.cnn_2_wide,
    "cnn-4": convolutional.cnn_4,
    "cnn-64-64-500-500": convolutional.cnn_64_64_500_500,
    "resnet-18-gn": residual.resnet_18,
    "wrn-16-4": wide.WideResNet,
    "imdb-mlp": text.AverageOfWords,
    "char-lstm": text.CharacterLSTM,
    "logistic": tables.logistic,
    "mlp": tables.mlp,
}


def names() -> list[str]:
    """Every name that ``get`` knows."""
    return list(_MODELS)


def get(name: str, **sizes: Any) -> nn.Module:
    """A model by its name; ``sizes`` are its own: channels, classes, vocabulary, features, ...

    Example:
        >>> get("logistic")
        Traceback (most recent call last):
        dpilot.errors.InvalidInput: the model 'logistic' was given nothing: expected features, outputs=1.
    """
    make = _MODELS[_validate.one_of(_MODELS, name=name)]
    known = inspect.signature(make)
    try:
        known.bind(**sizes)
    except TypeError:
        given = ", ".join(sizes) or "nothing"
        expected = ", ".join(str(parameter).replace(": int", "").replace(" = ", "=") for parameter in _sizes(known))
        raise InvalidInput(f"the model {name!r} was given {given}: expected {expected}.") from None
    return make(**sizes)


def _sizes(known: inspect.Signature) -> list[inspect.Parameter]:
    return [p.replace(annotation=inspect.Parameter.empty) for p in known.parameters.values()]
