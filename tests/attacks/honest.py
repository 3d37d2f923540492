"""Honest models: each record alone decides its gradient, so they must run, whichever engine takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dpilot import transfer
from tests.attacks.case import Records, normal, squared

N = 4


@dataclass(frozen=True)
class Honest:
    """A model, a loss and a batch of N records. ``random``: two passes differ, so values cannot be compared.

    ``excess`` is how far norms may lie above the true ones, ``truth`` the precision of the loop they are compared with.
    """

    model: nn.Module
    loss: Callable[..., Tensor]
    batch: Any
    per_batch: bool = False
    random: bool = False
    excess: float = 1.2
    truth: torch.dtype = torch.float64


Make = Callable[[], Honest]
MODELS: dict[str, Make] = {}
LIBRARY: dict[str, Make] = {}
"""Models of other libraries, which take seconds to import."""


def honest(function: Make) -> Make:
    MODELS[function.__name__] = function
    return function


def of_a_library(function: Make) -> Make:
    LIBRARY[function.__name__] = function
    return function


# Spellings of a product: body(x, w, v) of records x (n, d) and weights w, v (d, d) gives (n, d).

PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "at": lambda x, w, v: x @ w,
    "matmul": lambda x, w, v: torch.matmul(x, w),
    "mm": lambda x, w, v: torch.mm(x, w),
    "matmul of tokens": lambda x, w, v: (x[:, None] @ w)[:, 0],
    "right of a transposed": lambda x, w, v: (w @ x.T).T,
    "linear": lambda x, w, v: F.linear(x, w, v[0]),
    "bilinear": lambda x, w, v: F.bilinear(x, x, w[None], v[0, :1]) + x @ v,
    "einsum": lambda x, w, v: torch.einsum("ni,io->no", x, w),
    "einsum with an ellipsis": lambda x, w, v: torch.einsum("...i,io->...o", x, w),
    "implicit einsum": lambda x, w, v: torch.einsum("bi,io", x, w),
    "einsum of three": lambda x, w, v: torch.einsum("ni,ij,jo->no", x, w, v),
    "einsum with the weight first": lambda x, w, v: torch.einsum("io,ni->no", w, x),
    "einsum with records last": lambda x, w, v: torch.einsum("in,io->on", x.T, w).T,
    "einsum of a record with itself": lambda x, w, v: torch.einsum("ni,nj,ij->n", x, x, w)[:, None] + x @ v,
    "tensordot": lambda x, w, v: torch.tensordot(x, w, 1),
    "tensordot of axes": lambda x, w, v: torch.tensordot(w, x, dims=([0], [1])).T,
    "inner": lambda x, w, v: torch.inner(x, w),
    "inner with the weight first": lambda x, w, v: torch.inner(w, x).T,
    "multi_dot": lambda x, w, v: torch.linalg.multi_dot([x, w, v]),
    "chain of two": lambda x, w, v: torch.linalg.multi_dot([x, w]),
    "vecdot": lambda x, w, v: torch.linalg.vecdot(x[:, None], w),
    "addmm": lambda x, w, v: torch.addmm(v[0], x, w),
    "addmm with factors": lambda x, w, v: torch.addmm(v[0], x, w, beta=0.5, alpha=2.0),
    "addmv": lambda x, w, v: torch.stack([torch.addmv(v[0], w, row) for row in x]),
    "mv": lambda x, w, v: x.mv(w[0])[:, None] + x.mm(v),
    "dot of rows": lambda x, w, v: torch.stack([torch.dot(row, w[0]) for row in x])[:, None] + x @ v,
    "bmm with an expanded weight": lambda x, w, v: torch.bmm(x[:, None], w.expand(len(x), -1, -1))[:, 0],
    "baddbmm": lambda x, w, v: torch.baddbmm(v[:1].expand(len(x), 1, -1), x[:, None], w.expand(len(x), -1, -1))[:, 0],
    "addbmm over tokens": lambda x, w, v: (x[:, None] @ w[None])[:, 0] + v[0],
    "sum of an outer product": lambda x, w, v: (x[:, :, None] * w).sum(1),
    "nn.functional.conv1d": lambda x, w, v: F.conv1d(x[:, :, None], w[:, :, None])[:, :, 0],
    "product in place": lambda x, w, v: x.new_zeros(len(x), w.shape[1]).addmm_(x, w),
}


class Product(nn.Module):
    """A spelling of a product, and a head."""

    def __init__(self, spelling: str, width: int) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.randn(width, width))
        self.head, self.spelling = nn.Linear(width, 2), spelling

    def forward(self, x: Tensor) -> Tensor:
        return self.head(PRODUCTS[self.spelling](x, self.w, self.v).tanh())


def product(spelling: str, width: int) -> Honest:
    return Honest(Product(spelling, width), squared, (normal(N, width), normal(N, 2, seed=1)))


# Architectures.


class Body(nn.Module):
    """Layers by name, and a function that calls them."""

    def __init__(self, call: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self, *inputs)


def entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


def labels(classes: int = 3) -> Tensor:
    return torch.arange(N) % classes


def classify(model: nn.Module, *shape: int, **more: Any) -> Honest:
    return Honest(model, entropy, (normal(N, *shape), labels()), **more)


def read(model: nn.Module, length: int = 6, **more: Any) -> Honest:
    return Honest(model, entropy, (torch.arange(N * length).view(N, length) % 7, labels()), **more)


@honest
def spectral_weights() -> Honest:
    """A Fourier layer with complex trained weights."""
    weight = nn.Parameter(torch.randn(3, 5, dtype=torch.complex64))

    def call(m: Body, x: Tensor) -> Tensor:
        return m.head(torch.fft.irfft(torch.fft.rfft(x, dim=-1) * m.weight, n=8, dim=-1).flatten(1))

    return classify(Body(call, weight=weight, head=nn.Linear(24, 3)), 3, 8)


@honest
def spectral_mixing_of_channels() -> Honest:
    """A Fourier neural operator: an einsum with complex weights in every mode."""
    weight = nn.Parameter(torch.randn(2, 3, 4, dtype=torch.complex64))

    def call(m: Body, x: Tensor) -> Tensor:
        modes = torch.einsum("bim,iom->bom", torch.fft.rfft(x)[..., :4], m.weight)
        return m.head(torch.fft.irfft(modes, n=8).flatten(1))

    return classify(Body(call, weight=weight, head=nn.Linear(24, 3)), 2, 8)


@honest
def prepared_with_dropout() -> Honest:
    """transfer.prepare of a backbone with dropout, in train mode."""
    backbone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU())
    model = nn.Sequential(backbone, nn.Linear(8, 3))
    return classify(transfer.prepare(model, method="bitfit").train(), 4, random=True)


@honest
def dropout_in_train_mode() -> Honest:
    """A plain network with dropout."""
    return classify(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train(), 4, random=True)


@honest
def packed_recurrent() -> Honest:
    """A recurrent layer on packed sequences."""

    def loss(m: Body, batch: Records) -> Tensor:
        x, lengths, y = batch
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return entropy(m.head(m.rnn(packed)[1][0]), y)

    batch = normal(N, 5, 4), torch.tensor([2, 5, 1, 3]), labels()
    return Honest(Body(lambda m: None, rnn=nn.GRU(4, 4, batch_first=True), head=nn.Linear(4, 3)), loss, batch, True)


@honest
def squeezed_head() -> Honest:
    """A head of one output that is squeezed, without an axis."""
    model = Body(lambda m, x: m.b(m.a(x).tanh()).squeeze(), a=nn.Linear(4, 4), b=nn.Linear(4, 1))
    return Honest(model, lambda out, y: F.mse_loss(out.view_as(y), y, reduction="none"), (normal(N, 4), normal(N)))


@honest
def masked_tokens_head() -> Honest:
    """A head on the tokens that have a label, as in masked language models with sparse heads."""

    def loss(m: Body, batch: Records) -> Tensor:
        ids, targets = batch
        masked = targets >= 0
        each = entropy(m.head(m.mix(m.embed(ids)).tanh()[masked]), targets[masked])
        return each.new_zeros(len(ids)).index_add(0, masked.nonzero()[:, 0], each)

    targets = torch.full((N, 6), -1)
    targets[0, 1] = targets[1, 2] = targets[1, 4] = targets[2, 0] = targets[3, 5] = 3
    ids = torch.arange(N * 6).view(N, 6) % 7
    layers = {"embed": nn.Embedding(7, 4), "mix": nn.Linear(4, 4), "head": nn.Linear(4, 7)}
    return Honest(Body(lambda m: None, **layers), loss, (ids, targets), True)


@honest
def sequence_first_recurrent() -> Honest:
    """An LSTM that wants time first, as many steps as records."""
    model = Body(lambda m, x: m.head(m.rnn(x.transpose(0, 1))[0][-1]), rnn=nn.LSTM(4, 5), head=nn.Linear(5, 3))
    return classify(model, N, 4)


@honest
def sequence_first_transformer() -> Honest:
    """A transformer that wants time first, as many steps as records."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    return classify(Body(lambda m, x: m.head(m.t(x.transpose(0, 1)).mean(0)), t=layer, head=nn.Linear(4, 3)), N, 4)


@honest
def batch_first_transformer() -> Honest:
    """Two transformer layers with a padding mask."""

    def call(m: Body, x: Tensor) -> Tensor:
        hidden = m.t(x, src_key_padding_mask=torch.arange(5).expand(len(x), 5) > 3)
        return m.head(hidden[:, 0])

    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2)
    return classify(Body(call, t=stack, head=nn.Linear(4, 3)), 5, 4)


@honest
def encoder_and_decoder() -> Honest:
    """nn.Transformer from a source to a target."""

    def loss(m: Body, batch: Records) -> Tensor:
        source, target = batch
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        out = m.head(m.t(m.embed(source), m.embed(target[:, :-1]), tgt_mask=mask))
        return F.cross_entropy(out.transpose(1, 2), target[:, 1:], reduction="none").mean(1)

    layers = {"t": nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True), "embed": nn.Embedding(7, 4)}
    model = Body(lambda m: None, **layers, head=nn.Linear(4, 7))
    return Honest(model, loss, (torch.arange(24).view(N, 6) % 7, torch.arange(20).view(N, 5) % 7), True)


@honest
def recurrent_seq2seq() -> Honest:
    """A GRU encoder whose state starts a GRU decoder."""

    def call(m: Body, x: Tensor) -> Tensor:
        return m.head(m.decoder(x.flip(1), m.encoder(x)[1])[0].sum(1))

    gru = {"encoder": nn.GRU(4, 5, batch_first=True), "decoder": nn.GRU(4, 5, batch_first=True)}
    return classify(Body(call, **gru, head=nn.Linear(5, 3)), 6, 4)


@honest
def recurrent_cell_by_hand() -> Honest:
    """A GRU cell in a Python loop over time."""

    def call(m: Body, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 5, dtype=x.dtype)
        for step in x.unbind(1):
            state = m.cell(step, state)
        return m.head(state)

    return classify(Body(call, cell=nn.GRUCell(4, 5), head=nn.Linear(5, 3)), N, 4)


@honest
def u_net() -> Honest:
    """Down, up, and a skip connection; one loss a pixel."""

    def call(m: Body, x: Tensor) -> Tensor:
        first = m.down(x).relu()
        up = F.interpolate(m.middle(F.max_pool2d(first, 2)).relu(), scale_factor=2)
        return m.out(torch.cat([first, up], 1))

    layers = {"down": nn.Conv2d(2, 4, 3, padding=1), "middle": nn.Conv2d(4, 4, 3, padding=1)}
    model = Body(call, **layers, out=nn.Conv2d(8, 2, 1))
    return Honest(model, squared, (normal(N, 2, 6, 6), normal(N, 2, 6, 6, seed=1)))


@honest
def soft_experts() -> Honest:
    """A mixture of experts, all of them computed and weighed."""

    def call(m: Body, x: Tensor) -> Tensor:
        out = torch.stack([expert(x) for expert in m.experts], 1)
        return (m.gate(x).softmax(1)[:, :, None] * out).sum(1)

    return classify(Body(call, gate=nn.Linear(4, 4), experts=nn.ModuleList(nn.Linear(4, 3) for _ in range(4))), 4)


@honest
def sparse_experts() -> Honest:
    """A mixture of experts, each on the rows that chose it."""

    def call(m: Body, x: Tensor) -> Tensor:
        weight, chosen = m.gate(x).softmax(1).max(1)
        out = torch.zeros(len(x), 3, dtype=x.dtype)
        for place, expert in enumerate(m.experts):
            rows = (chosen == place).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out

    return classify(Body(call, gate=nn.Linear(4, 2), experts=nn.ModuleList(nn.Linear(4, 3) for _ in range(2))), 4)


@honest
def dense_net() -> Honest:
    """Every layer sees all before it."""

    def call(m: Body, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return m.head(x.mean((2, 3)))

    layers = nn.ModuleList(nn.Conv2d(2 + 3 * i, 3, 3, padding=1) for i in range(3))
    return classify(Body(call, layers=layers, head=nn.Linear(11, 3)), 2, 5, 5)


@honest
def mobile_net() -> Honest:
    """Inverted residuals with depthwise convolutions and squeeze and excitation."""

    def call(m: Body, x: Tensor) -> Tensor:
        wide = F.hardswish(m.norm(m.depth(m.expand(x).relu())))
        scale = torch.sigmoid(m.excite(F.adaptive_avg_pool2d(wide, 1)))
        return m.head((x + m.project(wide * scale)).mean((2, 3)))

    layers = {
        "expand": nn.Conv2d(4, 8, 1),
        "depth": nn.Conv2d(8, 8, 3, padding=1, groups=8),
        "norm": nn.GroupNorm(2, 8),
    }
    more = {"excite": nn.Conv2d(8, 8, 1), "project": nn.Conv2d(8, 4, 1), "head": nn.Linear(4, 3)}
    return classify(Body(call, **layers, **more), 4, 5, 5)


@honest
def conv_next() -> Honest:
    """Depthwise convolution, channels last, layer norm, a layer scale."""

    def call(m: Body, x: Tensor) -> Tensor:
        hidden = m.norm(m.depth(x).permute(0, 2, 3, 1))
        return m.head((x + (m.scale * m.two(F.gelu(m.one(hidden)))).permute(0, 3, 1, 2)).mean((2, 3)))

    layers = {"depth": nn.Conv2d(4, 4, 3, padding=1, groups=4), "norm": nn.LayerNorm(4), "one": nn.Linear(4, 8)}
    more = {"two": nn.Linear(8, 4), "scale": nn.Parameter(torch.ones(4)), "head": nn.Linear(4, 3)}
    return classify(Body(call, **layers, **more), 4, 5, 5)


@honest
def perceiver() -> Honest:
    """Trained latents attend to the tokens of a record."""

    def call(m: Body, x: Tensor) -> Tensor:
        latents = m.latents.expand(len(x), -1, -1)
        return m.head(m.attend(latents, x, x)[0].mean(1))

    layers = {"latents": nn.Parameter(torch.randn(4, 4)), "attend": nn.MultiheadAttention(4, 2, batch_first=True)}
    return classify(Body(call, **layers, head=nn.Linear(4, 3)), 5, 4)


@honest
def mlp_mixer() -> Honest:
    """Layers over tokens and over channels, as many of each as records."""

    def call(m: Body, x: Tensor) -> Tensor:
        x = x + m.tokens(x.transpose(1, 2)).transpose(1, 2).tanh()
        return m.head((x + m.channels(x)).mean(1))

    return classify(Body(call, tokens=nn.Linear(N, N), channels=nn.Linear(N, N), head=nn.Linear(N, 3)), N, N)


@honest
def wave_net() -> Honest:
    """Gated causal convolutions with dilation."""

    def call(m: Body, x: Tensor) -> Tensor:
        for dilation, layer in zip((1, 2), m.layers, strict=True):
            x = x + F.glu(layer(F.pad(x, (dilation, 0))), 1)
        return m.head(x[:, :, -1])

    layers = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=d) for d in (1, 2))
    return classify(Body(call, layers=layers, head=nn.Linear(4, 3)), 4, 7)


@honest
def temporal_convolutions() -> Honest:
    """Weight-normalised causal convolutions with a residual."""

    def call(m: Body, x: Tensor) -> Tensor:
        return m.head((x + m.conv(F.pad(x, (2, 0))).relu()).mean(2))

    conv = parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
    return classify(Body(call, conv=conv, head=nn.Linear(4, 3)), 4, 6)


@honest
def siamese() -> Honest:
    """Two inputs through one tower, and their distance."""

    def loss(m: Body, batch: Records) -> Tensor:
        left, right, same = batch
        apart = (m.tower(left) - m.tower(right)).square().sum(1)
        return torch.where(same > 0, apart, F.relu(1 - apart))

    tower = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return Honest(
        Body(lambda m: None, tower=tower), loss, (normal(N, 4), normal(N, 4, seed=1), normal(N, seed=2)), True
    )


@honest
def siamese_in_one_pass() -> Honest:
    """Two views of each record, stacked into one batch of 2 n and taken apart."""

    def loss(m: Body, batch: Records) -> Tensor:
        left, right = m.tower(torch.cat(batch[:2])).chunk(2)
        return (left - right).square().sum(1)

    tower = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return Honest(
        Body(lambda m: None, tower=tower), loss, (normal(N, 4), normal(N, 4, seed=1), normal(N, seed=2)), True
    )


@honest
def variational_autoencoder() -> Honest:
    """Reparametrised noise for each record."""

    def loss(m: Body, batch: Records) -> Tensor:
        mean, spread = m.encoder(batch[0]).chunk(2, 1)
        out = m.decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp())
        return squared(out, batch[0]) + 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1)

    model = Body(lambda m: None, encoder=nn.Linear(4, 4), decoder=nn.Linear(2, 4))
    return Honest(model, loss, (normal(N, 4), normal(N)), True, random=True)


@honest
def spectral_normalised() -> Honest:
    """Spectral norm, whose power iteration writes buffers from weights alone."""
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))
    return classify(model.eval(), 4)


@honest
def weight_normalised() -> Honest:
    """Weight norm."""
    return classify(nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 3)), 4)


@honest
def feature_wise_modulation() -> Honest:
    """FiLM: scale and shift come from another input of the record."""

    def loss(m: Body, batch: Records) -> Tensor:
        x, context, y = batch
        scale, shift = m.film(context).chunk(2, 1)
        return entropy(m.head((m.a(x) * scale + shift).tanh()), y)

    layers = {"film": nn.Linear(3, 8), "a": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    return Honest(Body(lambda m: None, **layers), loss, (normal(N, 4), normal(N, 3, seed=1), labels()), True)


@honest
def hyper_network() -> Honest:
    """Each record makes its own weights."""
    model = Body(lambda m, x: torch.bmm(m.make(x).view(-1, 3, 4), x[:, :, None])[:, :, 0], make=nn.Linear(4, 12))
    return classify(model, 4)


@honest
def sorted_within_a_record() -> Honest:
    """The tokens of a record are sorted by a trained score."""

    def call(m: Body, x: Tensor) -> Tensor:
        order = m.score(x)[:, :, 0].sort(1)
        picked = x.gather(1, order.indices[:, :2, None].expand(-1, -1, 4))
        return m.head((picked * order.values[:, :2, None].sigmoid()).flatten(1))

    return classify(Body(call, score=nn.Linear(4, 1), head=nn.Linear(8, 3)), N, 4)


@honest
def soft_sorting() -> Honest:
    """A differentiable sort within a record, by pairwise softmax."""

    def call(m: Body, x: Tensor) -> Tensor:
        values = m.score(x)
        apart = -(values.sort(1, descending=True).values[:, :, None] - values[:, None, :]).abs()
        return m.head((apart.softmax(2) @ values[:, :, None])[:, :, 0])

    return classify(Body(call, score=nn.Linear(4, N), head=nn.Linear(N, 3)), 4)


@honest
def connectionist_loss() -> Honest:
    """CTC loss, which wants time first."""

    def loss(m: Body, batch: Records) -> Tensor:
        sound, text, lengths = batch
        scores = m.head(m.rnn(sound)[0]).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(scores, text, torch.full((len(sound),), 8), lengths, reduction="none")

    batch = normal(N, 8, 3), torch.arange(N * 3).view(N, 3) % 4 + 1, torch.tensor([3, 2, 1, 2])
    return Honest(Body(lambda m: None, rnn=nn.GRU(3, 4, batch_first=True), head=nn.Linear(4, 5)), loss, batch, True)


@honest
def focal_loss() -> Honest:
    """Focal loss with constant class weights."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        right = out.softmax(1).gather(1, y[:, None])[:, 0]
        return -torch.tensor([0.5, 1.0, 2.0], dtype=out.dtype)[y] * (1 - right).square() * right.log()

    return Honest(nn.Linear(4, 3), loss, (normal(N, 4), labels()))


@honest
def label_smoothing() -> Honest:
    """Cross-entropy with smoothed labels and a weight for each class."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        weight = torch.tensor([0.5, 1.0, 2.0], dtype=out.dtype)
        return F.cross_entropy(out, y, weight=weight, label_smoothing=0.1, reduction="none")

    return Honest(nn.Linear(4, 3), loss, (normal(N, 4), labels()))


@honest
def several_tasks() -> Honest:
    """A class, a number and a box from one body; the losses are added up."""

    def loss(m: Body, batch: Records) -> Tensor:
        x, kind, number, box = batch
        hidden = m.body(x).tanh()
        boxes = F.smooth_l1_loss(m.box(hidden), box, reduction="none").sum(1)
        return entropy(m.kind(hidden), kind) + 0.1 * (m.number(hidden)[:, 0] - number).square() + boxes

    heads = {"kind": nn.Linear(4, 3), "number": nn.Linear(4, 1), "box": nn.Linear(4, 4)}
    batch = normal(N, 4), labels(), normal(N, seed=1), normal(N, 4, seed=2)
    return Honest(Body(lambda m: None, body=nn.Linear(4, 4), **heads), loss, batch, True)


@honest
def gradient_penalty() -> Honest:
    """A penalty on the gradient of each record's own score."""

    def loss(m: Body, batch: Records) -> Tensor:
        x = batch[0].detach().requires_grad_()
        out = m.b(m.a(x).tanh())
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return squared(out, batch[1]) + (slope.norm(dim=1) - 1).square()

    return Honest(Body(lambda m: None, a=nn.Linear(4, 4), b=nn.Linear(4, 2)), loss, (normal(N, 4), normal(N, 2)), True)


@honest
def tied_embedding() -> Honest:
    """A language model whose head is its embedding."""

    def loss(m: Body, batch: Records) -> Tensor:
        out = F.linear(m.mix(m.embed(batch[0])).tanh(), m.embed.weight)
        return F.cross_entropy(out[:, :-1].transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)

    ids = torch.arange(N * 6).view(N, 6) % 7
    return Honest(Body(lambda m: None, embed=nn.Embedding(7, 4), mix=nn.Linear(4, 4)), loss, (ids, labels()), True)


@honest
def rotary_attention() -> Honest:
    """Attention by hand with rotary positions and a causal mask."""

    def call(m: Body, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).view(len(x), N, 3, 2, 2).permute(2, 0, 3, 1, 4)
        angle = torch.arange(N, dtype=x.dtype)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        q, k = (t * cos + torch.stack([-t[..., 1], t[..., 0]], -1) * sin for t in (q, k))
        scores = (q @ k.mT / math.sqrt(2)).masked_fill(torch.ones(N, N).triu(1).bool(), -1e9)
        return m.head((scores.softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))

    return classify(Body(call, qkv=nn.Linear(4, 12), head=nn.Linear(4, 3)), N, 4)


@honest
def fused_attention() -> Honest:
    """scaled_dot_product_attention within each record."""

    def call(m: Body, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).chunk(3, -1)
        return m.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).mean(1))

    return classify(Body(call, qkv=nn.Linear(4, 12), head=nn.Linear(4, 3)), N, 4)


@honest
def bags_of_words() -> Honest:
    """An embedding bag of each record's words."""
    return read(nn.Sequential(nn.EmbeddingBag(7, 4, mode="mean"), nn.Linear(4, 3)))


@honest
def residual_images() -> Honest:
    """A residual network with group norm."""

    def call(m: Body, x: Tensor) -> Tensor:
        return m.head((x + m.conv(m.norm(x)).relu()).flatten(1))

    layers = {"conv": nn.Conv2d(4, 4, 3, padding=1), "norm": nn.GroupNorm(2, 4), "head": nn.Linear(64, 3)}
    return classify(Body(call, **layers), 4, 4, 4)


@honest
def checkpointed() -> Honest:
    """A layer behind an activation checkpoint."""

    def call(m: Body, x: Tensor) -> Tensor:
        return m.head(torch.utils.checkpoint.checkpoint(lambda t: m.a(t).tanh(), x, use_reentrant=False))

    return classify(Body(call, a=nn.Linear(4, 4), head=nn.Linear(4, 3)), 4)


@honest
def straight_through_codes() -> Honest:
    """A codebook looked up by the nearest code, with a straight-through gradient."""

    def call(m: Body, x: Tensor) -> Tensor:
        hidden = m.a(x)
        code = m.codes[torch.cdist(hidden, m.codes).argmin(1)]
        return m.head(hidden + (code - hidden).detach()) + (code - hidden.detach()).square().sum(1, keepdim=True)

    return classify(Body(call, a=nn.Linear(4, 4), codes=nn.Parameter(torch.randn(N, 4)), head=nn.Linear(4, 3)), 4)


# Models of other libraries, from their configurations.


def mean_hidden(m: Body, batch: Records) -> Tensor:
    return entropy(m.head(m.body(batch[0]).last_hidden_state.mean(1)), batch[1])


def hugging_face(body: nn.Module, width: int = 8, **more: Any) -> Honest:
    ids = torch.arange(N * 6).view(N, 6) % 7 + 2
    return Honest(
        Body(lambda m: None, body=body.eval(), head=nn.Linear(width, 3)), mean_hidden, (ids, labels()), True, **more
    )


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 11}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}


@of_a_library
def bert() -> Honest:
    """BERT from a small configuration."""
    from transformers import BertConfig, BertModel

    return hugging_face(BertModel(BertConfig(**SMALL), add_pooling_layer=False))


@of_a_library
def modern_bert() -> Honest:
    """ModernBERT, with local attention."""
    from transformers import ModernBertConfig, ModernBertModel

    more = {"cls_token_id": 1, "sep_token_id": 1, "attn_implementation": "eager"}
    return hugging_face(ModernBertModel(ModernBertConfig(**SMALL, **ENDS, **more)))


@of_a_library
def masked_modern_bert() -> Honest:
    """ModernBERT for masked tokens with a sparse head."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    more = {"cls_token_id": 1, "sep_token_id": 1, "attn_implementation": "eager", "sparse_prediction": True}
    model = ModernBertForMaskedLM(ModernBertConfig(**SMALL, **ENDS, **more)).eval()

    def loss(m: nn.Module, batch: Records) -> Tensor:
        ids, targets = batch
        masked = targets != -100
        each = entropy(m(input_ids=ids, labels=targets).logits, targets[masked])
        return torch.zeros(len(ids), dtype=each.dtype).index_add(0, masked.nonzero()[:, 0], each)

    targets = torch.full((N, 6), -100)
    targets[0, 1] = targets[1, 2] = targets[1, 4] = targets[2, 0] = targets[3, 5] = 3
    return Honest(model, loss, (torch.arange(N * 6).view(N, 6) % 7 + 2, targets), True)


@of_a_library
def gpt2() -> Honest:
    """GPT-2 from a small configuration."""
    from transformers import GPT2Config, GPT2Model

    return hugging_face(GPT2Model(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)))


@of_a_library
def llama() -> Honest:
    """Llama from a small configuration."""
    from transformers import LlamaConfig, LlamaModel

    return hugging_face(LlamaModel(LlamaConfig(**SMALL, num_key_value_heads=1)))


@of_a_library
def mixtral() -> Honest:
    """Mixtral: each token goes to two of four experts, in products that float64 has not."""
    from transformers import MixtralConfig, MixtralModel

    return hugging_face(
        MixtralModel(MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=4)), truth=torch.float32
    )


@of_a_library
def t5() -> Honest:
    """T5 from a small configuration, encoder and decoder."""
    from transformers import T5Config, T5Model

    ends = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = T5Config(vocab_size=11, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, **ends)

    def loss(m: Body, batch: Records) -> Tensor:
        out = m.body(input_ids=batch[0], decoder_input_ids=batch[0][:, :3]).last_hidden_state
        return entropy(m.head(out.mean(1)), batch[1])

    ids = torch.arange(N * 6).view(N, 6) % 7 + 2
    model = Body(lambda m: None, body=T5Model(config).eval(), head=nn.Linear(8, 3))
    return Honest(model, loss, (ids, labels()), True)


@of_a_library
def vision_transformer() -> Honest:
    """ViT from a small configuration."""
    from transformers import ViTConfig, ViTModel

    small = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    body = ViTModel(ViTConfig(**small, image_size=8, patch_size=4, num_channels=3), add_pooling_layer=False).eval()
    model = Body(lambda m: None, body=body, head=nn.Linear(8, 3))
    return Honest(model, mean_hidden, (normal(N, 3, 8, 8), labels()), True)


@of_a_library
def weight_decomposed_adapters() -> Honest:
    """DoRA adapters of peft in a small network."""
    import peft

    body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    config = peft.LoraConfig(r=2, use_dora=True, target_modules=["0", "2"], init_lora_weights=False)
    return classify(peft.get_peft_model(body, config), 4)


@of_a_library
def low_rank_adapters() -> Honest:
    """LoRA adapters of peft in BERT."""
    import peft
    from transformers import BertConfig, BertModel

    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    body = BertModel(BertConfig(**SMALL), add_pooling_layer=False)
    return hugging_face(peft.get_peft_model(body, config))
