"""transfer.prepare: what is trained, from where it starts, and that it can be trained privately."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpilot import Budget, Plan, Trainer, engine, transfer
from dpilot.errors import InvalidInput, UnsupportedModel
from dpilot.transfer import head as heads
from dpilot.transfer import lora
from tests.thin import thin
from tests.transfer.cases import CASES, CLASSES, Attention, Case, bert, gpt2, gpt2_language, plain, vit

METHODS = ("film", "lora", "bitfit", "head", "full", "scratch")
PAIRS = [(name, method) for name in CASES for method in METHODS if (name, method) != ("gpt2-language", "head")]


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.fixture(scope="module")
def plan_text() -> str:
    return Plan.calibrate(Budget(4.0, 1e-5), size=8, batch_size=8, steps=1, clipping="constant").to_json()


@pytest.mark.parametrize(("name", "method"), thin(PAIRS, 7))
def test_one_private_step_moves_what_is_trained_and_nothing_else(name: str, method: str, plan_text: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = transfer.prepare(case.make(), method)
    assert engine.check(model) == []
    before = {key: value.clone() for key, value in model.state_dict().items()}
    names = trained(model)
    Trainer(model, case.loss, Plan.from_json(plan_text), lr=0.5, chunk_size=8).fit(case.data())
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    tied = {"lm_head.weight"} if name == "gpt2-language" and method in ("full", "scratch") else set()
    assert moved - tied == names  # noise alone moves a weight


@pytest.mark.parametrize(("name", "method"), thin([(n, m) for n, m in PAIRS if m in ("film", "lora", "bitfit")], 4))
def test_per_sample_gradients_are_those_of_each_sample_alone(name: str, method: str) -> None:
    case = CASES[name]
    torch.manual_seed(1)
    model = transfer.prepare(case.make(), method).double()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))  # away from zeros, so that every gradient speaks
    x, y = case.data().tensors
    batch = (x.double() if x.is_floating_point() else x, y)
    ours, oracle = (engine.per_sample(model, case.loss, batch, e) for e in ("single-backward", "loop"))
    torch.testing.assert_close(ours.norms, oracle.norms, rtol=1e-9, atol=1e-12)
    weights = torch.rand(8, dtype=torch.float64)
    for key, expected in oracle.weighted_sum(weights).items():
        torch.testing.assert_close(ours.weighted_sum(weights)[key], expected, rtol=1e-8, atol=1e-10)


def test_film_trains_norms_and_head_only() -> None:
    assert trained(transfer.prepare(vit(), "film")) == {
        "classifier.bias", "classifier.weight", "vit.layernorm.bias", "vit.layernorm.weight",
        *(f"vit.layers.{i}.layernorm_{place}.{part}" for i in (0, 1) for place in ("before", "after")
          for part in ("weight", "bias")),
    }  # fmt: skip


def test_bitfit_trains_biases_and_head_only() -> None:
    model = transfer.prepare(bert(), "bitfit")
    biases = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    assert trained(model) == biases | {"classifier.weight"}


def adapters(model: nn.Module) -> dict[str, int]:
    return {
        name.split("base_model.model.")[1].split(".lora_A")[0]: parameter.shape[0]
        for name, parameter in model.named_parameters()
        if "lora_A" in name
    }


def test_lora_has_rank_one_on_all_of_attention_for_images() -> None:
    layers = {f"vit.layers.{i}.attention.{part}_proj" for i in (0, 1) for part in "qkvo"}
    assert adapters(transfer.prepare(vit(), "lora")) == dict.fromkeys(layers, 1)


def test_lora_has_rank_sixteen_on_query_and_key_for_text() -> None:
    layers = {f"bert.encoder.layer.0.attention.self.{part}" for part in ("query", "key")}
    assert adapters(transfer.prepare(bert(), "lora")) == dict.fromkeys(layers, 16)
    assert adapters(transfer.prepare(gpt2(), "lora")) == {"transformer.h.0.attn.c_attn": 16}


def test_lora_takes_rank_and_targets_and_keeps_the_function() -> None:
    model, x = plain(), CASES["plain"].inputs()
    for parameter in model[6].parameters():
        nn.init.zeros_(parameter)
    model = model.eval()
    hidden = model[:6](x)
    wrapped = transfer.prepare(model, "lora", rank=3, targets=["4.proj"])
    assert adapters(wrapped) == {"4.proj": 3}
    torch.testing.assert_close(wrapped.base_model.model[:6](x), hidden, rtol=0, atol=0)


def test_lora_trains_a_head_whose_name_ends_like_another() -> None:
    model = nn.Sequential()
    for place in range(13):
        model.append(nn.Linear(4, 4) if place == 2 else Attention(4) if place == 0 else nn.Identity())
    names = trained(transfer.prepare(model, "lora"))  # "2" is also the end of "12"
    assert {"base_model.model.2.weight", "base_model.model.2.bias"} <= names
    assert all("lora" in name for name in names - {"base_model.model.2.weight", "base_model.model.2.bias"})


def test_lora_keeps_the_head_in_what_peft_saves(tmp_path) -> None:
    from safetensors.torch import load_file

    transfer.prepare(bert(), "lora").save_pretrained(tmp_path)
    assert any("classifier" in name for name in load_file(tmp_path / "adapter_model.safetensors"))


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "plain"])
@pytest.mark.parametrize("method", ["film", "head", "full"])
def test_the_head_is_new_and_zero_and_has_the_classes_asked_for(name: str, method: str) -> None:
    case = CASES[name]
    made = case.make()
    place = heads.find(made)
    model = transfer.prepare(made, method, classes=7)
    head = model.get_submodule(place)
    assert head.out_features == 7
    assert not any(parameter.any() for parameter in head.parameters())
    outputs = model(case.inputs())
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    assert logits.shape == (8, 7)
    if name != "plain":
        assert model.config.num_labels == model.num_labels == 7


def test_the_head_is_found_where_models_keep_it() -> None:
    assert heads.find(vit()) == heads.find(bert()) == "classifier"
    assert heads.find(gpt2()) == "score"
    assert heads.find(plain()) == "6"
    assert heads.find(gpt2_language()) is None
    inner = nn.Module()
    inner.head, inner.extra = nn.Linear(2, 2), nn.Linear(2, 2)
    assert heads.find(inner) == "head"
    assert heads.find(inner, "extra") == "extra"


def test_full_keeps_the_weights_and_scratch_draws_them_anew() -> None:
    for make in (vit, plain):
        torch.manual_seed(0)
        model = make()
        first = next(model.parameters())
        before = first.detach().clone()
        assert torch.equal(next(transfer.prepare(model, "full").parameters()), before)
        renewed = transfer.prepare(model, "scratch")
        assert not torch.equal(next(renewed.parameters()), before)
        assert renewed.get_submodule(heads.find(renewed)).weight.any()


def test_a_language_model_keeps_its_output_layer() -> None:
    model = gpt2_language()
    before = model.lm_head.weight.detach().clone()
    prepared = transfer.prepare(model, "film")
    assert torch.equal(prepared.lm_head.weight, before)
    assert not prepared.lm_head.weight.requires_grad


def batch_normed() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    )
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    nn.init.uniform_(model[1].weight)
    return model


def test_batch_norm_is_refused_with_both_remedies_and_what_is_lost() -> None:
    with pytest.raises(UnsupportedModel, match=r"'1'.*freeze.*group.*running statistics are lost"):
        transfer.prepare(batch_normed(), "film")


def test_group_keeps_scale_and_shift() -> None:
    model = batch_normed()
    scale = model[1].weight.detach().clone()
    prepared = transfer.prepare(model, "film", batchnorm="group")
    assert isinstance(prepared[1], nn.GroupNorm)
    assert torch.equal(prepared[1].weight, scale)
    assert trained(prepared) == {"1.weight", "1.bias", "5.weight", "5.bias"}


def test_freeze_computes_what_the_pretrained_model_computed_in_every_mode(plan_text: str) -> None:
    case = Case(batch_normed, lambda: torch.randn(8, 3, 6, 6))
    model, (x, y) = batch_normed(), case.data().tensors
    expected = model.eval()[:5](x)
    prepared = transfer.prepare(model, "film", batchnorm="freeze").train()
    assert torch.equal(prepared[:5](x), expected)
    assert trained(prepared) == {"1.weight", "1.bias", "5.weight", "5.bias"}
    ours, oracle = (engine.per_sample(prepared, case.loss, (x, y), e) for e in ("single-backward", "loop"))
    torch.testing.assert_close(ours.norms, oracle.norms)
    statistics = prepared[1].running_mean.clone()
    Trainer(prepared, case.loss, Plan.from_json(plan_text), chunk_size=8).fit(case.data())
    assert torch.equal(prepared[1].running_mean, statistics)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "adapter"}, InvalidInput, "method is 'adapter'.*'film'"),
        ({"head": "nowhere"}, InvalidInput, "head is 'nowhere'.*'6'"),
        ({"classes": 0}, InvalidInput, "classes"),
        ({"rank": 4}, InvalidInput, "rank and targets are for method"),
        ({"batchnorm": "drop"}, InvalidInput, "batchnorm is 'drop'"),
        ({"method": "scratch", "batchnorm": "freeze"}, InvalidInput, 'use "group"'),
        ({"method": "lora", "rank": 0}, InvalidInput, "rank is 0"),
        ({"method": "lora", "targets": ["nowhere"]}, InvalidInput, "targets is"),
    ],
)
def test_what_is_wrong_with_the_call_is_named(options: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        transfer.prepare(plain(), **options)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(2)), nn.Linear(2, 2, bias=False)


@pytest.mark.parametrize(
    ("make", "method", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2)), "film", "no normalisation layer"),
        (lambda: nn.Sequential(nn.Linear(2, 2, bias=False)), "bitfit", "no bias"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), "lora", "no attention layer.*targets"),
        (lambda: nn.Sequential(nn.MultiheadAttention(4, 1), nn.Linear(4, 2)), "lora", "no attention layer"),
        (Bare, "scratch", "reset_parameters"),
        (lambda: nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 2)), "full", "BatchNorm"),
    ],
)
def test_models_that_a_method_cannot_take_are_refused_and_left_as_they_were(make, method: str, words: str) -> None:
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModel, match=words):
        transfer.prepare(model, method)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert trained(model) == {name for name, _ in model.named_parameters()}


def test_an_image_model_with_an_embedding_of_places_is_an_image_model() -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = CLIPVisionModel(CLIPVisionConfig(**sizes, image_size=8, patch_size=4))
    assert any(isinstance(module, nn.Embedding) for module in model.modules())
    assert lora.kind_of(model) == lora.kind_of(plain()) == "image"
    assert lora.kind_of(bert()) == lora.kind_of(nn.Sequential(nn.Embedding(2, 2))) == "text"


def test_a_model_that_cannot_be_prepared_twice_or_has_no_head_is_refused() -> None:
    with pytest.raises(InvalidInput, match="adapters already"):
        transfer.prepare(transfer.prepare(bert(), "lora"), "film")
    with pytest.raises(InvalidInput, match="no head that could be new"):
        transfer.prepare(gpt2_language(), "head")
    with pytest.raises(InvalidInput, match="no linear layer"):
        transfer.prepare(nn.Sequential(nn.Conv2d(1, 1, 1)), "head")
    with pytest.raises(InvalidInput, match=r"expected a torch.nn.Module"):
        transfer.prepare("model", "head")
    no_statistics = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 2))
    with pytest.raises(UnsupportedModel, match="no running statistics"):
        transfer.prepare(no_statistics, "full", batchnorm="freeze")
