"""Deliberately broken rules: the contract must notice each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpilot import clipping
from dpilot.clipping import State, contract
from tests.thin import thin

Clip = Callable[[Tensor, State, Tensor, Tensor], tuple[Tensor, Tensor]]
Update = Callable[[State, Tensor, State], State]


@dataclass(frozen=True)
class Altered:
    """A rule whose answers are changed on the way out."""

    rule: Any
    clipping: Clip = lambda norms, state, weights, extras: (weights, extras)
    updating: Update = lambda state, released, following: following
    starting: Callable[[State], State] = lambda state: state

    def init(self, **public: Any) -> State:
        return self.starting(self.rule.init(**public))

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        return self.clipping(norms, state, *self.rule.clip(norms, state))

    def update(self, state: State, released: Tensor) -> State:
        return self.updating(state, released, self.rule.update(state, released))


def _scaled_weights(factor: float) -> Clip:
    return lambda norms, state, weights, extras: (weights * factor, extras)


def _scaled_extras(factor: float) -> Clip:
    return lambda norms, state, weights, extras: (weights, extras * factor)


def _bound(of: Callable[[State], Tensor]) -> dict[str, Any]:
    """A rule that announces another bound, and reads its own one back."""
    change = lambda state: replace(state, bound=of(state))  # noqa: E731
    return {"starting": change, "updating": lambda state, released, following: change(following)}


def _inverse_norm(norms: Tensor, state: State, weights: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
    return (state.threshold / norms).to(norms.dtype), extras


def _uncentred(norms: Tensor, state: State, weights: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
    return weights, extras + extras.abs()


def _realised(norms: Tensor, state: State, weights: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
    return weights, extras / max(len(norms), 1)


def _batch_median(norms: Tensor, state: State, weights: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
    if not len(norms):
        return weights, extras
    return weights * min(1.0, float(norms.nan_to_num(0.0, 0.0, 0.0).median()) + 0.1), extras


def _keeps_nulls(norms: Tensor, state: State, weights: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(torch.isfinite(norms), weights, 1.0), extras


def _no_floor(state: State, released: Tensor, following: State) -> State:
    threshold = torch.minimum(following.threshold, state.threshold * 0.9)
    return replace(following, threshold=threshold, bound=threshold / math.sqrt(1 - 1 / 401))


def _vanishing(state: State, released: Tensor, following: State) -> State:
    return replace(following, threshold=following.threshold * 0, bound=following.bound)


def _backwards(state: State, released: Tensor, following: State) -> State:
    threshold = state.threshold**2 / following.threshold
    return replace(following, threshold=threshold, bound=following.bound * threshold / following.threshold)


def _reads_back(norms: Tensor, state: State, weights: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
    return weights * min(1.0, float(state.threshold) + 1e9), extras


@dataclass
class Remembering:
    """A quantile rule that divides by the batch size it saw, as published code did."""

    rule: Any
    seen: int = 1

    def init(self, **public: Any) -> State:
        return self.rule.init(**public)

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        self.seen = max(len(norms), 1)
        return self.rule.clip(norms, state)

    def update(self, state: State, released: Tensor) -> State:
        return self.rule.update(state, released * state.expected_batch_size / self.seen)


def get(name: str, **parameters: Any) -> Any:
    return clipping.get(name, **parameters)


BROKEN = {
    "constant: weight too large": Altered(get("constant"), _scaled_weights(1 + 1e-6)),
    "constant: 1 / n": Altered(get("constant"), _inverse_norm),
    "constant: weight of the batch": Altered(get("constant"), _batch_median),
    "constant: nulls kept": Altered(get("constant"), _keeps_nulls),
    "constant: threshold vanishes": Altered(get("constant"), updating=_vanishing),
    "constant: waits for the device": Altered(get("constant"), _reads_back),
    "auto-s: gamma dropped": Altered(get("auto-s"), _inverse_norm),
    "auto-s: 1 % more": Altered(get("auto-s"), _scaled_weights(1.01)),
    "auto-v: gamma dropped, nothing at 0": Altered(get("auto-v"), _inverse_norm),
    "auto-v: 1 % more": Altered(get("auto-v"), _scaled_weights(1.01)),
    "psac: softening dropped": Altered(get("psac"), _inverse_norm),
    "psac: twice the softening's weight": Altered(get("psac"), _scaled_weights(1.2)),
    "quantile: bound not inflated": Altered(get("quantile"), **_bound(lambda state: state.threshold)),
    "quantile: not centred": Altered(get("quantile"), _uncentred),
    "quantile: realised denominator in clip": Altered(get("quantile"), _realised),
    "quantile: realised denominator in update": Remembering(get("quantile")),
    "quantile: backwards": Altered(get("quantile"), updating=_backwards),
    "esipova: not centred": Altered(get("esipova"), _uncentred),
    "bounded: floor ignored": Altered(get("bounded"), updating=_no_floor),
    "slack: slots scaled by 1.2": Altered(get("slack"), _scaled_extras(1.2)),
    "slack: slots scaled by 1.01": Altered(get("slack"), _scaled_extras(1.01)),
    "slack: backwards": Altered(get("slack"), updating=_backwards),
    "slack-q: slots scaled by 1.2": Altered(get("slack-q"), _scaled_extras(1.2)),
    "bounded-slack: floor ignored": Altered(get("bounded-slack"), updating=_no_floor),
    "histogram-p: bound not inflated": Altered(get("histogram-p"), **_bound(lambda state: state.threshold)),
    "histogram-p: realised denominator": Remembering(get("histogram-p")),
    "histogram-e: bound not inflated": Altered(get("histogram-e"), **_bound(lambda state: state.threshold)),
    "histogram-e: bars too high": Altered(get("histogram-e"), _scaled_extras(1.05)),
    "mse: bound not inflated": Altered(get("mse"), **_bound(lambda state: state.threshold)),
    "mse: backwards": Altered(get("mse"), updating=_backwards),
    "one-shot: gradients beside the bits": Altered(
        get("one-shot"), lambda norms, state, weights, extras: (weights + 0.1, extras)
    ),
    "one-shot: bits too large": Altered(get("one-shot"), _scaled_extras(1.001)),
    "normalized: bound divided, weights not": Altered(
        get("constant", threshold=2.0), **_bound(lambda state: state.bound / state.threshold)
    ),
    "layer-wise: one layer's bound for all": Altered(
        get("constant", groups=3), **_bound(lambda state: state.bound / math.sqrt(3))
    ),
    "layer-wise: null layer, live record": Altered(get("constant", groups=3), _keeps_nulls),
    "layer-wise: slots scaled by 1.2": Altered(get("slack", groups=3), _scaled_extras(1.2)),
}


@pytest.mark.parametrize("name", thin(BROKEN, 2))
def test_contract_notices(name: str) -> None:
    torch.set_num_threads(1)
    with pytest.raises((AssertionError, RuntimeError)):
        contract.check_all(BROKEN[name])


@pytest.mark.parametrize("name", ["constant", "quantile", "slack", "one-shot"])
def test_contract_does_not_notice_what_is_not_broken(name: str) -> None:
    contract.check_all(Altered(clipping.get(name)))


def test_every_rule_is_broken_somewhere() -> None:
    assert set(clipping.names()) <= {name.split(":")[0] for name in BROKEN}


def test_a_rule_that_waits_for_the_device_is_the_only_thing_that_raises_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        contract.check_device(BROKEN["constant: waits for the device"])
