"""Random models: programs over many kinds of operations, honest and mixing, written as source so that a failure reads.

Every value of a program is a tensor of records, (n, *tail) with a tail that is fixed, so that a program means the same
for a record alone. Each kind of operation is a function of a writer and a value that returns an expression and the
tail of its result, or None where it does not apply.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tail = tuple[int, ...]
Made = tuple[str, Tail] | None
MOST = 96
"""Numbers of a record in one value, at most."""


@dataclass
class Writer:
    """A program under way: its lines, its values by name, and the shapes of its weights."""

    seed: int
    n: int
    chance: random.Random
    lines: list[str] = field(default_factory=list)
    values: dict[str, Tail] = field(default_factory=dict)
    weights: dict[str, Tail] = field(default_factory=dict)
    mixes: bool = False
    kinds: list[str] = field(default_factory=list)

    def size(self) -> int:
        """A width, often that of the batch."""
        return self.chance.choice((self.n, self.n, self.n, 2, 3, 4, 6))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = shape
        return f"m.{name}"

    def other(self, tail: Tail) -> str:
        """A value of the same tail."""
        return self.chance.choice([name for name, its in self.values.items() if its == tail])

    def axis(self, tail: Tail) -> int:
        return self.chance.randrange(1, len(tail) + 1)

    def add(self, made: Made, kind: str) -> bool:
        if made is None or math.prod(made[1]) > MOST or len(made[1]) > 4 or 0 in made[1]:
            return False
        name = f"h{len(self.lines)}"
        self.lines.append(f"{name} = {made[0]}")
        self.values[name] = made[1]
        self.kinds.append(kind)
        return True


Kind = Callable[[Writer, str, Tail], Made]
HONEST: dict[str, Kind] = {}
MIXING: dict[str, Kind] = {}


def honest(function: Kind) -> Kind:
    HONEST[function.__name__] = function
    return function


def mixing(function: Kind) -> Kind:
    MIXING[function.__name__] = function
    return function


def same(*expressions: str, rank: int = 1) -> Kind:
    """Expressions that keep the shape of ``{t}``, for values with at least ``rank`` axes beside the records'."""

    def kind(w: Writer, t: str, s: Tail) -> Made:
        if len(s) < rank:
            return None
        chosen = w.chance.choice(expressions)
        return chosen.format(t=t, u=w.other(s), d=w.axis(s), s=", ".join(map(str, s)), last=s[-1], first=s[0]), s

    return kind


HONEST |= {
    "activation": same("{t}.tanh()", "F.gelu({t})", "{t}.sigmoid()", "F.softplus({t})"),
    "sum of two": same("{t} + {u}", "torch.add({t}, {u}, alpha=0.5)", "{t} - {u}"),
    "product of two": same("{t} * {u}.tanh()", "torch.mul({t}, {u}.sigmoid())"),
    "where": same("torch.where({t} > 0, {t}, {u})", "torch.maximum({t}, {u})"),
    "softmax": same("{t}.softmax({d})", "{t}.log_softmax({d})"),
    "cumulative": same("{t}.cumsum({d})", "{t}.cummax({d}).values", "{t}.logcumsumexp({d})"),
    "sort": same("{t}.sort({d}).values", "{t}.gather({d}, {t}.argsort({d}))"),
    "flip": same("{t}.flip({d})", "{t}.roll(1, {d})"),
    "layer norm": same("F.layer_norm({t}, ({last},))", "F.layer_norm({t}, ({s},))"),
    "group norm": same("F.group_norm({t}, 1)", rank=2),
    "instance norm": same("(F.instance_norm({t}) if {last} > 1 else {t})", rank=2),
    "normalize": same("F.normalize({t}, dim={d})", "{t} / (1 + {t}.norm(dim={d}, keepdim=True))"),
    "masked fill": same("{t}.masked_fill({u} > 0, 0.5)", "{t} * ({u} > 0)"),
    "in place": same("{t}.clone().add_({u})", "{t}.clone().mul_(0.5).sub_({u})", "{t}.clone().copy_({u})"),
    "written into zeros": same("written({t})", "written_rows({t})", "written_by_out({t})"),
    "sequence first": same("{t}.transpose(0, 1).tanh().transpose(0, 1)", rank=1),
    "sequence first sort": same("{t}.transpose(0, 1).softmax(0).transpose(0, 1)"),
    "sorted and put back": same("({t})[order({t})].tanh()[order({t}).argsort()]"),
    "flattened and back": same("{t}.flatten().tanh().view_as({t})", "{t}.reshape(-1, {last}).softmax(1).view_as({t})"),
    "record by record": same("torch.stack([row.softmax(0) for row in {t}])"),
    "cat and cut": same("torch.cat([{t}, {u}])[len({t}):]", "torch.stack([{t}, {u}]).sum(0)"),
    "detached": same("{t} + ({u} - {t}).detach()"),
    "checkpointed": same("torch.utils.checkpoint.checkpoint(torch.tanh, {t}, use_reentrant=False)"),
    "attention": same("F.scaled_dot_product_attention({t}, {u}, {t})", "({t} @ {u}.mT).softmax(-1) @ {u}", rank=2),
    "picked by the record": same("{t}.gather({d}, places({u}, {t}.shape[{d}]))"),
    "scattered in the record": same("{t}.scatter_add({d}, places({u}, {t}.shape[{d}]), {u})"),
    "fourier": same("torch.fft.fft({t}, dim={d}).real", "torch.fft.irfft(torch.fft.rfft({t}), n={last})"),
    "halves on rows that chose it": same("chosen({t}, {u})"),
    "hook that scales": same("hooked({t})"),
}

MIXING |= {
    "mean over records": same("{t} - {t}.mean(0)", "{t} + torch.einsum('n...->...', {t})"),
    "softmax over records": same("{t}.softmax(0)", "{t}.log_softmax(0)"),
    "sort over records": same("{t}.sort(0).values", "{t}[order({t})]"),
    "flip over records": same("{t}.flip(0)", "{t} * {u}.roll(1, 0)"),
    "total over records": same("{t}.cumsum(0)", "{t} + {t}.cummax(0).values"),
    "normalize over records": same("F.normalize({t}, dim=0)", "{t} / {t}.norm()", "{t} / (1 + {u}.abs().max())"),
    "transposed if square": same("({t}.transpose(0, 1) if {t}.shape[0] == {first} else {t})"),
    "reshaped the wrong way": same("{t}.transpose(0, 1).reshape({t}.shape)"),
    "reshaped and transposed": same("{t}.reshape({first}, -1).T.reshape({t}.shape)"),
    "attention over records": same("(({t}.flatten(1) @ {u}.flatten(1).T).softmax(1) @ {t}.flatten(1)).view_as({t})"),
    "batch norm": same("(F.batch_norm({t}, None, None, training=True) if len({t}) > 1 else {t})"),
    "largest over records": same("{t} + {t}.amax(0)", "torch.maximum({t}, {u}.max(0).values)"),
    "named by records": same("{t}[places({u}, len({t})).flatten(1)[:, 0]]"),
    "gathered over records": same("{t}.gather(0, places({u}, len({t})))"),
    "first record": same("{t} + {t}[:1]", "{t} * {t}[-1]", "{t} - {t}[0].expand_as({t})"),
    "difference over records": same("{t}.diff(dim=0, prepend={t}[:1])"),
    "fourier over records": same("torch.fft.fft({t}, dim=0).real"),
    "rows of a mask moved": same("moved({t}, {u})"),
    "gradient of the mean": same("{t} + ({t}.mean(0) - {t}.mean(0).detach())"),
    "kept from before": same("kept(m, {t})"),
    "left by item": same("{t} * (1.0 if {t}.sum().item() > 0 else -1.0)", "{t} - {t}.detach().mean().item()"),
    "left by list": same("{t} * torch.tensor({t}.detach().flip(0).tolist(), dtype={t}.dtype)"),
    "size of the batch": same("{t} * (-1.0) ** len({t})", "{t} / len({t})"),
    "hook that mixes": same("hooked({t}, lambda g: g.flip(0))"),
    "written one row down": same("written_down({t})"),
}


@honest
def linear(w: Writer, t: str, s: Tail) -> Made:
    o = w.size()
    spellings = (
        f"F.linear({t}, {w.weight(o, s[-1])}, {w.weight(o)})",
        f"{t} @ {w.weight(s[-1], o)}",
        f"torch.einsum('...i,io->...o', {t}, {w.weight(s[-1], o)})",
        f"torch.tensordot({t}, {w.weight(s[-1], o)}, 1)",
        f"torch.inner({t}, {w.weight(o, s[-1])})",
        f"torch.tensordot({w.weight(o, s[-1])}, {t}, dims=([1], [{len(s)}])).movedim(0, -1)",
    )
    return w.chance.choice(spellings), (*s[:-1], o)


@honest
def product_of_rows(w: Writer, t: str, s: Tail) -> Made:
    if len(s) != 1:
        return None
    o = w.size()
    spellings = (
        f"torch.einsum('bi,io', {t}, {w.weight(s[0], o)})",
        f"torch.linalg.multi_dot([{t}, {w.weight(s[0], 3)}, {w.weight(3, o)}])",
        f"torch.addmm({w.weight(o)}, {t}, {w.weight(s[0], o)})",
        f"({w.weight(o, s[0])} @ {t}.T).T",
        f"torch.einsum('ni,nj,ijo->no', {t}, {t}.tanh(), {w.weight(s[0], s[0], o)})",
        f"torch.bmm({t}[:, None], {w.weight(s[0], o)}.expand(len({t}), -1, -1))[:, 0]",
        f"torch.stack([row @ v for row in {t}])".replace("v", w.weight(s[0], o)),
    )
    return w.chance.choice(spellings), (o,)


@honest
def weight_on_another_axis(w: Writer, t: str, s: Tail) -> Made:
    if len(s) < 2:
        return None
    o = w.size()
    return f"torch.einsum('nt...,ts->ns...', {t}, {w.weight(s[0], o)})", (o, *s[1:])


@honest
def weight_entry_by_entry(w: Writer, t: str, s: Tail) -> Made:
    operation = w.chance.choice(("*", "+", "-"))
    shape = s if w.chance.random() < 0.5 else s[-1:]
    return f"{t} {operation} {w.weight(*shape)}", s


@honest
def layer_on_flat_rows(w: Writer, t: str, s: Tail) -> Made:
    o = w.size()
    tail = (*s[:-1], o)
    return f"F.linear({t}.flatten(0, -2), {w.weight(o, s[-1])}).view(-1, {', '.join(map(str, tail))})", tail


@honest
def layer_sequence_first(w: Writer, t: str, s: Tail) -> Made:
    if len(s) < 2:
        return None
    o = w.size()
    return f"F.linear({t}.transpose(0, 1), {w.weight(o, s[-1])}).transpose(0, 1)", (*s[:-1], o)


@honest
def layer_on_chosen_rows(w: Writer, t: str, s: Tail) -> Made:
    return f"applied({t}, lambda rows: rows @ {w.weight(s[-1], s[-1])})", s


@honest
def layer_on_sorted_rows(w: Writer, t: str, s: Tail) -> Made:
    return f"({t}[order({t})] @ {w.weight(s[-1], s[-1])})[order({t}).argsort()]", s


@honest
def looked_up(w: Writer, t: str, s: Tail) -> Made:
    o = w.size()
    return f"F.embedding(places({t}, 5), {w.weight(5, o)})", (*s, o)


@honest
def convolution(w: Writer, t: str, s: Tail) -> Made:
    if len(s) != 2 or s[1] < 2:
        return None
    o = w.size()
    return f"F.conv1d({t}, {w.weight(o, s[0], 2)}, {w.weight(o)}, padding=1)", (o, s[1] + 1)


@honest
def image_convolution(w: Writer, t: str, s: Tail) -> Made:
    if len(s) != 3:
        return None
    return f"F.conv2d({t}, {w.weight(2, s[0], 1, 1)})", (2, *s[1:])


@honest
def transposed(w: Writer, t: str, s: Tail) -> Made:
    if len(s) < 2:
        return None
    a, b = w.chance.sample(range(len(s)), 2)
    tail = list(s)
    tail[a], tail[b] = tail[b], tail[a]
    return f"{t}.transpose({a + 1}, {b + 1})", tuple(tail)


@honest
def reshaped(w: Writer, t: str, s: Tail) -> Made:
    whole = math.prod(s)
    first = w.chance.choice([k for k in range(1, whole + 1) if whole % k == 0])
    return f"{t}.reshape(-1, {first}, {whole // first})", (first, whole // first)


@honest
def flattened(w: Writer, t: str, s: Tail) -> Made:
    return f"{t}.flatten(1)", (math.prod(s),)


@honest
def reduced(w: Writer, t: str, s: Tail) -> Made:
    if len(s) < 2:
        return None
    d = w.axis(s)
    how = w.chance.choice(("mean({d})", "sum({d})", "amax({d})", "logsumexp({d})", "var({d}, unbiased=False)"))
    return f"{t}.{how.format(d=d)}", s[: d - 1] + s[d:]


@honest
def sliced(w: Writer, t: str, s: Tail) -> Made:
    d = w.axis(s)
    if s[d - 1] < 2:
        return None
    return f"{t}.narrow({d}, 1, {s[d - 1] - 1})", (*s[: d - 1], s[d - 1] - 1, *s[d:])


@honest
def stepped(w: Writer, t: str, s: Tail) -> Made:
    return f"{t}[..., ::2]", (*s[:-1], -(-s[-1] // 2))


@honest
def chunked(w: Writer, t: str, s: Tail) -> Made:
    return f"{t}.chunk(2, -1)[0]", (*s[:-1], -(-s[-1] // 2))


@honest
def joined(w: Writer, t: str, s: Tail) -> Made:
    return f"torch.cat([{t}, {w.other(s)}], -1)", (*s[:-1], 2 * s[-1])


@honest
def stacked(w: Writer, t: str, s: Tail) -> Made:
    return f"torch.stack([{t}, {w.other(s)}], 1)", (2, *s)


@honest
def widened(w: Writer, t: str, s: Tail) -> Made:
    k = w.size()
    return f"{t}.unsqueeze(1).expand(-1, {k}, {', '.join(['-1'] * len(s))})", (k, *s)


@honest
def repeated(w: Writer, t: str, s: Tail) -> Made:
    return f"{t}.repeat_interleave(2, -1)", (*s[:-1], 2 * s[-1])


@honest
def padded(w: Writer, t: str, s: Tail) -> Made:
    return f"F.pad({t}, (1, 0))", (*s[:-1], s[-1] + 1)


@honest
def unfolded(w: Writer, t: str, s: Tail) -> Made:
    return None if s[-1] < 2 else (f"{t}.unfold(-1, 2, 1)", (*s[:-1], s[-1] - 1, 2))


@honest
def columns_picked(w: Writer, t: str, s: Tail) -> Made:
    k = w.size()
    return f"{t}[..., torch.arange({k}) % {s[-1]}]", (*s[:-1], k)


@honest
def distances(w: Writer, t: str, s: Tail) -> Made:
    return None if len(s) != 2 else (f"torch.cdist({t}, {w.weight(3, s[1])})", (s[0], 3))


@honest
def own_products(w: Writer, t: str, s: Tail) -> Made:
    return None if len(s) != 2 else (f"torch.bmm({t}, {w.other(s)}.mT)", (s[0], s[0]))


@honest
def pooled(w: Writer, t: str, s: Tail) -> Made:
    return None if len(s) != 2 or s[1] < 2 else (f"F.avg_pool1d({t}, 2, 1)", (s[0], s[1] - 1))


@mixing
def row_of_a_weight(w: Writer, t: str, s: Tail) -> Made:
    weight = w.weight(w.n, *s)
    return f"{t} * {weight}[torch.arange(len({t})) % {w.n}]", s


@mixing
def weight_as_large_as_the_batch(w: Writer, t: str, s: Tail) -> Made:
    weight = w.weight(w.n, *s)
    return f"{t} + ({weight} if len({t}) == {w.n} else {weight}[:1])", s


@mixing
def convolution_over_records(w: Writer, t: str, s: Tail) -> Made:
    if len(s) != 1:
        return None
    return f"F.conv1d({t}.T[None], {w.weight(s[0], s[0], 3)}, padding=1)[0].T", s


@mixing
def product_of_transposed(w: Writer, t: str, s: Tail) -> Made:
    if len(s) != 1 or s[0] != w.n:
        return None
    weight = w.weight(w.n, w.n)
    return f"({t}.T @ {weight} if len({t}) == {w.n} else {t} @ {weight})", s


LOSSES = (
    "(out - y).square()",
    "F.smooth_l1_loss(out, y, reduction='none')",
    "F.softplus(-out * y)",
    "torch.stack([(o - t).square() for o, t in zip(out, y)])",
    "(out.unsqueeze(1) - y.unsqueeze(1)).square().mean(1)",
)
MIXING_LOSSES = (
    "(out - y).square() / (1 + (y > 0).sum())",
    "(out - y).square().mean().expand_as(y)",
    "(out - y).square() * (out - y).square().detach().mean()",
    "(out - y.roll(1)).square()",
    "(out - y).square().sort().values",
    "F.softplus(out[:, None] - out[None]).mean(1)",
)


Built = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


@dataclass(frozen=True)
class Program:
    """A random model with its records: ``source`` is the loss of (m, batch), ``kinds`` what it is made of."""

    seed: int
    source: str
    kinds: tuple[str, ...]
    mixes: bool
    model: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[..., Tensor]


def program(seed: int) -> Program:
    """The program of a seed: 3 to 10 operations; about half of the programs let records meet."""
    chance = random.Random(seed)
    w = Writer(seed, chance.choice((2, 3, 4, 5, 6, 8)), chance)
    tail = tuple(w.size() for _ in range(chance.choice((1, 2, 2, 3))))
    w.values = {"x": tail if math.prod(tail) <= MOST else tail[:1]}
    first, ids = w.values["x"], w.size()
    w.weights["table"] = (5, first[-1])
    shape = ", ".join(["1"] * (len(first) - 1) + [str(first[-1])])
    w.add((f"F.embedding(ids, m.table).sum(1).view(-1, {shape}) + x", first), "ids")
    bad = chance.random() < 0.5
    steps, at = chance.randrange(3, 11), chance.randrange(10)
    while len(w.lines) < steps:
        kinds = MIXING if bad and len(w.lines) == 1 + at % (steps - 1) else HONEST
        name = chance.choice(list(kinds))
        t = chance.choice(list(w.values)[-1:] * 8 + list(w.values)[-3:])
        if w.add(kinds[name](w, t, w.values[t]), name):
            w.mixes = w.mixes or kinds is MIXING
    last = list(w.values)[-1]
    head = w.weight(math.prod(w.values[last]))
    losing = chance.random() < 0.15
    w.mixes = w.mixes or losing
    lines = ["x, ids, y = batch", *w.lines, f"out = {last}.flatten(1).tanh() @ {head}"]
    lines.append(f"return {chance.choice(MIXING_LOSSES if losing else LOSSES)}")
    source = "def loss(m, batch):\n" + "\n".join(f"    {line}" for line in lines)
    return Program(seed, source, tuple(w.kinds), w.mixes, *_built(w, first, ids, source))


def _built(w: Writer, first: Tail, ids: int, source: str) -> Built:
    """Model, batch and loss of a program, in float64 so that only mistakes differ."""
    numbers = torch.Generator().manual_seed(w.seed)
    model = nn.Module()
    used = [name for name in w.weights if re.search(rf"m\.{name}\b", source)]
    for name in used:
        drawn = torch.randn(w.weights[name], generator=numbers, dtype=torch.float64)
        model.register_parameter(name, nn.Parameter(drawn))
    x = torch.randn(w.n, *first, generator=numbers, dtype=torch.float64)
    batch = (x, torch.randint(5, (w.n, ids), generator=numbers), x.flatten(1)[:, 0].cos())
    names: dict[str, Any] = {"torch": torch, "F": F} | {f.__name__: f for f in HELPERS}
    exec(source, names)
    return model, batch, names["loss"]


# What programs call.


def places(t: Tensor, size: int) -> Tensor:
    """Whole numbers below ``size`` from the values."""
    return (t.detach().abs() * 7).long() % size


def order(t: Tensor) -> Tensor:
    """The order of the records by their first value."""
    return t.detach().flatten(1)[:, 0].argsort()


def written(t: Tensor) -> Tensor:
    out = torch.zeros_like(t)
    out[..., :1] = t[..., :1]
    return out + t


def written_rows(t: Tensor) -> Tensor:
    out = t.new_zeros(t.shape)
    for i in range(len(t)):
        out[i] = t[i].tanh()
    return out


def written_by_out(t: Tensor) -> Tensor:
    memory = torch.zeros_like(t)
    torch.mul(t.detach(), 2.0, out=memory)
    return t + memory


def written_down(t: Tensor) -> Tensor:
    out = torch.zeros_like(t)
    out[1:] = t[:-1]
    return t * out


def chosen(t: Tensor, u: Tensor) -> Tensor:
    """The rows of t, or of u where t begins with a negative number."""
    rows = t.detach().flatten(1)[:, 0] > 0
    out = u.clone()
    out[rows] = t[rows]
    return out


def applied(t: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """A layer on the rows that begin with a positive number."""
    rows = (t.detach().flatten(1)[:, 0] > 0).nonzero()[:, 0]
    return torch.zeros_like(t).index_add(0, rows, layer(t[rows]))


def moved(t: Tensor, u: Tensor) -> Tensor:
    """Rows chosen by u come first."""
    rows = u.detach().flatten(1)[:, 0] > 0
    return torch.cat([t[rows], t[~rows]])


def kept(m: nn.Module, t: Tensor) -> Tensor:
    """Adds the mean of the pass before."""
    before = m.__dict__.get("before", 0.0)
    m.__dict__["before"] = t.detach().mean(0)
    return t + before if isinstance(before, Tensor) and before.shape == t.shape[1:] else t


def hooked(t: Tensor, change: Callable[[Tensor], Tensor] = lambda g: 2 * g) -> Tensor:
    """The value itself, with a hook on its gradient."""
    t = t * 1.0
    if t.requires_grad:
        t.register_hook(change)
    return t


HELPERS = (places, order, written, written_rows, written_by_out, written_down, chosen, applied, moved, kept, hooked)
