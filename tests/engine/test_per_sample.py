"""The surface: batches, losses, null samples, refusals, and a model left as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpilot import engine
from dpilot.errors import InvalidInput, UnsupportedModel
from tests.contracts.zoo import DEVICE, N, build, cross_entropy

ENGINES = ("single-backward", "vmap", "loop")


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5))


def pair(n: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6, generator=torch.Generator(DEVICE).manual_seed(1)), torch.arange(n) % 5


def test_names_lists_the_default_first() -> None:
    assert engine.names() == ["single-backward", "vmap", "loop"]


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidInput, match="single-backward"):
        engine.per_sample(mlp(), cross_entropy, pair(), "ghost")


@pytest.mark.parametrize("name", ENGINES)
def test_empty_batch_gives_empty_norms_and_zero_sums(name: str) -> None:
    model = mlp()
    ps = engine.per_sample(model, cross_entropy, pair(0), name)
    assert ps.norms.shape == (0,)
    sums = ps.weighted_sum(torch.zeros(0))
    assert all(torch.equal(sums[key], torch.zeros_like(p)) for key, p in model.named_parameters())
    assert ps.group_norms([["0.weight", "0.bias"], ["2.weight", "2.bias"]]).shape == (0, 2)


@pytest.mark.parametrize("name", ENGINES)
def test_batch_of_one_is_the_plain_gradient(name: str) -> None:
    model, batch = mlp(), pair(1)
    sums = engine.per_sample(model, cross_entropy, batch, name).weighted_sum(torch.ones(1))
    expected = torch.autograd.grad(cross_entropy(model(batch[0]), batch[1]).sum(), list(model.parameters()))
    for ours, theirs in zip(sums.values(), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("name", ["auto", *ENGINES])
def test_scalar_loss_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(InvalidInput, match='reduction="none"'):
        engine.per_sample(mlp(), nn.CrossEntropyLoss(), pair(), name)


@pytest.mark.parametrize("name", ["auto", *ENGINES])
def test_loss_with_more_numbers_a_sample_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="flatten"):
        engine.per_sample(mlp(), lambda out, y: out - y[:, None], pair(), name)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
def test_a_sample_that_is_not_finite_is_null_and_others_are_untouched(name: str, poison: float) -> None:
    model, (x, y) = mlp(), pair()
    clean = engine.per_sample(model, cross_entropy, (x, y), name)
    spoiled = x.clone()
    spoiled[1] = poison
    ps = engine.per_sample(model, cross_entropy, (spoiled, y), name)
    assert not torch.isfinite(ps.norms[1])
    others = torch.tensor([True, False, True, True])
    assert torch.equal(ps.norms[others], clean.norms[others])
    expected = clean.weighted_sum(others.float())
    for weight in (1.0, math.nan, math.inf):  # whatever weight it is given
        sums = ps.weighted_sum(torch.where(others, 1.0, weight))
        assert all(torch.equal(sums[key], expected[key]) for key in sums)
    assert torch.isinf(ps.group_norms([list(ps.names)])[1]).all()


@pytest.mark.parametrize("case", ["conv_gram", "resnet", "embedding", "gru", "transformer_encoder", "reused_module"])
@pytest.mark.parametrize("low_memory", [False, True])
def test_a_null_sample_adds_exact_zeros_in_every_layer(case: str, low_memory: bool) -> None:
    made = build(case, torch.float32)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return made.loss(out, y) * torch.where(y == 2, math.inf, 1.0)

    ps = engine.per_sample(made.model, loss, made.batch, "single-backward", low_memory=low_memory)
    clean = engine.per_sample(made.model, made.loss, made.batch, "single-backward", low_memory=low_memory)
    assert torch.isfinite(ps.norms).tolist() == [True, True, False, True]
    sums, expected = ps.weighted_sum(torch.ones(N)), clean.weighted_sum(torch.tensor([1.0, 1.0, 0.0, 1.0]))
    assert all(torch.allclose(sums[key], expected[key], rtol=1e-5, atol=1e-7) for key in sums)


def test_group_norms_and_group_weights_split_the_gradient() -> None:
    ps = engine.per_sample(mlp(), cross_entropy, pair(), "single-backward")
    groups = [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
    norms = ps.group_norms(groups)
    assert torch.allclose(norms.square().sum(1).sqrt(), ps.norms, rtol=1e-5)
    weights = torch.rand(4, 2)
    sums = ps.weighted_sum(weights, groups)
    for column, group in enumerate(groups):
        alone = ps.weighted_sum(weights[:, column])
        assert all(torch.equal(sums[name], alone[name]) for name in group)
    each = ps.weighted_sum(torch.rand(4, 4))
    assert list(each) == list(ps.names)
    with pytest.raises(InvalidInput, match="exactly one group"):
        ps.group_norms([["0.weight"]])
    with pytest.raises(InvalidInput, match=r"expected \(4,\) or"):
        ps.weighted_sum(torch.ones(3))
    with pytest.raises(InvalidInput, match="one column a group"):
        ps.weighted_sum(torch.ones(4, 3), groups)


def test_samples_not_first_are_refused() -> None:
    class Time(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.mix(x).mean(0))

    y = torch.arange(4)
    with pytest.raises(InvalidInput, match="first"):
        engine.per_sample(Time(), cross_entropy, (torch.randn(3, 4, 6), y))
    with pytest.raises(UnsupportedModel, match="first"):
        engine.per_sample(Time(), cross_entropy, (torch.randn(4, 4, 6), y), "single-backward")
    with pytest.raises(ValueError, match="batch_size"):  # from the loss itself, with one sample at a time
        engine.per_sample(Time(), cross_entropy, (torch.randn(4, 4, 6), y))


@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_layers_that_see_time_first_are_refused_or_right(length: int) -> None:
    class TimeInside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.mix(x.transpose(0, 1))).transpose(0, 1).mean(1))

    model, batch = TimeInside(), (torch.randn(4, length, 6), torch.arange(4))
    with pytest.raises(UnsupportedModel, match="first"):
        engine.per_sample(model, cross_entropy, batch, "single-backward")
    if length % 3:  # found by its shape: auto takes another engine; otherwise only the numbers tell, and it is refused
        ps = engine.per_sample(model, cross_entropy, batch)
        assert ps.engine == "vmap"
        assert "first" in ps.reason


@pytest.mark.parametrize("name", ["auto", *ENGINES])
def test_batch_norm_is_refused_and_its_replacement_accepted(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 5))
    with pytest.raises(UnsupportedModel, match="replace_batch_norm"):
        engine.per_sample(model, cross_entropy, pair(), name)
    assert engine.check(engine.replace_batch_norm(model)) == []
    assert torch.isfinite(engine.per_sample(model, cross_entropy, pair(), name).norms).all()


class Mixing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_mixing_samples_in_the_model_is_found_by_numbers() -> None:
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Mixing(6, 5), cross_entropy, pair())


def divided(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out, y) / len(y)


def weighed_by_others(out: Tensor, y: Tensor) -> Tensor:
    each = cross_entropy(out, y)
    return each * each.mean()


@pytest.mark.parametrize("loss", [divided, weighed_by_others])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_mixing_samples_in_the_loss_is_found_by_numbers(loss: Callable[..., Tensor], dropout: float) -> None:
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(nn.Sequential(mlp(), nn.Dropout(dropout)), loss, pair())


def test_another_loss_is_tested_anew_even_if_it_has_no_name() -> None:
    model = mlp()
    losses = [lambda out, y: cross_entropy(out, y), lambda out, y: cross_entropy(out, y) / len(y)]
    engine.per_sample(model, losses[0], pair())
    with pytest.raises(UnsupportedModel):
        engine.per_sample(model, losses[1], pair())


def test_mixing_is_found_behind_dropout_too() -> None:
    model = nn.Sequential(nn.Dropout(0.5), Mixing(6, 5))
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(model, cross_entropy, pair())


class Picky(nn.Module):
    """A model that accepts whole numbers and not-a-numbers only, so no made-up sample."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        if not ((x == x.round()) | x.isnan()).all():
            raise ValueError("whole numbers only")
        return self.body(x)


@pytest.mark.parametrize("body", [mlp, lambda: Mixing(6, 5)])
@pytest.mark.parametrize("poison", [None, math.nan, math.inf])
def test_a_model_that_refuses_made_up_samples_is_never_tested_on_records(body, poison: float | None) -> None:
    x, y = torch.arange(24.0).reshape(4, 6), torch.arange(4)
    if poison is not None:
        x[1] = poison
    model = Picky(body())
    ps = engine.per_sample(model, cross_entropy, (x, y))
    assert ps.engine == "loop"
    assert "cannot run on made-up samples" in ps.reason
    assert bool(torch.isfinite(ps.norms[1])) == (poison is None)
    assert torch.isfinite(ps.norms[[0, 2, 3]]).all()
    neighbour = engine.per_sample(Picky(body()), cross_entropy, (x[:3], y[:3]))
    assert (neighbour.engine, neighbour.reason) == (ps.engine, ps.reason)
    with pytest.raises(UnsupportedModel, match="cannot run on made-up samples"):
        engine.per_sample(model, cross_entropy, (x, y), "single-backward")


def test_buffers_that_remember_samples_are_refused_and_put_back() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += x.detach().sum(0)
            return self.body(x)

    model = Remembers()
    with pytest.raises(UnsupportedModel, match="seen"):
        engine.per_sample(model, cross_entropy, pair())
    assert torch.equal(model.seen, torch.zeros(6))


def test_instance_norm_with_running_statistics_is_refused() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten(), nn.Linear(16, 5)
    )
    with pytest.raises(UnsupportedModel, match="track_running_stats"):
        engine.per_sample(model, cross_entropy, (torch.randn(4, 2, 6), torch.arange(4)))


def test_tuple_and_dict_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 5), nn.Linear(3, 5)

        def forward(self, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
            return self.a(left) * scale + self.b(right)

    model, left, right, y = Two(), torch.randn(4, 6), torch.randn(4, 3), torch.arange(4)
    by_tuple = engine.per_sample(model, cross_entropy, ((left, right), y))
    by_name = engine.per_sample(model, cross_entropy, ({"right": right, "left": left, "scale": 1.0}, y))
    assert torch.equal(by_tuple.norms, by_name.norms)


def test_hugging_face_style_batches_keep_their_type() -> None:
    from transformers import BatchEncoding

    case = build("bert", torch.float32)
    plain = engine.per_sample(case.model, case.loss, case.batch, per_batch=True)
    encoded = engine.per_sample(case.model, case.loss, BatchEncoding(case.batch), per_batch=True)
    assert torch.equal(plain.norms, encoded.norms)


def snapshot(model: nn.Module) -> dict[str, object]:
    return {
        "keys": list(model.state_dict()),
        "values": {k: v.clone() for k, v in model.state_dict().items()},
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grads": [p.grad for p in model.parameters()],
        "hooks": [
            [len(h) for h in vars(m).values() if isinstance(h, dict) and "hooks" in str(type(h)).lower()]
            for m in model.modules()
        ],
        "hook_counts": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()
        ],
        "modes": [m.training for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "parameter_attributes": [sorted(vars(p)) for p in model.parameters()],
        "forward": [m.forward.__func__ for m in model.modules()],
        "random": torch.get_rng_state(),
    }


def assert_unchanged(model: nn.Module, before: dict[str, object], *, draws: bool = False) -> None:
    """``draws``: seeds are drawn, one for each sample."""
    after = snapshot(model)
    for key in before:
        if key == "values":
            assert all(torch.equal(after[key][k], v) for k, v in before[key].items())
        elif key == "grads":
            assert all(a is b for a, b in zip(after[key], before[key], strict=True))
        elif key == "random":
            assert draws or torch.equal(after[key], before[key])
        else:
            assert after[key] == before[key], key


@pytest.mark.parametrize("name", ENGINES)
def test_the_model_is_left_exactly_as_it_was(name: str) -> None:
    model, batch = mlp(), pair()
    model[0].bias.requires_grad_(False)
    model[2].weight.grad = torch.ones_like(model[2].weight)
    before, version = snapshot(model), [p._version for p in model.parameters()]
    engine.per_sample(model, cross_entropy, batch, name).weighted_sum(torch.ones(4))
    assert_unchanged(model, before, draws=name == "loop")
    assert [p._version for p in model.parameters()] == version
    assert not any(vars(t) for t in batch)


@pytest.mark.parametrize("name", ENGINES)
def test_the_model_is_left_as_it_was_after_an_exception(name: str) -> None:
    model, batch = mlp(), pair()
    before = snapshot(model)

    def broken(out: Tensor, y: Tensor) -> Tensor:
        raise KeyError("no such loss")

    with pytest.raises((KeyError, UnsupportedModel), match="no such loss"):
        engine.per_sample(model, broken, batch, name)
    assert_unchanged(model, before, draws=name == "loop")
    assert not any(vars(t) for t in batch)
    assert torch.equal(torch.ones(2) + torch.ones(2), 2 * torch.ones(2))  # no mode is left on


def test_dropout_draws_a_mask_for_every_sample_and_the_gradient_matches_it() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(50, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.dropout(x, 0.5)).squeeze(1)

    x = torch.ones(4, 50)
    for name in ENGINES:
        ps = engine.per_sample(Dropped(), lambda out, y: out, (x, torch.zeros(4)), name)
        rows = [ps.weighted_sum(torch.eye(4)[i])["head.weight"] for i in range(4)]
        assert all(set(row.unique().tolist()) == {0.0, 2.0} for row in rows)
        assert not torch.equal(rows[0], rows[1])


def test_no_grad_and_inference_mode_around_the_call_do_not_matter() -> None:
    model, batch = mlp(), pair()
    expected = engine.per_sample(model, cross_entropy, batch).norms
    with torch.no_grad():
        assert torch.equal(engine.per_sample(model, cross_entropy, batch).norms, expected)


def test_a_parameter_the_loss_ignores_gets_zeros() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.spare = mlp(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    for name in ENGINES:
        sums = engine.per_sample(Spare(), cross_entropy, pair(), name).weighted_sum(torch.ones(4))
        assert sums["spare.weight"].shape == (3, 3)
        assert not sums["spare.weight"].any()


def test_bags_with_offsets_are_refused_with_a_remedy() -> None:
    model = nn.EmbeddingBag(9, 5)
    flat = {"input": torch.randint(0, 9, (12,)), "offsets": torch.arange(0, 12, 3)}
    with pytest.raises(UnsupportedModel, match="rows, with padding_idx"):
        engine.per_sample(model, cross_entropy, (flat, torch.arange(4)), "single-backward")


def test_deep_copies_and_repeated_calls_agree() -> None:
    model, batch = mlp(), pair()
    first = engine.per_sample(model, cross_entropy, batch)
    again = engine.per_sample(copy.deepcopy(model), cross_entropy, batch)
    assert torch.equal(first.norms, again.norms)
    assert "as one at a time" in first.reason
    weights = torch.rand(4)
    one, two = first.weighted_sum(weights), first.weighted_sum(weights)
    assert all(torch.equal(one[k], two[k]) for k in one)
