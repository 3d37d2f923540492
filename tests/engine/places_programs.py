"""Random programs over many kinds of torch operations, those that combine records included."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.places_check import Report, Stopped, check, extreme, replace

Kind = Callable[["Chooser", Tensor, Tensor, Tensor], Any]
FAILS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError, ZeroDivisionError)
BY_VALUE = re.compile(
    r"(ndex|arget) -?\d+ is out of bounds|index out of range in self|singular|converge|probability"
    r"|Class values|invalid max index|number of ones|out of range: tried|out of DATA bounds"
)
"""What errors say that depend on the values of records: a program ends there."""
LARGEST = 4000
TRIES = 6


class Chooser:
    """Choices of one program, the same whatever the records hold."""

    def __init__(self, seed: int, n: int) -> None:
        self.random, self.n = random.Random(seed), n
        self.sizes = (n, n, 2, 3, 4, 6)
        self.generator = torch.Generator().manual_seed(seed)

    def size(self) -> int:
        return self.random.choice(self.sizes)

    def one_of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def axis(self, x: Tensor) -> int:
        return self.random.randrange(-x.dim(), x.dim()) if x.dim() else 0

    def weight(self, *shape: int) -> Tensor:
        """Numbers of the model: the same in all runs."""
        return torch.randn(*shape, generator=self.generator)

    def index(self, x: Tensor, k: int = 2) -> Tensor:
        """Whole numbers below k computed from x."""
        return (x.abs().nan_to_num(0.0, 1.0, 1.0).clamp(max=1e3) * 3).long() % k

    def shape(self, x: Tensor) -> list[int]:
        """Another shape of as many entries."""
        left, primes = x.numel(), list[int]()
        for p in (2, 3, 5, 7):
            while left and left % p == 0:
                primes.append(p)
                left //= p
        self.random.shuffle(primes)
        made = list[int]()
        for p in primes:
            if made and self.chance(0.6):
                made[-1] *= p
            else:
                made.append(p)
        return [*made, left] if left > 1 or not made else made

    def dims(self, x: Tensor) -> list[int]:
        return self.random.sample(range(x.dim()), self.random.randrange(1, x.dim() + 1)) if x.dim() else []

    def mine(self, x: Tensor) -> Tensor:
        """Something to write into: a copy, or the tensor itself."""
        return x.clone() if self.chance(0.6) else x

    def loss(self) -> str:
        return self.one_of("none", "none", "none", "mean", "sum")


KINDS: dict[str, Kind] = {}


def kind(f: Kind) -> Kind:
    KINDS[f.__name__] = f
    return f


def listed(**kinds: Kind) -> None:
    KINDS.update(kinds)


listed(
    add=lambda r, x, y, z: x + y,
    sub_scaled=lambda r, x, y, z: torch.sub(x, y, alpha=2),
    mul=lambda r, x, y, z: x * y.tanh(),
    maximum=lambda r, x, y, z: torch.max(x, y),
    addcmul=lambda r, x, y, z: torch.addcmul(x, y, z, value=0.5),
    where=lambda r, x, y, z: torch.where(x > 0, y, z),
    where_scalar=lambda r, x, y, z: torch.where(x > 0, 1.0, y),
    where_scalars=lambda r, x, y, z: torch.where(x > 0, 1.0, 2.0),
    lerp=lambda r, x, y, z: torch.lerp(x, y, 0.3) if r.chance(0.5) else torch.lerp(x, y, z),
    clamp=lambda r, x, y, z: x.clamp(y, z) if r.chance(0.5) else x.clamp(-1, 1),
    gelu=lambda r, x, y, z: F.gelu(x),
    tanh=lambda r, x, y, z: x.tanh(),
    logsigmoid=lambda r, x, y, z: F.logsigmoid(x),
    prelu=lambda r, x, y, z: F.prelu(x, r.weight(x.shape[1]) if r.chance(0.5) else r.weight(1)),
    rrelu=lambda r, x, y, z: F.rrelu(x, training=False),
    compare=lambda r, x, y, z: (x > y) | (x < z),
    isnan=lambda r, x, y, z: x.isnan(),
    nan_to_num=lambda r, x, y, z: x.nan_to_num(),
    frexp=lambda r, x, y, z: torch.frexp(x)[r.random.randrange(2)],
    to_double=lambda r, x, y, z: x.double().float(),
    to_half=lambda r, x, y, z: x.bfloat16(),
    long=lambda r, x, y, z: r.index(x, 5),
)
listed(
    matmul=lambda r, x, y, z: x @ y,
    matmul_t=lambda r, x, y, z: x @ y.mT,
    times_weight=lambda r, x, y, z: x @ r.weight(x.shape[-1], r.size()),
    weight_times=lambda r, x, y, z: r.weight(r.size(), x.shape[-2]) @ x,
    linear=lambda r, x, y, z: F.linear(x, r.weight(4, x.shape[-1]), r.weight(4)),
    linear_of=lambda r, x, y, z: F.linear(x, y),
    addmm=lambda r, x, y, z: torch.addmm(z, x, y, beta=0.5),
    addmm_weight=lambda r, x, y, z: torch.addmm(r.weight(r.one_of(1, x.shape[0]), 3), x, r.weight(x.shape[1], 3)),
    bmm=lambda r, x, y, z: torch.bmm(x, y.mT),
    baddbmm=lambda r, x, y, z: torch.baddbmm(z, x, y.mT),
    baddbmm_weight=lambda r, x, y, z: torch.baddbmm(r.weight(x.shape[-2], x.shape[-2]), x, x.mT),
    addbmm=lambda r, x, y, z: torch.addbmm(z, x, y.mT),
    mv=lambda r, x, y, z: x.mv(y),
    addmv=lambda r, x, y, z: torch.addmv(z, x, y),
    dot=lambda r, x, y, z: x.dot(y),
    outer=lambda r, x, y, z: torch.outer(x.flatten()[:6], y.flatten()[:6]),
    addr=lambda r, x, y, z: torch.addr(z, x, y),
    inner=lambda r, x, y, z: torch.inner(x, y),
    kron=lambda r, x, y, z: torch.kron(x, y),
    vecdot=lambda r, x, y, z: torch.linalg.vecdot(x, y, dim=r.axis(x)),
    multi_dot=lambda r, x, y, z: torch.linalg.multi_dot([x, r.weight(x.shape[1], 3), r.weight(3, 2)]),
    einsum_weight=lambda r, x, y, z: torch.einsum(
        r.one_of("...i,ij->...j", "i...,ij->...j"), x, r.weight(x.shape[-1], 3)
    ),
    einsum=lambda r, x, y, z: torch.einsum(
        r.one_of(
            "ab,cb->ac", "ab,ab->a", "ab,ac->bc", "abc,abd->acd", "abc,cd->dab", "ab,bc->ca", "abc,ac->ab",
            "ab,cd->acbd", "aa->a", "abb->ab", "abc,abc->ab", "abcd,abed->abce", "a,b->ab",
        ),
        *((x,) if r.chance(0.1) else (x, y)),
    ),
    bilinear=lambda r, x, y, z: F.bilinear(x, y, r.weight(2, x.shape[-1], y.shape[-1])),
    cdist=lambda r, x, y, z: torch.cdist(x, y, p=r.one_of(1.0, 2.0)),
    cross=lambda r, x, y, z: torch.linalg.cross(x, y, dim=r.axis(x)),
    pairwise=lambda r, x, y, z: F.pairwise_distance(x, y),
    cosine=lambda r, x, y, z: F.cosine_similarity(x, y, dim=r.axis(x)),
)  # fmt: skip
listed(
    sum=lambda r, x, y, z: x.sum(r.axis(x), keepdim=r.chance(0.5)),
    sum_dims=lambda r, x, y, z: x.sum(r.dims(x), keepdim=r.chance(0.5)),
    sum_all=lambda r, x, y, z: x.sum() if r.chance(0.2) else x,
    mean=lambda r, x, y, z: x.mean(r.axis(x)),
    max=lambda r, x, y, z: x.max(r.axis(x))[r.random.randrange(2)],
    amax=lambda r, x, y, z: x.amax(r.dims(x)),
    aminmax=lambda r, x, y, z: torch.aminmax(x, dim=r.axis(x)).max,
    argmax=lambda r, x, y, z: x.argmax(r.axis(x), keepdim=r.chance(0.5)),
    var=lambda r, x, y, z: x.var(r.axis(x)),
    var_mean=lambda r, x, y, z: torch.var_mean(x, r.dims(x))[1],
    norm=lambda r, x, y, z: x.norm(dim=r.axis(x)),
    norm_p=lambda r, x, y, z: torch.norm(x, r.one_of(1, 2, float("inf")), r.axis(x)),
    vector_norm=lambda r, x, y, z: torch.linalg.vector_norm(x, dim=r.dims(x)),
    matrix_norm=lambda r, x, y, z: torch.linalg.matrix_norm(x),
    prod=lambda r, x, y, z: x.prod(r.axis(x)),
    any=lambda r, x, y, z: (x > 0).any(r.axis(x)),
    all=lambda r, x, y, z: (x > 0).all(r.axis(x)),
    logsumexp=lambda r, x, y, z: x.logsumexp(r.axis(x)),
    median=lambda r, x, y, z: x.median(r.axis(x)).values,
    mode=lambda r, x, y, z: r.index(x, 3).mode(r.axis(x)).values,
    kthvalue=lambda r, x, y, z: x.kthvalue(1, r.axis(x)).values,
    count=lambda r, x, y, z: torch.count_nonzero(x, dim=r.axis(x)),
    quantile=lambda r, x, y, z: x.quantile(0.5, dim=r.axis(x)),
    trace=lambda r, x, y, z: x.trace(),
    softmax=lambda r, x, y, z: x.softmax(r.axis(x)),
    log_softmax=lambda r, x, y, z: x.log_softmax(r.axis(x)),
    normalize=lambda r, x, y, z: F.normalize(x, dim=r.axis(x)),
    renorm=lambda r, x, y, z: x.renorm(2, r.axis(x), 0.5),
    cumsum=lambda r, x, y, z: x.cumsum(r.axis(x)),
    cummax=lambda r, x, y, z: x.cummax(r.axis(x)).values,
    logcumsumexp=lambda r, x, y, z: x.logcumsumexp(r.axis(x)),
    diff=lambda r, x, y, z: x.diff(dim=r.axis(x)),
    sort=lambda r, x, y, z: torch.sort(x, dim=r.axis(x), stable=r.chance(0.5))[r.random.randrange(2)],
    topk=lambda r, x, y, z: x.topk(1, r.axis(x))[r.random.randrange(2)],
    flip=lambda r, x, y, z: x.flip(r.axis(x)),
    roll=lambda r, x, y, z: x.roll(1, r.axis(x)) if r.chance(0.7) else x.roll(1),
    glu=lambda r, x, y, z: F.glu(x, r.axis(x)),
    fft=lambda r, x, y, z: torch.fft.fft(x, dim=r.axis(x)),
    rfft=lambda r, x, y, z: torch.fft.rfft(x, dim=r.axis(x)).abs(),
    irfft=lambda r, x, y, z: torch.fft.irfft(torch.fft.rfft2(x), dim=r.axis(x)),
    stft=lambda r, x, y, z: torch.stft(x, 4, window=torch.ones(4), return_complex=True).abs(),
    view_real=lambda r, x, y, z: torch.view_as_real(x),
    view_complex=lambda r, x, y, z: torch.view_as_complex(x),
    conj=lambda r, x, y, z: (x * (1 + 2j)).conj(),
    imag=lambda r, x, y, z: (x * (1 + 2j)).conj().imag,
)
listed(
    transpose=lambda r, x, y, z: x.transpose(r.axis(x), r.axis(x)),
    permute=lambda r, x, y, z: x.permute(r.random.sample(range(x.dim()), x.dim())),
    reshape=lambda r, x, y, z: x.reshape(r.shape(x)),
    flatten=lambda r, x, y, z: x.flatten(*sorted((r.random.randrange(x.dim()), r.random.randrange(x.dim())))),
    unflatten=lambda r, x, y, z: x.unflatten(r.axis(x), (r.one_of(2, 3, -1), r.size())),
    view_as=lambda r, x, y, z: x.contiguous().view(y.shape),
    contiguous=lambda r, x, y, z: x.contiguous(),
    unsqueeze=lambda r, x, y, z: x.unsqueeze(r.random.randrange(x.dim() + 1)),
    squeeze=lambda r, x, y, z: x.squeeze(),
    select=lambda r, x, y, z: x.select(r.axis(x), 0) if r.chance(0.4) else x,
    narrow=lambda r, x, y, z: x.narrow(r.axis(x), r.random.randrange(2), r.size()),
    step=lambda r, x, y, z: x[..., ::2] if r.chance(0.5) else x[::2],
    expand=lambda r, x, y, z: x.expand(r.size(), *x.shape),
    expand_as=lambda r, x, y, z: x.expand_as(y),
    repeat=lambda r, x, y, z: x.repeat(*[r.one_of(1, 1, 2) for _ in range(x.dim() + r.random.randrange(2))]),
    tile=lambda r, x, y, z: x.tile(r.one_of((2,), (1, 2), (2, 1))),
    repeat_interleave=lambda r, x, y, z: x.repeat_interleave(2, r.axis(x)),
    repeat_interleave_by=lambda r, x, y, z: x.repeat_interleave(
        r.index(y, 3).flatten()[: x.shape[0]], 0, output_size=6
    ),
    chunk=lambda r, x, y, z: x.chunk(2, r.axis(x))[r.random.randrange(2)],
    split=lambda r, x, y, z: x.split(2, r.axis(x))[-1],
    unbind=lambda r, x, y, z: x.unbind(r.axis(x))[0] if r.chance(0.4) else x,
    cat=lambda r, x, y, z: torch.cat([x, y], r.axis(x)),
    cat_self=lambda r, x, y, z: torch.cat([x, x.tanh(), x], r.axis(x)),
    cat_shared=lambda r, x, y, z: torch.cat([r.weight(*x.shape), x], r.axis(x)),
    cat_token=lambda r, x, y, z: torch.cat([r.weight(1, 1, x.shape[-1]).expand(x.shape[0], -1, -1), x], 1),
    stack=lambda r, x, y, z: torch.stack([x, y], r.random.randrange(x.dim() + 1)),
    meshgrid=lambda r, x, y, z: torch.meshgrid(x.view(-1), y.view(-1), indexing="ij")[r.random.randrange(2)],
    unfold=lambda r, x, y, z: x.unfold(r.axis(x), 2, r.one_of(1, 2)),
    diagonal=lambda r, x, y, z: x.diagonal(0, r.axis(x), r.axis(x)),
    diag_embed=lambda r, x, y, z: x.diag_embed(),
    as_strided=lambda r, x, y, z: x.as_strided(r.shape(x), [r.one_of(1, 2, 3, x.shape[-1]) for _ in r.shape(x)]),
    as_strided_swapped=lambda r, x, y, z: x.contiguous().as_strided(x.shape, x.stride()[::-1]),
    movedim=lambda r, x, y, z: x.movedim(r.axis(x), r.axis(x)),
    tril=lambda r, x, y, z: x.tril() if r.chance(0.5) else x.triu(1),
    rot90=lambda r, x, y, z: x.rot90(1, (r.axis(x), r.axis(x))),
    detach=lambda r, x, y, z: x.detach(),
    data=lambda r, x, y, z: x.data,
    view_bytes=lambda r, x, y, z: x.view(r.one_of(torch.int32, torch.float64, torch.int16)).float(),
    pad=lambda r, x, y, z: F.pad(x, [r.random.randrange(2) for _ in range(2 * r.random.randrange(1, x.dim() + 1))]),
    pad_mode=lambda r, x, y, z: F.pad(x, [1, 1] * r.one_of(1, 2), mode=r.one_of("reflect", "replicate", "circular")),
    pixel_shuffle=lambda r, x, y, z: F.pixel_shuffle(x, 2) if r.chance(0.5) else F.pixel_unshuffle(x, 2),
    channel_shuffle=lambda r, x, y, z: F.channel_shuffle(x, 2),
)
listed(
    layer_norm=lambda r, x, y, z: F.layer_norm(x, x.shape[-r.one_of(1, 1, 2) :]),
    layer_norm_weight=lambda r, x, y, z: F.layer_norm(x, x.shape[-1:], r.weight(x.shape[-1]), y),
    rms_norm=lambda r, x, y, z: F.rms_norm(x, x.shape[-1:]),
    group_norm=lambda r, x, y, z: F.group_norm(x, r.one_of(1, x.shape[1])),
    batch_norm=lambda r, x, y, z: F.batch_norm(x, None, None, training=True),
    batch_norm_eval=lambda r, x, y, z: F.batch_norm(
        x, r.weight(x.shape[1]), r.weight(x.shape[1]).exp(), r.weight(x.shape[1]), training=False
    ),
    batch_norm_state=lambda r, x, y, z: F.batch_norm(
        x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), training=r.chance(0.5)
    ),
    instance_norm=lambda r, x, y, z: F.instance_norm(x),
    instance_norm_weight=lambda r, x, y, z: F.instance_norm(x, weight=r.weight(x.shape[1]), bias=r.weight(x.shape[1])),
    local_norm=lambda r, x, y, z: F.local_response_norm(x, 2),
    conv1=lambda r, x, y, z: F.conv1d(x, r.weight(3, x.shape[-2], 2), padding=r.one_of(0, 1)),
    conv2=lambda r, x, y, z: F.conv2d(x, r.weight(2, x.shape[-3], 1, 2), r.weight(2)),
    conv_groups=lambda r, x, y, z: F.conv1d(x, r.weight(x.shape[-2], 1, 2), groups=x.shape[-2]),
    conv_of=lambda r, x, y, z: F.conv1d(x, y),
    conv3=lambda r, x, y, z: F.conv3d(x, r.weight(2, x.shape[-4], 1, 1, 2)),
    conv_transposed=lambda r, x, y, z: F.conv_transpose1d(x, r.weight(x.shape[-2], 3, 2)),
    avg_pool1=lambda r, x, y, z: F.avg_pool1d(x, 2),
    avg_pool2=lambda r, x, y, z: F.avg_pool2d(x, r.one_of(2, (1, 2))),
    avg_pool3=lambda r, x, y, z: F.avg_pool3d(x, (1, 1, 2)),
    max_pool1=lambda r, x, y, z: F.max_pool1d(x, 2),
    max_pool2=lambda r, x, y, z: F.max_pool2d(x, (1, 2), return_indices=True)[r.random.randrange(2)],
    max_pool3=lambda r, x, y, z: F.max_pool3d(x, (1, 1, 2)),
    adaptive1=lambda r, x, y, z: F.adaptive_avg_pool1d(x, 1) if r.chance(0.5) else F.adaptive_max_pool1d(x, 1),
    adaptive2=lambda r, x, y, z: F.adaptive_avg_pool2d(x, (1, 2)) if r.chance(0.5) else F.adaptive_max_pool2d(x, 1),
    adaptive3=lambda r, x, y, z: F.adaptive_avg_pool3d(x, 1),
    unpool=lambda r, x, y, z: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    lp_pool=lambda r, x, y, z: F.lp_pool1d(x, 2, 2),
    upsample=lambda r, x, y, z: F.interpolate(x, scale_factor=2, mode=r.one_of("nearest", "nearest-exact", "linear")),
    upsample2=lambda r, x, y, z: F.interpolate(x, scale_factor=2, mode=r.one_of("bilinear", "bicubic", "area")),
    upsample3=lambda r, x, y, z: F.interpolate(x, scale_factor=2, mode="trilinear"),
    im2col=lambda r, x, y, z: F.unfold(x, (1, 2)),
    col2im=lambda r, x, y, z: F.fold(x, (2, 3), (1, 2)),
    grid_sample=lambda r, x, y, z: F.grid_sample(x, y[..., :2], align_corners=False),
    grid_sample_fixed=lambda r, x, y, z: F.grid_sample(x, r.weight(x.shape[0], 2, 2, 2), align_corners=False),
    affine_grid=lambda r, x, y, z: F.affine_grid(x[:, :2, :3], [x.shape[0], 1, 2, 2], align_corners=False),
)  # fmt: skip
listed(
    attention=lambda r, x, y, z: F.scaled_dot_product_attention(x, y, y, is_causal=r.chance(0.3)),
    attention_self=lambda r, x, y, z: F.scaled_dot_product_attention(x, x, x),
    attention_mask=lambda r, x, y, z: F.scaled_dot_product_attention(x, x, x, attn_mask=y),
    attention_bool=lambda r, x, y, z: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
    ),
    attention_groups=lambda r, x, y, z: F.scaled_dot_product_attention(
        x, x[:, :1], x[:, :1] if r.chance(0.5) else y[:, :1], enable_gqa=True
    ),
    attention_heads=lambda r, x, y, z: attention_heads(r, x),
    gru=lambda r, x, y, z: recurrent(r, nn.GRU, x),
    lstm=lambda r, x, y, z: recurrent(r, nn.LSTM, x),
    lstm_cell=lambda r, x, y, z: nn.LSTMCell(x.shape[-1], 3)(x)[0],
    gru_cell=lambda r, x, y, z: nn.GRUCell(x.shape[-1], y.shape[-1])(x, y),
    rnn_cell=lambda r, x, y, z: nn.RNNCell(x.shape[-1], 3)(x),
    embedding=lambda r, x, y, z: F.embedding(r.index(x, 4), r.weight(4, 3), padding_idx=r.one_of(None, 0)),
    embedding_of=lambda r, x, y, z: F.embedding(r.index(x, 2), y),
    embedding_renorm=lambda r, x, y, z: F.embedding(r.index(x, 2), r.weight(4, 3), max_norm=0.5),
    bag=lambda r, x, y, z: F.embedding_bag(r.index(x, 4), r.weight(4, 3), mode=r.one_of("sum", "mean", "max")),
    bag_offsets=lambda r, x, y, z: F.embedding_bag(
        r.index(x, 4).flatten(), r.weight(4, 3), torch.arange(0, x.numel(), r.one_of(1, 2, x.shape[-1])), mode="sum"
    ),
    bag_weights=lambda r, x, y, z: F.embedding_bag(
        r.index(x, 4), r.weight(4, 3), mode="sum", per_sample_weights=y.expand_as(x)
    ),
    one_hot=lambda r, x, y, z: F.one_hot(r.index(x, 4), r.one_of(4, 4, 5)),
    one_hot_open=lambda r, x, y, z: F.one_hot(r.index(x, 4)) if r.chance(0.2) else x,
    gather=lambda r, x, y, z: x.gather(r.axis(x), r.index(y)),
    take_along=lambda r, x, y, z: x.take_along_dim(r.index(y), r.axis(x)),
    take=lambda r, x, y, z: x.take(r.index(y)),
    scatter=lambda r, x, y, z: r.mine(x).scatter_(r.axis(x), r.index(y), z),
    scatter_value=lambda r, x, y, z: x.scatter(r.axis(x), r.index(y), 1.0, reduce=r.one_of("add", "multiply")),
    scatter_plain=lambda r, x, y, z: x.scatter(r.axis(x), r.index(y), 2.0),
    scatter_add=lambda r, x, y, z: x.scatter_add(r.axis(x), r.index(y), y),
    scatter_reduce=lambda r, x, y, z: x.scatter_reduce(r.axis(x), r.index(y), z, r.one_of("sum", "amax", "mean")),
    scatter_zeros=lambda r, x, y, z: torch.zeros_like(x).scatter(r.axis(x), r.index(y), z),
    index_select=lambda r, x, y, z: x.index_select(r.axis(x), torch.tensor([1, 0])),
    index_select_by=lambda r, x, y, z: x.index_select(r.axis(x), r.index(y).flatten()),
    index_add=lambda r, x, y, z: r.mine(x).index_add_(r.axis(x), torch.arange(y.shape[-1]) % 2, y),
    index_copy=lambda r, x, y, z: x.index_copy(r.axis(x), torch.arange(y.shape[0]), y),
    index_fill=lambda r, x, y, z: x.index_fill(r.axis(x), torch.tensor([0]), 2.0),
    index_fill_by=lambda r, x, y, z: x.index_fill(r.axis(x), r.index(y).flatten(), 2.0),
    index_reduce=lambda r, x, y, z: x.index_reduce(r.axis(x), torch.arange(y.shape[0]), y, "amax"),
    index=lambda r, x, y, z: x[r.index(y)],
    index_columns=lambda r, x, y, z: x[:, r.index(y)],
    index_numbered=lambda r, x, y, z: x[torch.arange(x.shape[0]), r.index(y)],
    index_numbered_far=lambda r, x, y, z: x[torch.arange(x.shape[0])[:, None], :, r.index(y)],
    index_numbered_mask=lambda r, x, y, z: x[torch.arange(x.shape[0]), torch.arange(x.shape[1]) < x.shape[0]],
    index_both=lambda r, x, y, z: x[r.index(y), r.index(z)],
    index_fixed=lambda r, x, y, z: x[:, torch.tensor([0, 1, 0])],
    index_far=lambda r, x, y, z: x[torch.tensor([0, 1]), :, torch.tensor([1, 0])],
    index_rows=lambda r, x, y, z: x[torch.arange(x.shape[0])],
    index_table_mask=lambda r, x, y, z: r.weight(4, r.n)[r.index(x, 4)[:, 0], torch.ones(r.n, dtype=torch.bool)],
    index_last=lambda r, x, y, z: x[torch.arange(x.shape[0]), -1],
    mask_columns=lambda r, x, y, z: x[:, torch.arange(x.shape[1]) % 2 == 0],
    mask_two=lambda r, x, y, z: x[:, torch.ones(x.shape[1], x.shape[2], dtype=torch.bool).tril()],
    mask_rows=lambda r, x, y, z: x[x > 0] if r.chance(0.2) else x,
    masked_select=lambda r, x, y, z: x.masked_select(y > 0) if r.chance(0.2) else x,
    nonzero=lambda r, x, y, z: x.nonzero() if r.chance(0.2) else x,
    searchsorted=lambda r, x, y, z: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x),
    searchsorted_of=lambda r, x, y, z: torch.searchsorted(x.sort(-1).values, y),
    bucketize=lambda r, x, y, z: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
    bucketize_of=lambda r, x, y, z: torch.bucketize(x, y),
    isin=lambda r, x, y, z: torch.isin(r.index(x, 5), r.one_of(torch.tensor([1, 2]), r.index(y, 5))),
    isin_scalar=lambda r, x, y, z: torch.isin(r.index(x, 5), 2) if r.chance(0.5) else torch.isin(2, r.index(x, 5)),
    bincount=lambda r, x, y, z: r.index(x, 4).flatten().bincount(minlength=4),
    histc=lambda r, x, y, z: x.nan_to_num(0, 0, 0).histc(4, -1, 1),
    unique=lambda r, x, y, z: r.index(x, 4).unique() if r.chance(0.2) else x,
)
listed(
    add_=lambda r, x, y, z: r.mine(x).add_(y),
    mul_=lambda r, x, y, z: r.mine(x).mul_(y),
    copy_=lambda r, x, y, z: r.mine(x).copy_(y),
    data_copy_=lambda r, x, y, z: r.mine(x).data.copy_(y),
    fill_=lambda r, x, y, z: r.mine(x).fill_(2.0),
    zero_=lambda r, x, y, z: r.mine(x).zero_(),
    tanh_=lambda r, x, y, z: r.mine(x).tanh_(),
    clamp_=lambda r, x, y, z: r.mine(x).clamp_(-1, 1),
    masked_fill_=lambda r, x, y, z: r.mine(x).masked_fill_(y > 0, 0.5),
    masked_fill=lambda r, x, y, z: x.masked_fill(y > 0, float("-inf")).softmax(-1),
    masked_scatter=lambda r, x, y, z: x.masked_scatter(y > 0, z),
    fill_diagonal_=lambda r, x, y, z: r.mine(x).fill_diagonal_(1.0),
    uniform_=lambda r, x, y, z: r.mine(x).uniform_(),
    normal_seeded_=lambda r, x, y, z: r.mine(x).normal_(generator=r.generator),
    random_empty=lambda r, x, y, z: torch.empty_like(x).uniform_().copy_(y),
    index_put_random=lambda r, x, y, z: torch.rand(x.shape).index_put((torch.tensor([0, 1]),), y),
    poisson_uniform=lambda r, x, y, z: x * torch.poisson(torch.ones(x.shape), generator=r.one_of(None, r.generator)),
    resize_ones_=lambda r, x, y, z: x + torch.ones(2).resize_(x.shape),
    resize_random_=lambda r, x, y, z: x + torch.rand(2).resize_(x.shape),
    dropout_ones=lambda r, x, y, z: x * seeded_draw(r, lambda: F.dropout(torch.ones(x.shape), 0.5)),
    gru_state=lambda r, x, y, z: nn.GRU(2, x.shape[-1], batch_first=r.chance(0.5))(
        torch.zeros(r.n, 3, 2), x.unsqueeze(0)
    )[0],
    squeeze_=lambda r, x, y, z: r.mine(x).unsqueeze_(0),
    transpose_=lambda r, x, y, z: r.mine(x).transpose_(0, -1) if r.chance(0.3) else x,
    resize_=lambda r, x, y, z: x.clone().resize_(r.shape(x)),
    resize_more_=lambda r, x, y, z: r.weight(2).resize_(x.shape),
    set_=lambda r, x, y, z: torch.empty(0).set_(x),
    assign_data=lambda r, x, y, z: assign_data(x, y),
    write_slice=lambda r, x, y, z: write(torch.zeros(*x.shape[:-1], x.shape[-1] + 1), (..., slice(1, None)), x),
    write_column=lambda r, x, y, z: write(r.mine(x), (slice(None), 0), y),
    write_last=lambda r, x, y, z: write(r.mine(x), (..., 0), y),
    write_row=lambda r, x, y, z: write(r.mine(x), 0, y),
    write_number=lambda r, x, y, z: write(r.mine(x), r.one_of(0, (slice(None), 0), (..., -1)), 1.0),
    write_rows=lambda r, x, y, z: write(r.mine(x), slice(0, 2), y),
    write_two=lambda r, x, y, z: two_columns(r, x, y),
    write_index=lambda r, x, y, z: write(r.mine(x), r.index(y), 1.0),
    write_mask=lambda r, x, y, z: write(r.mine(x), y > 0, 0.25),
    write_mask_values=lambda r, x, y, z: write(r.mine(x), (slice(None), torch.arange(x.shape[1]) < 2), y),
    write_mask_columns=lambda r, x, y, z: write(r.mine(x), (slice(None), y > 0), 0.25),
    write_numbered=lambda r, x, y, z: write(r.mine(x), (torch.arange(x.shape[0]), r.index(y)), z),
    write_zeros=lambda r, x, y, z: write(torch.zeros(r.n, 4), (torch.arange(r.n), r.index(x, 4)), y),
    write_zeros_all=lambda r, x, y, z: write(torch.zeros(4, 3), r.index(x, 4), y),
    index_put=lambda r, x, y, z: x.index_put((torch.tensor([0, 1]),), y, accumulate=r.chance(0.5)),
    index_put_columns=lambda r, x, y, z: write(r.mine(x), (slice(None), torch.tensor([0, 1])), y),
    index_put_by=lambda r, x, y, z: x.index_put((r.index(y),), z, accumulate=True),
    slice_scatter=lambda r, x, y, z: x.slice_scatter(y, r.axis(x), 0, y.shape[0]),
    select_scatter=lambda r, x, y, z: x.select_scatter(y, r.axis(x), 0),
    put_=lambda r, x, y, z: x.clone().put_(r.index(y), z),
    add_out=lambda r, x, y, z: torch.add(x, y, out=r.mine(z)),
    mm_out=lambda r, x, y, z: torch.matmul(x, y, out=r.mine(z)),
    max_out=lambda r, x, y, z: torch.max(x, r.axis(x), out=(r.mine(y), torch.zeros(0, dtype=torch.long)))[0],
    arange_out=lambda r, x, y, z: torch.arange(x.numel(), out=r.mine(x)),
    mul_out_shared=lambda r, x, y, z: torch.mul(r.weight(*x.shape), 2, out=r.mine(x)),
    sum_out=lambda r, x, y, z: torch.sum(x, r.axis(x), out=r.mine(y)),
    swap_halves=lambda r, x, y, z: x.clone().copy_(x.flip(-1)),
    foreach=lambda r, x, y, z: torch._foreach_add([x, y], 1.0)[0],
    foreach_=lambda r, x, y, z: foreach_(r, x, y),
)
listed(
    dropout=lambda r, x, y, z: F.dropout(x, 0.5),
    dropout_channels=lambda r, x, y, z: F.dropout1d(x, 0.5),
    drop_path=lambda r, x, y, z: x * torch.rand(x.shape[0], *[1] * (x.dim() - 1)).add_(0.5).floor_(),
    rand_like=lambda r, x, y, z: torch.rand_like(x),
    noise=lambda r, x, y, z: x + torch.randn(x.shape),
    randn_sorted=lambda r, x, y, z: x * torch.rand(x.shape[0]).sort().values.view(-1, *[1] * (x.dim() - 1)),
    noise_by_position=lambda r, x, y, z: x + (torch.rand(x.shape[0]) + torch.arange(x.shape[0])).unsqueeze(-1),
    bernoulli=lambda r, x, y, z: torch.bernoulli(x.sigmoid().nan_to_num()),
    bernoulli_p=lambda r, x, y, z: torch.bernoulli(x, 0.5),
    bernoulli_=lambda r, x, y, z: r.mine(x).bernoulli_(y.sigmoid().nan_to_num()),
    normal_mean=lambda r, x, y, z: torch.normal(x, 0.5),
    normal_std=lambda r, x, y, z: torch.normal(0.5, x.abs().nan_to_num()),
    poisson=lambda r, x, y, z: torch.poisson(x.abs().nan_to_num()),
    multinomial=lambda r, x, y, z: torch.multinomial(x.abs().nan_to_num(1.0, 1.0, 1.0) + 0.1, 1),
    randint_to=lambda r, x, y, z: torch.randint_like(x, 5),
    randperm=lambda r, x, y, z: x[torch.randperm(x.shape[0])],
    randn_seeded=lambda r, x, y, z: x * torch.randn(x.shape, generator=r.generator),
    rand_seeded_rows=lambda r, x, y, z: x + torch.rand(x.shape[-1], generator=r.generator),
    seed_then_dropout=lambda r, x, y, z: seeded_draw(r, lambda: F.dropout(x, 0.5)),
    seed_then_rand=lambda r, x, y, z: seeded_draw(r, lambda: x + torch.rand_like(x)),
    dropout_shared=lambda r, x, y, z: x + F.dropout(torch.arange(float(x.shape[0])).unsqueeze(-1), 0.5),
    arange_rows=lambda r, x, y, z: x + torch.arange(x.shape[0]).view(-1, *[1] * (x.dim() - 1)),
    arange_columns=lambda r, x, y, z: x + torch.arange(x.shape[-1]),
    zeros=lambda r, x, y, z: x + torch.zeros(x.shape),
    eye=lambda r, x, y, z: x * torch.eye(x.shape[-2], x.shape[-1]),
    tril_mask=lambda r, x, y, z: x.masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool).tril(), 0.0),
    ones_like=lambda r, x, y, z: torch.ones_like(x),
    full=lambda r, x, y, z: torch.cat([x, torch.full((x.shape[0], 1), 2.0)], 1),
    item=lambda r, x, y, z: x * x.flatten()[0].item() if r.chance(0.1) else x,
    branch=lambda r, x, y, z: (x if x.sum() > 0 else -x) if r.chance(0.1) else x,
    cross_entropy=lambda r, x, y, z: F.cross_entropy(x, r.index(y, x.shape[1]), reduction=r.loss()),
    cross_entropy_weight=lambda r, x, y, z: F.cross_entropy(
        x, r.index(y, x.shape[1]), r.weight(x.shape[1]).abs(), reduction=r.loss(), label_smoothing=r.one_of(0.0, 0.1)
    ),
    nll_fixed=lambda r, x, y, z: F.nll_loss(x, torch.arange(x.shape[0]) % x.shape[1], reduction="none"),
    nll_zeros=lambda r, x, y, z: F.nll_loss(x, torch.zeros(x.shape[0], dtype=torch.long), reduction="none"),
    mse=lambda r, x, y, z: F.mse_loss(x, y, reduction=r.loss()),
    bce=lambda r, x, y, z: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r.loss()),
    huber=lambda r, x, y, z: r.one_of(F.smooth_l1_loss, F.huber_loss, F.l1_loss)(x, y, reduction=r.loss()),
    kl=lambda r, x, y, z: F.kl_div(x, y, reduction=r.loss()),
    margin=lambda r, x, y, z: F.multi_margin_loss(x, r.index(y, x.shape[1]), reduction=r.loss()),
    multilabel=lambda r, x, y, z: F.multilabel_margin_loss(x, r.index(y, x.shape[-1]), reduction=r.loss()),
    soft_margin=lambda r, x, y, z: F.soft_margin_loss(x, y.sign(), reduction=r.loss()),
    hinge=lambda r, x, y, z: F.hinge_embedding_loss(x, y.sign(), reduction=r.loss()),
    cosine_loss=lambda r, x, y, z: F.cosine_embedding_loss(x, y, torch.ones(x.shape[0]), reduction=r.loss()),
    triplet=lambda r, x, y, z: F.triplet_margin_loss(x, y, z, reduction=r.loss()),
    poisson_loss=lambda r, x, y, z: F.poisson_nll_loss(x, y.abs(), reduction=r.loss()),
    gaussian_loss=lambda r, x, y, z: F.gaussian_nll_loss(x, y, torch.ones_like(x), reduction=r.loss()),
    ctc=lambda r, x, y, z: ctc(r, x, y),
    inverse=lambda r, x, y, z: torch.linalg.inv_ex(well(x))[0],
    det=lambda r, x, y, z: torch.linalg.det(well(x)),
    cholesky=lambda r, x, y, z: torch.linalg.cholesky_ex(x @ x.mT + torch.eye(x.shape[-2]))[0],
    qr=lambda r, x, y, z: torch.linalg.qr(well(x))[1],
    solve=lambda r, x, y, z: torch.linalg.solve_ex(well(x), y)[0],
    svdvals=lambda r, x, y, z: torch.linalg.svdvals(x.nan_to_num(0, 0, 0).clamp(-9, 9)),
    matrix_power=lambda r, x, y, z: torch.linalg.matrix_power(x, 2),
    matrix_exp=lambda r, x, y, z: torch.matrix_exp(x.tanh()),
    triangular=lambda r, x, y, z: torch.linalg.solve_triangular(x.tril() + 2 * torch.eye(x.shape[-1]), y, upper=False),
    vander=lambda r, x, y, z: torch.linalg.vander(x.tanh(), N=3),
    cov=lambda r, x, y, z: torch.cov(x),
    block_diag=lambda r, x, y, z: torch.block_diag(x, y),
    cartesian=lambda r, x, y, z: torch.cartesian_prod(x, y),
    combinations=lambda r, x, y, z: torch.combinations(x),
    trapezoid=lambda r, x, y, z: torch.trapezoid(x, dim=r.axis(x)),
)


def attention_heads(r: Chooser, x: Tensor) -> Tensor:
    layer = nn.MultiheadAttention(x.shape[-1], 1, batch_first=r.chance(0.5))
    return layer(x, x, x, need_weights=r.chance(0.5))[0]


def recurrent(r: Chooser, layer: type[nn.Module], x: Tensor) -> Tensor:
    made = layer(x.shape[-1], 3, batch_first=r.chance(0.5), bidirectional=r.chance(0.3))  # type: ignore[call-arg]
    return made(x)[0]


def write(into: Tensor, where: Any, what: Any) -> Tensor:
    into[where] = what
    return into


def two_columns(r: Chooser, x: Tensor, y: Tensor) -> Tensor:
    first = r.chance(0.5)
    made = torch.zeros(2, *x.shape) if first else torch.zeros(x.shape[0], 2, *x.shape[1:])
    for i, value in enumerate((x, y)):
        made[i if first else (slice(None), i)] = value
    return made


def well(x: Tensor) -> Tensor:
    """A matrix that is far from singular."""
    return x.nan_to_num().tanh() + 2 * x.shape[-1] * torch.eye(x.shape[-2], x.shape[-1])


def assign_data(x: Tensor, y: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made.data = y
    return made


def foreach_(r: Chooser, x: Tensor, y: Tensor) -> Tensor:
    held = [r.mine(x), r.mine(y)]
    torch._foreach_mul_(held, 2.0)
    return held[1]


def seeded_draw(r: Chooser, draw: Callable[[], Tensor]) -> Tensor:
    """Draw after seeding torch's own generator, with the seed it had or another."""
    state = torch.get_rng_state()
    torch.manual_seed(r.one_of(7, 8))
    try:
        return draw()
    finally:
        torch.set_rng_state(state)


def ctc(r: Chooser, x: Tensor, y: Tensor) -> Tensor:
    steps, n, classes = x.shape
    targets = 1 + r.index(y, classes - 1)
    return F.ctc_loss(x.log_softmax(-1), targets[:, :1], (steps,) * n, (1,) * n, reduction=r.loss())


class Program:
    """A random program on a pool of tensors, decided by a seed, the shapes and n alone."""

    def __init__(self, seed: int, steps: int) -> None:
        r = random.Random(seed)
        self.seed, self.steps = seed, steps
        self.n = r.choice((2, 3, 4, 6))
        self.j = r.randrange(self.n)
        sizes = (self.n, self.n, 2, 3, 4, 6)
        g = torch.Generator().manual_seed(seed)
        a, b, c, d = (r.choice(sizes) for _ in range(4))
        self.batch = [
            torch.randn(self.n, a, b, generator=g),
            torch.randint(0, 4, (self.n, c), generator=g),
            torch.randn(self.n, d, 2, b, generator=g),
            torch.randn(self.n, a, generator=g) > 0,
            torch.randn(self.n, c, generator=g),
            torch.randn(self.n, generator=g),
        ]
        self.weights = [
            nn.Parameter(torch.randn(r.choice(sizes), r.choice(sizes), generator=g)),
            nn.Parameter(torch.randn(r.choice(sizes), generator=g)),
            nn.Parameter(torch.zeros(self.n, c)),
        ]
        self.graph = r.random() < 0.5
        self.others = [extreme] if r.random() < 0.3 else [replace]
        self.lines: list[str] = []

    def __call__(self, batch: list[Tensor]) -> list[Tensor]:
        r = Chooser(self.seed, self.n)
        self.lines = []
        pool = [*batch, *(nn.Parameter(w.data) for w in self.weights)]  # another form does not outlive a run
        with torch.set_grad_enabled(self.graph), torch.random.fork_rng(devices=[]):
            for _ in range(self.steps):
                name = r.random.choice(list(KINDS))
                made, (x, y, z) = self.attempt(r, name, pool)
                if isinstance(made, Tensor) and 0 < made.numel() <= LARGEST and made.dim() < 6:
                    self.lines.append(f"t{len(pool)} = {name}(t{x}, t{y}, t{z})  # {tuple(made.shape)}")
                    if not made.is_floating_point() and not made.is_complex() and r.chance(0.7):
                        made = made.float()
                    pool.append(made)
        return pool

    def attempt(self, r: Chooser, name: str, pool: list[Tensor]) -> tuple[Any, tuple[int, ...]]:
        """Apply a kind of operation to tensors that it can be applied to, if a few tries find some."""
        chosen: tuple[int, ...] = (0, 0, 0)
        for _ in range(TRIES):
            chosen = tuple(self.choose(r, pool) for _ in range(3))
            try:
                return KINDS[name](r, *(pool[i] for i in chosen)), chosen
            except FAILS as problem:
                if BY_VALUE.search(str(problem)):
                    raise Stopped from problem
        return None, chosen

    def choose(self, r: Chooser, pool: list[Tensor]) -> int:
        """Later tensors more often."""
        return len(pool) - 1 - int(len(pool) * r.random.random() ** 1.5)

    def check(self) -> Report:
        return check(self, self.batch, self.n, j=self.j, constants=self.weights, others=self.others)

    def __str__(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in (*self.batch, *self.weights))
        return "\n".join([f"seed {self.seed}, n = {self.n}, record {self.j}, t0.. = {shapes}", *self.lines])
