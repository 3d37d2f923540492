"""The head: the last linear layer, found, replaced, and started from zero."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from dpilot import _validate
from dpilot.errors import InvalidInput

USUAL: Final = ("classifier", "score", "head", "heads", "fc", "_fc", "linear", "out_layer")
"""What models call their head; looked at before the last linear layer of all."""


def find(model: nn.Module, name: str | None = None) -> str | None:
    """The name of the head; None for a language model, whose output layer belongs to its vocabulary.

    Example:
        >>> find(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.LogSoftmax(1)))
        '2'
    """
    linear = [found for found, module in model.named_modules() if isinstance(module, nn.Linear)]
    if name is not None:
        if name not in linear:
            some = ", ".join(repr(found) for found in linear[-4:]) or "none"
            _validate.refuse("head", name, f"the name of a linear layer of the model (its last ones: {some})")
        return name
    if not linear:
        raise InvalidInput(
            f"{type(model).__name__} has no linear layer to be its head: expected one. Put an nn.Linear last."
        )
    usual = [found for start in USUAL for found in linear if found == start or found.startswith(f"{start}.")]
    best = [found for found in usual if found.partition(".")[0] == usual[0].partition(".")[0]] or linear
    return None if _is_vocabulary(model, best[-1]) else best[-1]


def _is_vocabulary(model: nn.Module, name: str) -> bool:
    """Whether that layer gives the words of a vocabulary: transformers say so, or it shares an embedding's weights."""
    layer = model.get_submodule(name)
    output: Any = getattr(model, "get_output_embeddings", lambda: None)()
    shared = any(isinstance(m, nn.Embedding) and m.weight is layer.weight for m in model.modules())
    return output is layer or shared


def renew(model: nn.Module, name: str, classes: int | None = None, *, zero: bool = True) -> nn.Module:
    """The model with a head of ``classes`` outputs (as many as it had, by default), all zeros if wanted.

    With zeros every class is as likely as any other before the first step, and no record's gradient is large because
    of how the head was drawn.
    """
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    head = old if classes is None else _resize(old, _validate.count(least=1, classes=classes))
    if zero:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
    if head is old:
        return model
    if name == "":
        return head
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, head)
    _set_num_labels(model, head.out_features)
    return model


def _resize(old: nn.Linear, classes: int) -> nn.Linear:
    return nn.Linear(
        old.in_features, classes, bias=old.bias is not None, device=old.weight.device, dtype=old.weight.dtype
    ).train(old.training)


def _set_num_labels(model: nn.Module, classes: int) -> None:
    """Models of transformers keep the number of classes beside the head."""
    config = getattr(model, "config", None)
    if hasattr(config, "num_labels") and hasattr(model, "num_labels"):
        config.num_labels = classes  # type: ignore[union-attr]
        model.num_labels = classes  # type: ignore[assignment]
