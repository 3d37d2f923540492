"""Attacks on what a frozen backbone says of records: parts of it that train, and texts that a tokenizer refuses."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from dpilot.data.sentences import TextBackbone
from dpilot.errors import InvalidInput, UnsupportedModel
from dpilot.transfer.features import extract
from dpilot.transfer.probe import scores
from tests.attacks.case import normal


def test_a_backbone_of_which_a_part_trains_is_refused() -> None:
    """The statistics of the batch were in every record's features: an image moved others by 3.5."""
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    backbone[1].train()
    with pytest.raises(InvalidInput, match="training mode"):
        extract(backbone, normal(20, 3, 8, 8))


@pytest.mark.parametrize(
    "scale",
    [lambda x: x / x.max(), lambda x: (x - x.mean()) / x.std(), lambda x: x - x.mean((0, 2, 3), keepdim=True)],
    ids=["largest", "standardised", "centred"],
)
def test_a_function_that_scales_by_the_block_is_refused(scale: Any) -> None:
    """One bright image darkened all others of its block: 1.1 to 1.4 bounds of a probe of 40 images."""
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2)).eval()
    with pytest.raises(UnsupportedModel, match="on its own"):
        extract(lambda x: backbone(scale(x)), normal(20, 3, 8, 8))


def test_the_scores_of_a_record_are_the_same_wherever_it_stands() -> None:
    """The last rows of a product of 5 or 10 columns were rounded otherwise: equal records had other scores."""
    for width in (8, 10, 57, 100, 257):
        for classes in (2, 3, 5, 6, 7, 9, 10, 17):
            rows = normal(1, width, seed=width).repeat(2100, 1)
            assert len(scores(rows, normal(width, classes, seed=classes)).unique(dim=0)) == 1, (width, classes)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(256, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


def tokenizer(texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
    """Bytes; what cannot be encoded raises, as in the tokenizers of transformers."""
    return {"input_ids": [list(text.encode()) for text in texts]}


BACKBONE = TextBackbone("bytes", Encoder(), 3, 16, tokenizer)


@pytest.mark.parametrize("text", ["\ud800", "", None, 3])
def test_a_text_that_a_tokenizer_refuses_is_its_own_trouble(text: Any) -> None:
    """It raised."""
    found = BACKBONE.features(["one", "two", text])
    assert bool(found[2].isnan().all())
    assert torch.equal(found[:2], BACKBONE.features(["one", "two"]))


def test_texts_are_read_where_they_stand_whatever_their_labels() -> None:
    """A series was read by its labels, so each text was another record's."""
    series = pd.Series(["one", "two", "three"], index=[2, 0, 1])
    assert torch.equal(BACKBONE.features(series), BACKBONE.features(list(series)))


def test_a_function_that_branches_on_the_block_is_given_images_one_by_one() -> None:
    """``x / 255 if x.max() > 1 else x``: one image of bytes made all others of its block black."""
    images = torch.cat([normal(20, 1, 2, 2).sigmoid(), torch.full((1, 1, 2, 2), 255.0)])

    def scale(x: Tensor) -> Tensor:
        return x / 255 if x.max() > 1 else x

    found = extract(scale, images)
    assert torch.equal(found[:20], images[:20].flatten(1))
    assert torch.equal(found[20], torch.ones(4))


def test_a_long_text_changes_no_other_padding() -> None:
    """A longer text beside it would add padding to every other, and move it by roundings."""
    texts = [f"text {place}" for place in range(40)]
    seen: list[tuple[int, ...]] = []

    class Watching(Encoder):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            seen.append(tuple(input_ids.shape))
            return super().forward(input_ids, attention_mask)

    encoder = TextBackbone("bytes", Watching(), 3, 64, tokenizer)
    alone = encoder.features(texts)
    assert set(seen) == {(32, 16)}  # filled up, whatever is beside it
    assert torch.equal(encoder.features([*texts[:7], "a" * 60, *texts[7:]])[:7], alone[:7])
    assert set(seen) == {(32, 16), (32, 64)}


@pytest.mark.parametrize("odd", [torch.nan, 1.0])
def test_an_image_that_a_function_does_not_take_raises_nothing(odd: float) -> None:
    """The covariances of channels by their Cholesky factors: an image of one colour, or with a hole, has none."""

    def factors(images: Tensor) -> Tensor:
        channels = images.flatten(2) - images.flatten(2).mean(2, keepdim=True)
        return torch.linalg.cholesky(channels @ channels.mT).flatten(1)

    images = normal(20, 3, 8, 8)
    images[5] = odd
    assert len(extract(factors, images)) == 20


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_an_image_that_a_function_does_not_take_changes_no_draws_of_others(kind: str) -> None:
    """The function draws from a generator that it holds: 34 of 39 other images met other draws."""

    def augmented() -> Any:
        own, other = torch.Generator().manual_seed(0), np.random.default_rng(0)

        def factors(images: Tensor) -> Tensor:
            channels = images.flatten(2) - images.flatten(2).mean(2, keepdim=True)
            drawn = torch.rand(len(images), 3, generator=own) if kind == "torch" else torch.from_numpy(other.random(3))
            return torch.linalg.cholesky(channels @ channels.mT).flatten(1)[:, :3] + drawn

        return factors

    images = normal(20, 3, 8, 8)
    hole = images.clone()
    hole[5] = torch.nan
    kept = [i for i in range(20) if i != 5]
    assert torch.equal(extract(augmented(), images, 8)[kept], extract(augmented(), hole, 8)[kept])


def test_an_image_of_which_a_function_warns_is_not_seen() -> None:
    """A black image, divided by its largest pixel by numpy: a warning comes out, which other data do not cause."""
    images = normal(20, 3, 8, 8).sigmoid()
    images[5] = 0.0

    def scale(images: Tensor) -> Tensor:
        pixels = images.numpy()
        return torch.from_numpy(pixels.mean((2, 3)) / pixels.max((1, 2, 3))[:, None])

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        extract(scale, images)
    assert not seen


def test_an_image_with_features_of_another_number_raises_nothing() -> None:
    """The lit rows of an image: where one has fewer, torch.cat raises and names both widths."""
    images = normal(20, 3, 8, 8).sigmoid() + 1.0
    images[5, :, 4:] = 0.0

    def lit(images: Tensor) -> Tensor:
        return torch.stack([image[:, image.abs().sum((0, 2)) > 0].flatten() for image in images])

    assert len(extract(lit, images)) == 20
