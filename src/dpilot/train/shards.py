"""A model whose parameters lie in pieces on several ranks (``fully_shard``), put together while it is computed.

FSDP's own hooks gather a layer where it is used, on all ranks at the same moment. Here a rank may run its model more
often than another (a record that raises is computed again alone), and must not wait for one that does not. So weights
are gathered once a step, before the first record, and given back after the last; in between each rank computes with a
plain model, as the engine knows it, and only pieces (weights, optimizer, sums, noise) last longer than a step::

    gather          whole weights, in the precision of the MixedPrecisionPolicy       each rank, for the step
    per chunk       norms; then clipped sums of some parameters after the others, added over ranks for their owners
    release         noise of the rank's own pieces; the optimizer moves them           P / N numbers each
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from dpilot.engine.check import is_distributed
from dpilot.errors import UnsupportedModel
from dpilot.noise import Stretch
from dpilot.train.ranks import Ranks

_BUCKET: Final = 1 << 20  # numbers of the parameters that are summed, and sent, together


def own_rows(rows: int, rank: int, size: int) -> slice:
    """Which rows a rank of so many has: k = ceil(rows / size) each, the last ones fewer or none.

    >>> [own_rows(5, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    each = -(-rows // size)
    return slice(min(rank * each, rows), min((rank + 1) * each, rows))


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A parameter in pieces, and the plain one that stands in for it while the model is put together."""

    name: str
    sharded: Any  # a DTensor, which is not loaded for its type
    whole: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]

    @property
    def row(self) -> int:
        """How many numbers a row has."""
        return self.whole.shape[1:].numel()

    def stretch(self, rank: int, size: int) -> Stretch:
        """Which of its numbers a rank of so many has."""
        mine = own_rows(self.whole.shape[0], rank, size)
        return Stretch(self.whole.numel(), mine.start * self.row, mine.stop * self.row)


@final
@dataclass(frozen=True, slots=True)
class Shards:
    """The pieces of a model, and how it is put together.

    Guarantee:
        In ``plain()`` and ``whole()`` the model is what it was before ``fully_shard``: its own classes, no hooks of
        FSDP, plain parameters; in ``plain()`` of the right shapes and no content. Afterwards it is as it was found,
        also after an exception, and nothing is left of the whole weights.
    """

    model: nn.Module
    ranks: Ranks
    parts: tuple[Part, ...]
    policies: Mapping[nn.Module, Any]

    @classmethod
    def find(cls, model: nn.Module, ranks: Ranks) -> Shards | None:
        """Those of a model that ``fully_shard`` spread over these ranks; None of a plain one."""
        policies = {
            each: _give_back(each)._get_fsdp_state()._mp_policy for each in model.modules() if _is_sharded(each)
        }
        if not policies:
            return None
        owners = {id(p): policy.param_dtype for each, policy in policies.items() for p in each.parameters()}
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for attribute, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, attribute))
        parts = tuple(
            Part(name, p, _placeholder(name, p, ranks, owners.get(id(p))), tuple(places[id(p)]))
            for name, p in model.named_parameters()
            if p.requires_grad or is_distributed(type(p))
        )
        return cls(model, ranks, parts, policies)

    @property
    def layout(self) -> list[Stretch]:
        """What this rank has of every trained parameter."""
        return [each.stretch(self.ranks.rank, self.ranks.size) for each in self.trained]

    @property
    def trained(self) -> list[Part]:
        return [each for each in self.parts if each.whole.requires_grad]

    @property
    def trained_pieces(self) -> dict[str, Any]:
        """What the optimizer moves."""
        return {each.name: each.sharded for each in self.trained}

    def buckets(self) -> Iterator[list[Part]]:
        """The trained parameters, as many at a time as are summed together."""
        bucket: list[Part] = []
        for part in self.trained:
            if bucket and sum(each.whole.numel() for each in bucket) + part.whole.numel() > _BUCKET:
                yield bucket
                bucket = []
            bucket.append(part)
        yield bucket

    def split(self, sums: Mapping[str, Tensor], parts: Sequence[Part]) -> list[Tensor]:
        """What each rank has of sums, in one row."""
        return [
            torch.cat([sums[each.name].reshape(-1)[s.first : s.last] for each, s in self._stretches(parts, rank)])
            for rank in range(self.ranks.size)
        ]

    def join(self, mine: Tensor, parts: Sequence[Part]) -> dict[str, Tensor]:
        """This rank's row by the names of its parameters."""
        lengths = [s.last - s.first for _, s in self._stretches(parts, self.ranks.rank)]
        return dict(zip((each.name for each in parts), torch.split(mine, lengths), strict=True))

    def _stretches(self, parts: Sequence[Part], rank: int) -> list[tuple[Part, Stretch]]:
        return [(each, each.stretch(rank, self.ranks.size)) for each in parts]

    def piece(self, mine: Tensor, shape: Sequence[int]) -> Any:
        """This rank's numbers of a tensor of that shape, as one in pieces like the parameters."""
        from torch.distributed.tensor import DTensor

        like, whole = self.parts[0].sharded, torch.empty(shape, device="meta")
        mine = mine.to(like.to_local().device).view(-1, *whole.shape[1:])
        return DTensor.from_local(
            mine, like.device_mesh, like.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The plain model with its weights; all ranks gather them, once each has room for them."""
        with self.plain():
            try:
                pieces = [self._room(part) for part in self.parts]
                self.ranks.agree()
                for part in self.parts:
                    found = self.ranks.collect(*pieces.pop(0)).view(-1)[: part.whole.numel()]
                    part.whole.data = found.view(part.whole.shape)
                    del found
                yield
            finally:
                for part in self.parts:
                    part.whole.data = _nothing(part.whole.shape, part.whole)

    @torch.no_grad()
    def _room(self, part: Part) -> tuple[Tensor, Tensor]:
        """What this rank has of a parameter, as long as the first rank's piece, and room for all pieces."""
        local = part.sharded.detach().to_local().reshape(-1)
        mine = part.whole.new_zeros(part.stretch(0, self.ranks.size).last)
        mine[: local.numel()] = local
        return mine, mine.new_empty(self.ranks.size, mine.numel())

    @contextmanager
    def plain(self) -> Iterator[None]:
        """The plain model without weights: what shapes and names tell."""
        with ExitStack() as undo:
            for module, policy in self.policies.items():
                _give_back(module)
                undo.callback(_dress, module, type(module), module._forward_pre_hooks, module._forward_hooks)
                own = type(module).__mro__[1:]
                _dress(
                    module,
                    next(kind for kind in own if not is_distributed(kind)),
                    _without_fsdp(module._forward_pre_hooks),
                    _without_fsdp(module._forward_hooks),
                )
                _cast(module, policy, undo)
            for part in self.parts:
                for module, attribute in part.places:  # as attributes: recurrent layers keep a list of them beside
                    undo.callback(setattr, module, attribute, part.sharded)
                    setattr(module, attribute, part.whole)
            yield


def _is_sharded(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" and is_distributed(kind) for kind in type(module).__mro__)


def _give_back(module: Any) -> Any:
    """The module in pieces, also where a forward pass of torch's own left it whole: it would not gather it anew."""
    module.reshard()
    return module


def _placeholder(name: str, parameter: Any, ranks: Ranks, kind: torch.dtype | None) -> nn.Parameter:
    """A plain parameter in place of one in pieces, refused where these are not what is understood here."""
    if not is_distributed(type(parameter)):
        raise UnsupportedModel(
            f"parameter {name!r} is whole on every rank, and others are in pieces: expected fully_shard(model) of the "
            "whole model, so that each trained parameter has an owner. Shard it too, or freeze it."
        )
    mesh, places = parameter.device_mesh, parameter.placements
    rows = len(places) == 1 and places[0].is_shard(0)
    if not rows or mesh.mesh.tolist() != list(range(ranks.size)):
        raise UnsupportedModel(
            f"parameter {name!r} lies as {places} on the ranks {mesh.mesh.tolist()}: expected rows on all "
            f"{ranks.size} ranks of the run, one dimension of them. Use fully_shard(model) without a mesh of your own."
        )
    if parameter.to_local().device.type != mesh.device_type:
        raise UnsupportedModel(
            f"parameter {name!r} lies on {parameter.to_local().device}, and its mesh is of {mesh.device_type}: "
            "expected pieces where they are computed with. Leave out the offload_policy, fill in what is on meta."
        )
    if parameter.is_complex():
        raise UnsupportedModel(f"parameter {name!r} is complex and in pieces: expected real ones. Do not shard it.")
    like = torch.empty(0, dtype=kind or parameter.dtype, device=parameter.to_local().device)
    return nn.Parameter(_nothing(parameter.shape, like), requires_grad=parameter.requires_grad)


def _nothing(shape: torch.Size, like: Tensor) -> Tensor:
    """Zeros of a shape that take no memory; what still reads the tensor that was here keeps it."""
    return like.detach().new_zeros(()).expand(shape)


def _dress(module: nn.Module, kind: type, before: Any, after: Any) -> None:
    module.__class__ = kind
    module._forward_pre_hooks, module._forward_hooks = before, after


def _without_fsdp(hooks: Mapping[int, Callable[..., Any]]) -> OrderedDict[int, Callable[..., Any]]:
    return OrderedDict((key, hook) for key, hook in hooks.items() if not _is_fsdp(hook))


def _is_fsdp(hook: Callable[..., Any]) -> bool:
    held = getattr(hook, "__self__", None)
    module = getattr(hook, "__module__", "") if held is None else type(held).__module__
    return str(module).startswith("torch.distributed.fsdp.")


def _cast(module: nn.Module, policy: Any, undo: ExitStack) -> None:
    """What the policy casts: inputs that come in, and outputs that leave."""
    if policy.param_dtype is not None and policy.cast_forward_inputs:

        def inputs(_: nn.Module, args: Any, kwargs: Any) -> Any:
            return _as_type(policy.param_dtype, args), _as_type(policy.param_dtype, kwargs)

        undo.callback(module.register_forward_pre_hook(inputs, prepend=True, with_kwargs=True).remove)
    if policy.output_dtype is not None:

        def outputs(_: nn.Module, __: Any, output: Any) -> Any:
            return _as_type(policy.output_dtype, output)

        undo.callback(module.register_forward_hook(outputs).remove)


def _as_type(kind: torch.dtype, tree: Any) -> Any:
    return tree_map_only(Tensor, lambda each: each.to(kind) if each.is_floating_point() else each, tree)


def whole_state(model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """The state of a model, what lies in pieces put together on the CPU: by all ranks, for those that ``keep`` it."""
    found: dict[str, Tensor] = {}
    for name, each in model.state_dict().items():
        whole = each.full_tensor().cpu() if is_distributed(type(each)) else each
        if keep:
            found[name] = whole
    return found
