"""LoRA: low-rank adapters on attention, through peft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import nn

from dpilot import _validate
from dpilot.errors import InvalidInput, UnsupportedModel

RANKS: Final = {"image": 1, "text": 16}
_QUERY_AND_KEY: Final = {"query", "key", "q", "k", "q_proj", "k_proj", "q_lin", "k_lin", "to_q", "to_k", "wq", "wk"}
_TOGETHER: Final = {"c_attn", "qkv", "query_key_value", "qkv_proj", "Wqkv", "in_proj"}
"""Layers that compute query, key and value at once."""


def add_adapters(
    model: nn.Module, head: str | None, *, rank: int | None = None, targets: Sequence[str] | None = None
) -> nn.Module:
    """The model inside peft's wrapper: adapters W + B A on attention and the head trained, everything else frozen.

    B starts from zero, so the model computes what it did; the scale is 1.

    Edge cases:
        query, key and value in one layer    that layer gets the adapter (GPT-2, timm)
        nn.MultiheadAttention                not one of them: it multiplies by its weights without calling its layers

    Reference: Hu et al. 2021; ranks and layers of Rehn et al. 2026, appendices C.1 and G.
    """
    peft = _peft()
    kind = kind_of(model)
    chosen = RANKS[kind] if rank is None else _validate.count(least=1, rank=rank)
    names = list(targets) if targets is not None else layers(model, kind)
    saved = [head] if head and sum(name.endswith(head) for name, _ in model.named_modules()) == 1 else None
    transposed = any(type(module).__name__ == "Conv1D" for name, module in model.named_modules() if name in names)
    config = peft.LoraConfig(
        r=chosen, lora_alpha=chosen, target_modules=names, modules_to_save=saved, fan_in_fan_out=transposed
    )
    try:
        wrapped: nn.Module = peft.get_peft_model(model, config)
    except ValueError as problem:
        raise InvalidInput(f"targets is {names!r}: expected names of layers that take adapters. {problem}") from None
    if head is not None and saved is None:  # a name that peft would take for others too, such as "2"
        wrapped.get_submodule(f"base_model.model.{head}").requires_grad_(True)
    return wrapped


def kind_of(model: nn.Module) -> str:
    """ "text" or "image", by what transformers say that a model reads; else "text" if it looks up embeddings."""
    reads = getattr(model, "main_input_name", None)
    if isinstance(reads, str):
        return "image" if reads == "pixel_values" else "text"
    return "text" if any(isinstance(module, nn.Embedding) for module in model.modules()) else "image"


def layers(model: nn.Module, kind: str) -> list[str]:
    """The names of the attention layers to adapt: all of them for images; query and key for text.

    A layer belongs to attention if it lies inside a module whose class name says Attention.
    """
    inside = [
        f"{outer}.{inner}" if outer else inner
        for outer, module in model.named_modules()
        if "attention" in type(module).__name__.lower() and not isinstance(module, nn.MultiheadAttention)
        for inner, layer in module.named_modules()
        if inner and _takes_adapters(layer)
    ]
    every = list(dict.fromkeys(inside))
    last = {name: name.rpartition(".")[2] for name in every}
    apart = [name for name in every if last[name] in _QUERY_AND_KEY]
    found = every if kind == "image" else apart or [name for name in every if last[name] in _TOGETHER]
    if not found:
        raise UnsupportedModel(
            f'{type(model).__name__} has no attention layer that could be told from others: expected one for '
            'method="lora". Name the layers with targets=[...], or use method="film" or "bitfit".'
        )  # fmt: skip
    return found


def _takes_adapters(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise InvalidInput('method="lora" needs peft: install dpilot[transfer].') from None
    return peft
