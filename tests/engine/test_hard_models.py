"""Models that trip other engines: checkpoints, autocast, unseen uses, differentiating inside, in-place writes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpilot import engine
from dpilot.engine import single_backward
from dpilot.engine.base import NoRule
from dpilot.engine.batch import Chunk
from dpilot.errors import UnsupportedModel
from tests.contracts.test_engines import assert_contract
from tests.contracts.zoo import DEVICE, Case, cross_entropy, labels


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.words = nn.Embedding(9, 8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.rand(8))
        self.head = nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(lambda h, b=block: b(h) * self.scale, x, use_reentrant=self.reentrant)
        return self.head(x.mean(1))


def checkpointed(reentrant: bool) -> Case:
    torch.manual_seed(0)
    return Case(Checkpointed(reentrant).double(), (torch.randint(0, 9, (4, 3)), labels()), cross_entropy)


@pytest.mark.parametrize("way", ["single-backward", "low-memory"])
def test_gradient_checkpointing(way: str) -> None:
    assert_contract(checkpointed(False), way, torch.float64)


def test_reentrant_checkpoints_are_computed_one_sample_at_a_time() -> None:
    case = checkpointed(True)
    with pytest.raises(UnsupportedModel, match=r"CheckpointFunction .*use_reentrant=False"):
        engine.per_sample(case.model, case.loss, case.batch, "single-backward")
    assert engine.per_sample(case.model, case.loss, case.batch).engine == "loop"
    plain = checkpointed(False)
    plain.model.load_state_dict(case.model.state_dict())
    expected = engine.per_sample(plain.model, plain.loss, plain.batch, "single-backward")
    assert torch.allclose(engine.per_sample(case.model, case.loss, case.batch).norms, expected.norms, rtol=1e-9)
    assert_contract(case, "auto", torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("low_memory", [False, True])
def test_autocast_keeps_norms_and_sums_in_float32(dtype: torch.dtype, low_memory: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 5))
    batch = (torch.randn(4, 4, 16), labels())
    exact = engine.per_sample(model, cross_entropy, batch, "loop")
    with torch.autocast(DEVICE.type, dtype=dtype):
        ps = engine.per_sample(model, cross_entropy, batch, "single-backward", low_memory=low_memory)
        sums = ps.weighted_sum(torch.ones(4))
    assert ps.norms.dtype == torch.float32
    assert all(g.dtype == torch.float32 for g in sums.values())
    assert torch.allclose(ps.norms, exact.norms, rtol=0.05)
    alone = [sum(g.double().square().sum() for g in ps.weighted_sum(torch.eye(4)[i]).values()).sqrt() for i in range(4)]
    assert (torch.stack(alone) <= ps.norms.double()).all()
    rounded = 0.999 if DEVICE.type == "cpu" else 0.98  # bfloat16 products of a GPU have their rounding added
    assert (torch.stack(alone) >= ps.norms.double() * rounded).all()


def test_a_model_in_bfloat16_has_float32_norms() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5)).bfloat16()
    batch = (torch.randn(4, 6).bfloat16(), labels())
    for name in engine.names():
        ps = engine.per_sample(model, lambda out, y: cross_entropy(out.float(), y), batch, name)
        assert ps.norms.dtype == torch.float32
        assert all(g.dtype == torch.float32 for g in ps.weighted_sum(torch.ones(4)).values())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return 2 * x @ weight

    @staticmethod
    def backward(ctx, e):
        x, weight = ctx.saved_tensors
        return 2 * e @ weight.T, 2 * x.T @ e


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x, self.weight)


def test_a_weight_inside_a_custom_function_is_refused_and_auto_takes_the_loop() -> None:
    model, batch = Hidden(), (torch.randn(4, 6), labels())
    with pytest.raises(UnsupportedModel, match=r'Doubled has a backward pass of its own.* Use engine="auto"'):
        engine.per_sample(model, cross_entropy, batch, "single-backward")
    ps = engine.per_sample(model, cross_entropy, batch)
    assert ps.engine == "loop"
    assert "Doubled" in ps.reason
    assert torch.equal(ps.norms, engine.per_sample(model, cross_entropy, batch, "loop").norms)


class Unseen(nn.Linear):
    """Its weight meets the samples where torch's functions are switched off: only the graph tells."""

    def forward(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return F.linear(x, self.weight, self.bias)


class TimeFirst(nn.Linear):
    """As many tokens as samples, which lie on the second axis where they meet the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1)).sum(0)


class AnotherAgain(nn.Linear):
    """A checkpoint that exchanges the samples when it is run again, without any weight."""

    def forward(self, x: Tensor) -> Tensor:
        calls = iter(range(2))

        def activation(hidden: Tensor) -> Tensor:
            return (hidden if next(calls) == 0 else hidden.flip(0)).tanh()

        out: Tensor = checkpoint(activation, super().forward(x), use_reentrant=False)
        return out


@pytest.mark.parametrize(
    ("kind", "shape", "why"),
    [
        (Unseen, (4, 6), "parameter 'weight' is used where torch functions cannot be watched"),
        (TimeFirst, (4, 4, 6), "its samples are not on the first axis"),
        (AnotherAgain, (4, 6), "computed again in the backward pass: flip"),
    ],
)
def test_one_pass_over_records_refuses_what_it_does_not_see(kind: type, shape: tuple[int, ...], why: str) -> None:
    """The pass by itself, whatever made-up samples said before."""
    batch = torch.randn(shape), labels()
    with pytest.raises(NoRule, match=why):
        single_backward.run(Chunk(kind(6, 5), cross_entropy, batch, 4), reason="")


def test_scripted_modules_are_listed() -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        scripted = torch.jit.script(nn.Linear(6, 5))
    (problem,) = engine.check(nn.Sequential(scripted))
    assert "TorchScript" in problem.what


def test_differentiating_inside_the_forward_pass_is_refused() -> None:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            out = torch.tanh(self.body(x))
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out + slope.sum(1, keepdim=True)

    model, batch = Penalised(), (torch.randn(4, 6), labels())
    with pytest.raises(UnsupportedModel, match="inside its forward"):
        engine.per_sample(model, cross_entropy, batch, "single-backward")
    ps = engine.per_sample(model, cross_entropy, batch)
    assert ps.engine in ("vmap", "loop")
    assert torch.allclose(ps.norms, engine.per_sample(model, cross_entropy, batch, "loop").norms, rtol=1e-5)


def test_overwriting_a_layers_input_is_an_error_never_a_wrong_gradient() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.exp(self.first(x)) * 1.0
            out = self.second(h)
            h.add_(1.0)
            return out + h.sum(1, keepdim=True)

    with pytest.raises(UnsupportedModel, match="modified by an inplace operation"):
        engine.per_sample(Overwrites(), cross_entropy, (torch.randn(4, 6), labels()), "single-backward")


def test_writing_a_weight_into_samples_in_place_is_refused_or_right() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1.0
            x[:, 0] = self.token
            return self.head(x.mean(1))

    batch = (torch.randn(4, 3, 6), labels())
    with pytest.raises(UnsupportedModel):
        engine.per_sample(Writes(), cross_entropy, batch, "single-backward")
    ps = engine.per_sample(Writes(), cross_entropy, batch)
    assert ps.engine in ("vmap", "loop")


def test_packed_sequences_are_computed_one_sample_at_a_time() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.GRU(6, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((x.shape[0],), 3).cpu(), batch_first=True)
            return self.head(self.body(packed)[1][0])

    case = Case(Packed().double(), (torch.randn(4, 3, 6).double(), labels()), cross_entropy)
    with pytest.raises(UnsupportedModel, match=r'_pack_padded_sequence.* Use engine="auto"'):
        engine.per_sample(case.model, case.loss, case.batch, "single-backward")
    assert engine.per_sample(case.model, case.loss, case.batch).engine == "loop"
    assert_contract(case, "auto", torch.float64)


def test_a_loss_that_adds_a_penalty_on_weights_counts_it_for_every_sample() -> None:
    model = nn.Linear(6, 5).double()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(out, y) + 0.1 * model.weight.square().sum()

    assert_contract(Case(model, (torch.randn(4, 6).double(), labels()), loss), "single-backward", torch.float64)


def test_samples_that_are_as_many_as_tokens_or_features_are_not_confused() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.rows = nn.Embedding(4, 4), nn.Parameter(torch.randn(4, 4))
            self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.mix(x) + self.place(torch.arange(4)) + self.rows
            return self.head(torch.tanh(x * self.rows[0]).mean(1))

    torch.manual_seed(0)
    case = Case(Square().double(), (torch.randn(4, 4, 4).double(), labels()), cross_entropy)
    assert_contract(case, "single-backward", torch.float64)


def test_functional_uses_of_one_weight_are_all_counted() -> None:
    class Everywhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            y = F.linear(x, self.w) + x @ self.w + x @ self.w.T + x * self.w[0] + self.w.mean()
            return y + F.embedding((x[:, 0] > 0).long(), self.w) + F.layer_norm(x, (5,), self.w[1], self.w[:, 2])

    torch.manual_seed(0)
    for way in ("single-backward", "low-memory"):
        case = Case(Everywhere().double(), (torch.randn(4, 5).double(), labels()), cross_entropy)
        assert_contract(case, way, torch.float64)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_a_compiled_model_is_run_as_it_was_written() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    batch = (torch.randn(4, 6), labels())
    expected = engine.per_sample(model, cross_entropy, batch)
    compiled = torch.compile(model)
    ours = engine.per_sample(compiled, cross_entropy, batch)
    assert ours.engine == "single-backward"
    assert torch.equal(ours.norms, expected.norms)


def test_transformers_in_eval_mode_do_not_slip_past_the_recorder() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            padding = torch.zeros(x.shape[:2], dtype=torch.bool)
            padding[:, -1] = True
            return self.head(self.body(x, src_key_padding_mask=padding).mean(1))

    case = Case(Padded().double().eval(), (torch.randn(4, 3, 8).double(), labels()), cross_entropy)
    assert_contract(case, "single-backward", torch.float64)


def test_buffers_that_samples_are_written_into_keep_no_mark() -> None:
    class Scratch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)
            self.register_buffer("scratch", torch.zeros(4, 6), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            scratch = self.scratch[: x.shape[0]].clone()
            scratch[:, :] = x
            return self.body(scratch)

    model, batch = Scratch(), (torch.randn(4, 6), labels())
    ps = engine.per_sample(model, cross_entropy, batch)
    assert torch.allclose(ps.norms, engine.per_sample(model, cross_entropy, batch, "loop").norms, rtol=1e-5)
    assert not vars(model.scratch)


@pytest.mark.parametrize("rows", [1, 3])
def test_an_embedding_with_sparse_gradients_trains_one_record_at_a_time(rows: int) -> None:
    """Its gradient could not be measured: every record of a chunk of one, and of a hardened run, was null."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
    batch = torch.tensor([[0, 1], [1, 1], [4, 2]])[:rows], torch.tensor([0, 1, 1])[:rows]
    loss = nn.CrossEntropyLoss(reduction="none")
    found = engine.per_sample(model, loss, batch, engine="loop").norms
    model[0].sparse = False
    assert torch.equal(found, engine.per_sample(model, loss, batch, engine="loop").norms)
