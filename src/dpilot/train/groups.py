"""Groups of parameters for layer-wise clipping, from the model's names alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from dpilot import clipping
from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput

Groups = tuple[tuple[str, ...], ...]


def groups_for(rule: Clipping, model: nn.Module, given: Sequence[Sequence[str]] | None) -> Groups | None:
    """The groups a rule asks for: those given, or consecutive layers shared out evenly; None if it asks for none.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> groups_for(clipping.get("constant", groups=2), model, None)
        (('0.weight', '0.bias'), ('1.weight', '1.bias', '2.weight', '2.bias'))
    """
    count = clipping.to_dict(rule).get("groups")
    if count is None:
        if given is not None:
            raise InvalidInput("groups are given, but the rule is not layer-wise: use clipping.get(name, groups=k).")
        return None
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = _shared_out(names, count) if given is None else tuple(tuple(group) for group in given)
    if len(found) != count or not all(found) or sorted(n for group in found for n in group) != sorted(names):
        raise InvalidInput(
            f"groups are {[list(group) for group in found]}: expected {count} groups with every trained parameter in "
            f"exactly one, of {names}."
        )
    return found


def _shared_out(names: Sequence[str], count: int) -> Groups:
    """Whole layers in their order, cut into ``count`` runs; parameters one by one when there are fewer layers."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    pieces = list(layers.values()) if len(layers) >= count else [[name] for name in names]
    edges = [place * len(pieces) // count for place in range(count + 1)]
    return tuple(tuple(n for piece in pieces[low:high] for n in piece) for low, high in pairwise(edges))
