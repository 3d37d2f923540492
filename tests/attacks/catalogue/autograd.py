"""Passes whose values are honest and whose gradients are not."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.attacks.case import Case, Net, attack, linear, mixing, normal, regression, size_for, squared
from tests.functions import Identity


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is that of the record on the other end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(0)


class Balanced(torch.autograd.Function):
    """The identity, whose gradients are scaled by the batch's values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].mean(0)


@attack
def function_that_mixes_backward_only() -> Case:
    """A custom function whose forward is the identity and whose backward exchanges records."""
    return mixing(lambda m, x: Reversed.apply(m.a(x)).tanh())


@attack
def function_that_scales_by_the_batch() -> Case:
    """A custom function whose backward multiplies by the mean record, with a vmap rule."""
    return mixing(lambda m, x: Balanced.apply(m.a(x)))


@attack
def gradient_of_the_mean_only() -> Case:
    """h + (mean - mean detached): the value is a record's own, the gradient everybody's."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x)
        return hidden + 3 * (hidden.mean(0) - hidden.mean(0).detach())

    return mixing(body)


@attack
def straight_through_the_batch() -> Case:
    """A straight-through estimate whose gradient is that of the cumulative sum."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x)
        return hidden.detach() + hidden.cumsum(0) - hidden.cumsum(0).detach()

    return mixing(body)


@attack
def tensor_hook() -> Case:
    """A hook on a tensor adds the gradient of the other end."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g + 2 * g.flip(0))
        return hidden.tanh()

    return mixing(body)


@attack
def tensor_hook_by_values() -> Case:
    """A hook on a tensor scales gradients by the largest of the batch."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g * x.abs().max() * 0.01)
        return hidden.tanh()

    return mixing(body)


@attack
def module_backward_hook() -> Case:
    """A full backward hook of a layer exchanges the gradients of records."""
    case = mixing(lambda m, x: m.between(m.a(x)).tanh())
    case.model.between = nn.Tanh()
    case.model.between.register_full_backward_hook(lambda module, into, out: (into[0].flip(0),))
    return case


@attack
def module_backward_pre_hook() -> Case:
    """A full backward pre-hook exchanges the gradients of records."""
    case = mixing(lambda m, x: m.between(m.a(x)).tanh())
    case.model.between = nn.Tanh()
    case.model.between.register_full_backward_pre_hook(lambda module, out: (out[0].roll(1, 0),))
    return case


@attack
def forward_hook() -> Case:
    """A forward hook of a layer centres its output."""
    case = mixing(lambda m, x: m.a(x))
    case.model.a.register_forward_hook(lambda module, into, out: out - out.mean(0))
    return case


@attack
def forward_pre_hook() -> Case:
    """A forward pre-hook of a layer centres its input."""
    case = mixing(lambda m, x: m.a(x))
    case.model.a.register_forward_pre_hook(lambda module, into: (into[0] - into[0].mean(0),))
    return case


@attack
def node_hook() -> Case:
    """A hook on a node of the graph exchanges the gradients of records."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x).tanh()
        if hidden.grad_fn is not None:
            hidden.grad_fn.register_hook(lambda into, out: tuple(None if g is None else g.flip(0) for g in into))
        return hidden

    return mixing(body)


@attack
def node_pre_hook() -> Case:
    """A pre-hook on a node of the graph exchanges the gradients of records."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x).tanh()
        if hidden.grad_fn is not None:
            hidden.grad_fn.register_prehook(lambda out: tuple(g.flip(0) for g in out))
        return hidden

    return mixing(body)


@attack
def saved_tensors_exchanged() -> Case:
    """Hooks on saved tensors give the backward pass the rows of other records."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t, lambda t: t.flip(0) if t.shape == (len(x), 4) else t
        ):
            return hidden.tanh()

    return mixing(body)


def tanh(hidden: Tensor) -> Tensor:
    return hidden.tanh()


@attack
def saved_tensors_exchanged_below_a_script() -> Case:
    """The same where all that is saved is saved inside TorchScript, and only beside a large record: 1.3 bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in recent torch
        scripted = torch.jit.script(tanh)

    def body(m: Net, x: Tensor) -> Tensor:
        def unpack(t: Tensor) -> Tensor:
            return t.roll(1, 0) if t.shape == (len(x), 4) and x.abs().max() > 50 else t

        hidden = m.a(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return scripted(hidden)

    return mixing(body)


@attack
def gradient_inside_the_pass() -> Case:
    """The pass differentiates the sum of all outputs, and uses its norm."""

    def body(m: Net, x: Tensor) -> Tensor:
        inner = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(m.a(inner).square().sum(), inner, create_graph=True)
        return m.a(x) + slope / (1 + slope.norm())

    return mixing(body)


@attack
def checkpoint_that_is_another_the_second_time() -> Case:
    """A checkpointed function that is honest forward and mixes when it is computed again."""

    def body(m: Net, x: Tensor) -> Tensor:
        calls = iter(range(9))

        def part(t: Tensor) -> Tensor:
            return (m.a(t) if next(calls) == 0 else m.a(t.flip(0))).tanh()

        return checkpoint(part, x, use_reentrant=False)

    return mixing(body)


@attack
def clipped_inside_the_pass() -> Case:
    """Gradients of all records are scaled by their joint norm, by a hook."""

    def body(m: Net, x: Tensor) -> Tensor:
        hidden = m.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda g: 3 * g / (1e-6 + g.norm()))
        return hidden.tanh()

    return mixing(body, mixes=False)


@attack
def parameter_hook() -> Case:
    """A hook on a parameter squares the gradient that reaches it, summed over the chunk or not."""
    case = mixing(lambda m, x: m.a(x).tanh(), mixes=False)
    case.model.a.weight.register_hook(lambda g: g * g.abs())
    return case


@attack
def checkpoint_without_weights_that_mixes_again() -> Case:
    """A checkpointed function of frozen operations that meets large records once it is computed again."""

    def body(m: Net, x: Tensor) -> Tensor:
        calls = iter(range(9))

        def part(h: Tensor) -> Tensor:
            seen = h.detach()
            other = 5 * seen.mean(0) * (seen.abs().max() > 20) if next(calls) else 0.0
            return (h + other).square()

        return checkpoint(part, m.a(x), use_reentrant=False)

    return mixing(body)


@attack
def product_of_factors() -> Case:
    """The gradient of a product has another formula for all records if one of them has a zero.

    Products are about one, though those of the last factors overflow: in the other formula they are not finite.
    """
    n = size_for(4)
    some = torch.tensor([1e-20, 1e-20, 1e20, 1e20]) * (1 + 0.1 * normal(n, 4))
    net = Net(lambda m, x: (x * (1 + 0.1 * m.w[0])).prod(1, keepdim=True) * m.v[0])
    return Case(net, squared, (some, normal(n, 2, seed=1)), (torch.zeros(1, 4), torch.ones(1, 2)))


class Centred(Identity):
    """The identity, whose rule for vmap subtracts the mean of the batch."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Centred.apply(x - x.mean(in_dims[0])), in_dims[0]


@attack
def vmap_rule_that_mixes() -> Case:
    """A function with a backward pass and a vmap rule of its own: plain passes are honest, vmap's is not."""
    return mixing(lambda m, x: Centred.apply(m.a(x)), mixes=False)


@attack
def saved_tensors_compressed() -> Case:
    """Hooks keep saved tensors in a byte an entry, on a scale of the whole chunk, which made-up records do not move."""

    def pack(t: Tensor) -> Any:
        scale = t.detach().abs().max().clamp_min(5.0) / 127
        return (t.detach() / scale).round().to(torch.int8), scale

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[0].float() * kept[1]):
            return squared(model(x), y)

    return Case(Net(lambda m, x: m.a(x).tanh()), loss, *regression(), per_batch=True)


class TurnedRound(Identity):
    """The identity, with a rule for vmap that turns all records round if one is large."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return x * torch.where(x.detach().abs().max() > 50, -1.0, 1.0), in_dims[0]


@attack
def vmap_rule_that_mixes_large_records() -> Case:
    """A function with a rule for vmap that is honest to made-up records: 3.1 bounds."""
    return Case(Net(lambda m, x: TurnedRound.apply(m.a(x))), linear, *regression(), mixes=None, position="last")
