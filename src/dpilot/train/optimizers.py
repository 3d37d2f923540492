"""Optimizers by name: all of them post-process what was released, so none of them costs anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from dpilot import _validate
from dpilot.errors import InvalidInput

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MOMENTUM: Final = 0.9
OWN: Final = "callable"
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

_NAMED: Final[Mapping[str, Callable[..., Optimizer]]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {"momentum": {"momentum": MOMENTUM}}


def names() -> list[str]:
    """The optimizers that are known by name.

    >>> names()
    ['sgd', 'momentum', 'adam', 'adamw']
    """
    return list(_NAMED)


def build(
    chosen: str | MakeOptimizer, model: nn.Module, lr: float, options: Mapping[str, Any] | None = None
) -> Optimizer:
    """The optimizer of a model's trained parameters: by name with ``lr`` and ``options``, or from your own callable.

    ``sgd`` with a normalized clipping rule is normalized DP-SGD; ``adam`` and ``adamw`` are torch's, fed the noisy
    mean, which is what the papers call DP-Adam.

    Edge cases:
        callable           ``lr`` and ``options`` are its own business
        foreign parameters a callable that trains other parameters than the model's is refused

    Reference:
        normalized: De et al. 2022; DP-Adam: Abadi et al. 2016 with Kingma and Ba 2015.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if callable(chosen):
        return check_own(chosen(trained), model)
    name = _validate.one_of(names(), "A callable that takes the parameters works too.", optimizer=chosen)
    lr = _validate.positive("It is the step size.", lr=lr)
    try:
        return _NAMED[name](trained, lr=lr, **{**_DEFAULTS.get(name, {}), **(options or {})})
    except TypeError as problem:
        raise InvalidInput(f"optimizer_options are {options!r}: expected what {name} takes ({problem}).") from None


def check_own(optimizer: object, model: nn.Module) -> Optimizer:
    """Refuse what is no torch optimizer, asks for a closure, or moves parameters that are not the model's own."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidInput(f"the optimizer is a {type(optimizer).__name__}: expected a torch.optim.Optimizer.")
    _, *wanted = signature(type(optimizer).step).parameters.values()  # a schedule puts a function of its own in place
    if any(each.default is each.empty and each.kind in _POSITIONAL for each in wanted):
        raise InvalidInput(
            f"{type(optimizer).__name__} asks for a closure that computes the loss again, which would be a second look "
            "at the records: expected an optimizer that steps along one gradient, such as SGD or Adam."
        )
    theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not theirs <= {id(parameter) for parameter in model.parameters()} or not trained & theirs:
        raise InvalidInput("the optimizer moves parameters that are not the model's: expected model.parameters().")
    return optimizer


def lr_for_batch(lr: float, *, tuned_at: float, batch_size: float, optimizer: str = "adam") -> float:
    """The step size for another batch size: times sqrt(B / B0) for Adam, times B / B0 for SGD.

    >>> lr_for_batch(1e-3, tuned_at=256, batch_size=1024)
    0.002
    >>> lr_for_batch(0.1, tuned_at=256, batch_size=512, optimizer="sgd")
    0.2

    Reference:
        Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022.
    """
    _validate.one_of(names(), optimizer=optimizer)
    ratio = _validate.positive(batch_size=batch_size) / _validate.positive(tuned_at=tuned_at)
    return _validate.positive(lr=lr) * (math.sqrt(ratio) if optimizer.startswith("adam") else ratio)


@torch.no_grad()
def free_step(optimizer: Optimizer) -> None:
    """One more step along what the optimizer remembers: w <- w - lr * momentum buffer. Nothing new is released.

    Edge cases:
        no momentum    refused when the run is planned, not here

    Reference:
        Panda et al. 2024, appendix ("a step for free").
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            remembered = optimizer.state.get(parameter, {})
            buffer = remembered.get("momentum_buffer", remembered.get("exp_avg"))
            if buffer is not None:
                parameter.sub_(group["lr"] * buffer.to(parameter.dtype))


def remembers(optimizer: Optimizer) -> bool:
    """Whether there is a momentum to take a free step along."""
    return any(group.get("momentum", 0) for group in optimizer.param_groups)
