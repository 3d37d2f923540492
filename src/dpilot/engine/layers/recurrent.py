"""LSTM, GRU and plain recurrent layers: several layers, both directions, without vmap.

The recurrence is unrolled over time for the whole batch. All inputs of a layer are projected at once and the projection
is tapped: the gradient of the pre-activations at time t, which arrives there, serves the input weights (with x_t) and
the recurrent weights (with h_{t-1}) alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.base import NoRule
from dpilot.engine.layers.base import MakeUse, Operation, Scope, Use, detach_unseen, plain, rule
from dpilot.engine.layers.linear import bias_use, linear, product, product_use

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, "Weights"], tuple[State, Tensor | None]]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one layer and direction; ``projection`` is an LSTM's proj_size matrix."""

    inputs: Tensor
    recurrent: Tensor
    input_bias: Tensor | None
    recurrent_bias: Tensor | None
    projection: Tensor | None


def lstm_cell(z: Tensor, state: State, w: Weights) -> tuple[State, Tensor | None]:
    """(i, f, g, o) = z + W h; c' = f c + i g; h' = o tanh(c')."""
    h, c = state
    i, f, g, o = torch.chunk(z + F.linear(h, w.recurrent, w.recurrent_bias), 4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(c), c), None


def gru_cell(z: Tensor, state: State, w: Weights) -> tuple[State, Tensor | None]:
    """r, u from z + W h; n = tanh(z_n + r (W_n h + b_n)); h' = (1 - u) n + u h. Gives r: it scales W_n's gradient."""
    h = state[0]
    zr, zu, zn = z.chunk(3, dim=-1)
    hr, hu, hn = F.linear(h, w.recurrent, w.recurrent_bias).chunk(3, dim=-1)
    r, u = torch.sigmoid(zr + hr), torch.sigmoid(zu + hu)
    new = torch.tanh(zn + r * hn)
    return (new + u * (h - new),), r


def plain_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    """h' = activation(z + W h)."""

    def cell(z: Tensor, state: State, w: Weights) -> tuple[State, Tensor | None]:
        return (activation(z + F.linear(state[0], w.recurrent, w.recurrent_bias)),), None

    return cell


CELLS: dict[str, Cell] = {
    "lstm": lstm_cell,
    "gru": gru_cell,
    "rnn_tanh": plain_cell(torch.tanh),
    "rnn_relu": plain_cell(torch.relu),
}


def layer(scope: Scope, cell: Cell, x: Tensor, state: State, w: Weights) -> tuple[Tensor, State]:
    """One layer, one direction, x (n, T, d) -> (n, T, h) and the last state."""
    late: list[Tensor] = []  # h_{t-1} for all t, and what a GRU's reset gates were: known only after the unrolling
    z = F.linear(x, plain(scope, w.inputs), plain(scope, w.input_bias))
    z = scope.tap(z, (detach_unseen(x),), uses_of(scope, w, late))
    bare = replace(w, recurrent=plain(scope, w.recurrent), recurrent_bias=plain(scope, w.recurrent_bias))
    before, gates, outputs = [], [], []
    for z_t in z.unbind(1):
        before.append(detach_unseen(state[0]))
        state, gate = cell(z_t, state, bare)
        if w.projection is not None:
            h = linear(scope, state[0], w.projection, None)
            state = (h, *state[1:])
        if gate is not None:
            gates.append(detach_unseen(gate))
        outputs.append(state[0])
    late.append(torch.stack(before, dim=1))
    if gates:
        late.append(torch.stack(gates, dim=1))
    return torch.stack(outputs, dim=1), state


def uses_of(scope: Scope, w: Weights, late: list[Tensor]) -> list[tuple[Tensor, MakeUse]]:
    """What the gradient of the projected inputs leaves for the weights of a layer."""
    n = scope.batch_size

    def recurrent(_: tuple[Tensor, ...], e: Tensor) -> Use:
        return product(late[0], behind_gate(e, late), n)

    def recurrent_bias(saved: tuple[Tensor, ...], e: Tensor) -> Use:
        return bias_use(n)(saved, behind_gate(e, late))

    table: list[tuple[Tensor | None, MakeUse]] = [
        (w.inputs, product_use(n, False)),
        (w.recurrent, recurrent),
        (w.input_bias, bias_use(n)),
        (w.recurrent_bias, recurrent_bias),
    ]
    return [(weight, make) for weight, make in table if weight is not None and scope.is_weight(weight)]


def behind_gate(e: Tensor, late: Sequence[Tensor]) -> Tensor:
    """The gradient of W h + b: that of z, but for a GRU's new state, which the reset gate scales."""
    if len(late) == 1:
        return e
    size = late[1].shape[-1]
    return torch.cat([e[..., : 2 * size], e[..., 2 * size :] * late[1].to(e.dtype)], dim=-1)


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(
    scope: Scope, operation: Operation, x: Tensor, hidden: Any, flat: Any, has_biases: Any, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: Any = None,
) -> Any:  # fmt: skip
    if batch_first is None or isinstance(flat, Tensor):
        raise NoRule("packed sequences keep time first. Pad the sequences and mask the loss, or give one length.")
    cell = CELLS[operation.__name__]
    states = list(
        zip(*(by_layer(scope, h) for h in (hidden if isinstance(hidden, (tuple, list)) else (hidden,))), strict=True)
    )
    x = x if batch_first else x.transpose(0, 1)
    last: list[State] = []
    directions = 2 if bidirectional else 1
    for depth in range(num_layers):
        sides = []
        for side in range(directions):
            at = depth * directions + side
            weights = weights_at(
                flat, at, bool(has_biases), projected=len(flat) // len(states) > 2 + 2 * bool(has_biases)
            )
            start = tuple(at_start(scope, s, x) for s in states[at])
            out, end = layer(scope, cell, x.flip(1) if side else x, start, weights)
            sides.append(out.flip(1) if side else out)
            last.append(end)
        x = torch.cat(sides, dim=-1) if bidirectional else sides[0]
        if dropout and train and depth < num_layers - 1:
            x = F.dropout(x, dropout)
    ends = tuple(torch.stack(column) for column in zip(*last, strict=True))
    return x if batch_first else x.transpose(0, 1), *ends


def weights_at(flat: Sequence[Tensor], at: int, has_biases: bool, projected: bool) -> Weights:
    """The weights of one layer and direction from torch's flat list."""
    each = 2 + 2 * has_biases + projected
    mine = list(flat[at * each : (at + 1) * each])
    first, second = (mine[2], mine[3]) if has_biases else (None, None)
    return Weights(mine[0], mine[1], first, second, mine[-1] if projected else None)


def by_layer(scope: Scope, states: Tensor) -> Sequence[Tensor]:
    """(layers, n, h) as one (n, h) a layer; parts of a trained state are weights."""
    parts: Sequence[Tensor] = scope.derive(torch.unbind, states) if scope.is_weight(states) else states.unbind(0)
    return parts


def at_start(scope: Scope, state: Tensor, x: Tensor) -> Tensor:
    """A first state (n, h); a trained one is spread over the samples of x."""
    return scope.spread(state, x, 2) if scope.is_weight(state) else state


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def _cell(
    scope: Scope,
    operation: Operation,
    x: Tensor,
    hidden: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Any = None,
    b_hh: Any = None,
) -> Any:
    state = tuple(hidden) if isinstance(hidden, (tuple, list)) else (hidden,)
    weights = Weights(w_ih, w_hh, b_ih, b_hh, None)
    start = tuple(at_start(scope, s, x) for s in state)
    _, end = layer(scope, CELLS[operation.__name__.removesuffix("_cell")], x.unsqueeze(1), start, weights)
    return end if isinstance(hidden, (tuple, list)) else end[0]
