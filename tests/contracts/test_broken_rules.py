"""Every layer rule, broken in the way people break it, fails the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpilot.engine import api, base, single_backward
from dpilot.engine.layers import attention, broadcast, conv, embedding, fallback, linear, norm, recurrent
from dpilot.engine.layers.base import Dense
from dpilot.errors import UnsupportedModel
from tests.contracts.test_engines import assert_contract
from tests.contracts.zoo import DEVICE, build


@dataclass(frozen=True)
class Mutation:
    """What is broken: an attribute of an owner, replaced by a function of its original; and models that show it."""

    owner: Any
    attribute: str
    broken: Callable[[Any], Any]
    models: tuple[str, ...]


def zeroed(make: Any) -> Any:
    """A maker of uses that leaves zeros."""

    def wrapped(*args: Any) -> Any:
        inner = make(*args)

        def use(saved: Any, e: Tensor) -> Any:
            return inner(saved, torch.zeros_like(e))

        return use

    return wrapped


def with_geometry(**changes: Any) -> Callable[[Any], Any]:
    """A convolution recorded with another geometry, where its shapes allow it."""

    def broken(make: Any) -> Any:
        def wrapped(geometry: Any, *args: Any) -> Any:
            size = len(geometry.kernel)
            return make(replace(geometry, **{k: (v,) * size for k, v in changes.items()}), *args)

        return wrapped

    return broken


def turned(original: Any) -> Any:
    def weighted_sum(self: Any, weights: Tensor) -> Tensor:
        result = original(self, weights)
        return result.T.contiguous() if result.shape[0] == result.shape[-1] else result

    return weighted_sum


def shifted_groups(original: Any) -> Any:
    return lambda self, start, stop: original(self, start, stop).roll(1, dims=1)


class RolledFirst(list):  # type: ignore[type-arg]
    """Reads another list, its first entry rolled by one token."""

    def __init__(self, source: list[Tensor]) -> None:
        super().__init__()
        self.source = source

    def __getitem__(self, index: Any) -> Any:
        value = self.source[index]
        return value.roll(-1, dims=1) if index == 0 else value

    def __len__(self) -> int:
        return len(self.source)


def repeats_counted_apart(original: Any) -> Any:
    def measure(self: Any) -> Any:
        rows = self.rows.flatten(1).square().sum(1)
        return rows.new_zeros(self.batch_size).index_add_(0, self.owners, rows), self

    return measure


def no_padding(original: Any) -> Any:
    return lambda weight, n, padding: original(weight, n, None)


def last_only(original: Any) -> Any:
    return lambda uses: original(list(uses)[-1:])


def norms_apart(original: Any) -> Any:
    """|g1|^2 + |g2|^2 instead of |g1 + g2|^2."""

    def broken(uses: Any) -> Any:
        parts = [original([u]) for u in uses]
        return sum(p[0] for p in parts), tuple(u for p in parts for u in p[1])

    return broken


def raw_input(original: Any) -> Any:
    return lambda n, normalise, kept, channel: original(n, lambda x: x, kept, channel)


def swap_first_two(original: Any) -> Any:
    def thirds(scope: Any, weight: Any) -> Any:
        q, k, v = original(scope, weight)
        return (k, q, v) if scope.is_weight(weight) and weight.dim() == 1 else (q, k, v)

    return thirds


def untapped(original: Any) -> Any:
    """Repeats a parameter for every sample and leaves no tap."""

    def spread(self: Any, weight: Tensor, like: Tensor, dims: int | None = None) -> Tensor:
        dims = like.dim() if dims is None else dims
        if weight.dim() >= dims:
            return original(self, weight, like, dims)
        return broadcast.repeat_view(weight.data, dims, like.shape[0])

    return spread


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: original(*args, **kwargs) * factor


MUTATIONS = {
    "linear drops its bias": Mutation(linear, "bias_use", zeroed, ("mlp", "linear_gram")),
    "linear sums the transpose": Mutation(linear.Product, "weighted_sum", turned, ("linear_gram",)),
    "materialised linear is transposed": Mutation(
        linear.Product,
        "gradients",
        lambda f: lambda self, *at: f(self, *at).mT.reshape_as(f(self, *at)),
        ("self_attention", "linear_many_dimensions"),
    ),
    "linear norm ignores pairs of tokens": Mutation(
        linear, "gram", lambda _: lambda a, e: (a.square().sum(2) * e.square().sum(2)).sum(1), ("linear_gram",)
    ),
    "linear magnitude halves one token": Mutation(linear.Product, "magnitude", scaled(0.5), ("mlp",)),
    "linear forgets to merge repeats": Mutation(
        single_backward, "merge", lambda _: lambda uses: uses[0], ("reused_module",)
    ),
    "swapped storage is ignored": Mutation(
        linear, "product_use", lambda make: lambda n, _, *more: make(n, False, *more), ("everything_square",)
    ),
    "convolution drops its bias": Mutation(conv, "channel_bias_use", zeroed, ("conv2d", "conv_transposed")),
    "convolution ignores stride": Mutation(conv, "convolution_use", with_geometry(stride=1), ("conv2d", "conv1d")),
    "convolution ignores dilation": Mutation(conv, "convolution_use", with_geometry(dilation=1), ("conv1d",)),
    "convolution exchanges groups": Mutation(conv.Correlation, "_columns", shifted_groups, ("conv_groups",)),
    "convolution norm of the wrong positions": Mutation(
        conv.Correlation, "_error_columns", lambda f: lambda *a: f(*a).flip(-1), ("conv2d", "conv_gram")
    ),
    "transposed convolution exchanges groups": Mutation(
        conv.Correlation, "_columns", shifted_groups, ("conv_transposed",)
    ),
    "embedding counts repeated words apart": Mutation(
        embedding.Lookups, "measure", repeats_counted_apart, ("embedding",)
    ),
    "embedding trains its padding": Mutation(embedding, "lookup_use", no_padding, ("embedding",)),
    "bags average without padding": Mutation(
        embedding,
        "reduce_bags",
        lambda f: lambda rows, present, mode: f(rows, torch.ones_like(present), mode),
        ("embedding_bags",),
    ),
    "norm layers scale raw inputs": Mutation(norm, "scale_use", raw_input, ("layer_norm", "rms_norm", "channel_norms")),
    "norm layers drop their shift": Mutation(
        norm, "shift_use", zeroed, ("layer_norm", "channel_norms", "frozen_batch_norm")
    ),
    "attention exchanges biases": Mutation(
        attention, "thirds", swap_first_two, ("cross_attention", "transformer_decoder")
    ),
    "recurrent layers see the wrong state": Mutation(
        recurrent,
        "uses_of",
        lambda f: lambda s, w, late: f(s, w, RolledFirst(late)),
        ("lstm", "gru", "recurrent_plain"),
    ),
    "gru ignores its reset gate": Mutation(recurrent, "behind_gate", lambda _: lambda e, late: e, ("gru", "gru_deep")),
    "bare parameters are not counted": Mutation(
        single_backward.Recorder,
        "spread",
        untapped,
        ("bare_parameters", "vision_transformer"),
    ),
    "fallback doubles": Mutation(fallback, "per_sample", scaled(2.0), ("rare_operations",)),
    "derived weights are dropped": Mutation(
        single_backward, "pull_back", lambda _: lambda *_: [], ("parametrised", "lora")
    ),
    "repeated rows are not summed": Mutation(
        single_backward, "sum_to", lambda f: lambda v, b: f(v, b) * 0.5, ("vision_transformer",)
    ),
    "a repeated use is overwritten": Mutation(
        single_backward, "combine", last_only, ("reused_module", "tied_embeddings", "bare_parameters")
    ),
    "repeated uses are measured apart": Mutation(
        single_backward, "combine", norms_apart, ("reused_module", "tied_embeddings")
    ),
    "sums ignore the weights": Mutation(
        Dense, "weighted_sum", lambda f: lambda self, w: f(self, torch.ones_like(w)), ("mlp",)
    ),
    "norms are a thousandth too small": Mutation(base, "inflate", scaled(0.999), ("mlp", "linear_gram", "resnet")),
    "broadcast sums are squared": Mutation(
        Dense, "measure", lambda f: lambda self: (f(self)[0] ** 2, self), ("layer_norm",)
    ),
}


def everything_square() -> Any:
    """Square matrices stored both ways, so that a transpose has the right shape."""
    from torch import nn

    from tests.contracts.zoo import classify

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.left) @ self.right.T

    torch.manual_seed(0)
    return classify(Square(), 5)


def case_of(name: str) -> Any:
    return everything_square() if name == "everything_square" else build(name, torch.float32)


NOT_ON_A_GPU = {"sums ignore the weights", "broadcast sums are squared"}
PAIRS = [
    pytest.param(what, model, marks=() if model == mutation.models[0] else pytest.mark.slow)
    for what, mutation in MUTATIONS.items()
    for model in mutation.models
]
"""One model a mutation in ``make test``; the others are slow."""


@pytest.mark.parametrize(("what", "model"), PAIRS)
def test_a_broken_rule_fails_the_contract(what: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type != "cpu" and what in NOT_ON_A_GPU:
        pytest.skip("small gradients are laid side by side on a GPU: this rule does not sum there")
    mutation = MUTATIONS[what]
    monkeypatch.setattr(api, "examine", lambda *_: "not examined")  # the contract alone must notice
    original = getattr(mutation.owner, mutation.attribute)
    monkeypatch.setattr(mutation.owner, mutation.attribute, mutation.broken(original))
    with pytest.raises(AssertionError):
        assert_contract(case_of(model), "single-backward", torch.float32)


def test_square_matrices_keep_the_contract() -> None:
    """As every model of the zoo does in tests/contracts/test_engines.py."""
    assert_contract(everything_square(), "single-backward", torch.float32)


def test_a_broken_second_pass_fails_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_backward, "used_once", lambda recorder: set(single_backward.names))
    with pytest.raises((AssertionError, UnsupportedModel)):  # made-up samples notice it first
        assert_contract(build("reused_module", torch.float32), "low-memory", torch.float32)


def test_the_first_call_notices_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build("mlp", torch.float32)
    monkeypatch.setattr(linear, "bias_use", zeroed(linear.bias_use))
    with pytest.raises(UnsupportedModel):
        api.per_sample(case.model, case.loss, case.batch)
