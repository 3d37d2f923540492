"""One call that chooses and initialises what is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import nn

from dpilot import _validate, engine
from dpilot.errors import InvalidInput, UnsupportedModel
from dpilot.transfer import batchnorm as batch_norms
from dpilot.transfer import bitfit, film, lora, scratch
from dpilot.transfer import head as heads

METHODS: Final = ("film", "lora", "bitfit", "head", "full", "scratch")


def _nothing(_: nn.Module) -> list[nn.Parameter]:
    return []


def _everything(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


_TRAINED: Final[dict[str, Callable[[nn.Module], list[nn.Parameter]]]] = {
    "film": film.parameters,
    "bitfit": bitfit.parameters,
    "head": _nothing,
    "full": _everything,
    "scratch": _everything,
}
"""What a method trains beside the head."""


def prepare(
    model: nn.Module, method: str = "film", *, head: str | None = None, classes: int | None = None,
    rank: int | None = None, targets: Sequence[str] | None = None, batchnorm: str = "refuse",
) -> nn.Module:  # fmt: skip
    """Make a model ready to be trained privately: choose what is trained, freeze the rest, start the head from zero.

    | method | trained |
    |---|---|
    | film | scale and bias of the normalisation layers, and the head |
    | lora | low-rank adapters (peft) on attention, and the head: ``rank`` 1 on all its layers for images, 16 on query and key for text |
    | bitfit | every bias, and the head |
    | head | the head |
    | full | everything, from the weights given |
    | scratch | everything, from weights drawn afresh (the head too: it is not zero) |

    ``head`` names the last linear layer; without it, it is looked for. ``classes`` replaces it by one with as many
    outputs. ``targets`` names the layers that get adapters. ``batchnorm``: a BatchNorm mixes records, so it is refused;
    "group" puts a GroupNorm in its place (scale and shift stay, the running statistics are lost: a pretrained model has
    to learn to live with that); "freeze" keeps its running statistics for good (a pretrained model computes what it
    computed: they come from public data).

    Works in place on transformers models and plain modules. No data is read. The model comes back, for lora inside
    peft's wrapper.

    Guarantee:
        ``engine.check`` finds nothing wrong with what comes back. A model that is refused is as it was.

    Edge cases:
        language model    its output layer is no new head: it stays as it is, and is trained by full and scratch only
        mode              dropout stays in the mode the model has; from_pretrained gives evaluation mode

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = prepare(model, method="film", classes=5)
        >>> [name for name, weight in model.named_parameters() if weight.requires_grad]
        ['1.weight', '1.bias', '3.weight', '3.bias']
        >>> model[3]
        Linear(in_features=8, out_features=5, bias=True)

    Reference: Perez et al. 2018 and Tobaben et al. 2023 (FiLM); Hu et al. 2021 (LoRA); Ben Zaken et al. 2022 and Bu et
    al. 2022 (BiTFiT); Rehn et al. 2026, appendices C.1 and G (ranks and layers).
    """  # noqa: E501
    _check(model, method, rank, targets)
    place = heads.find(model, head)
    _check_head(place, method, classes)
    _check_method(model, method, batchnorm, targets)
    model = batch_norms.without(model, batchnorm)
    if method == "scratch":
        scratch.renew(model)
    if place is not None and (classes is not None or method != "scratch"):
        model = heads.renew(model, place, classes, zero=method != "scratch")
    model = _apply_method(model, method, place, rank, targets)
    if problems := engine.check(model):
        raise UnsupportedModel(f"{len(problems)} problem(s). " + " ".join(str(problem) for problem in problems))
    return model


def _check(model: object, method: str, rank: int | None, targets: Sequence[str] | None) -> None:
    _validate.one_of(METHODS, method=method)
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is a {type(model).__name__}: expected a torch.nn.Module.")
    if hasattr(model, "peft_config"):
        raise InvalidInput("the model has adapters already: expected a model without. Use merge_and_unload() first.")
    if method != "lora" and (rank is not None or targets is not None):
        raise InvalidInput(f'rank and targets are for method="lora": expected neither with {method!r}.')


def _check_head(place: str | None, method: str, classes: int | None) -> None:
    if place is None and (method == "head" or classes is not None):
        raise InvalidInput("the model has no head that could be new: expected a linear layer, named by head=.")
    if classes is not None:
        _validate.count(least=1, classes=classes)


def _check_method(model: nn.Module, method: str, batchnorm: str, targets: Sequence[str] | None) -> None:
    """Raise what the method would, before anything of the model is changed."""
    _validate.one_of(batch_norms.WAYS, batchnorm=batchnorm)
    if method == "lora" and targets is None:
        lora.layers(model, lora.kind_of(model))
    elif method == "scratch":
        scratch.check(model)
        if batchnorm == "freeze":
            raise InvalidInput('batchnorm is "freeze" from scratch, where no statistics are worth it: use "group".')
    elif method in _TRAINED:
        _TRAINED[method](model)


def _apply_method(
    model: nn.Module, method: str, place: str | None, rank: int | None, targets: Sequence[str] | None
) -> nn.Module:
    """The model with the method's own parameters trained, and the head's."""
    if method == "lora":
        return lora.add_adapters(model, place, rank=rank, targets=targets)
    own = [] if place is None else list(model.get_submodule(place).parameters())
    wanted = {id(parameter) for parameter in [*_TRAINED[method](model), *own]}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in wanted)
    return model
