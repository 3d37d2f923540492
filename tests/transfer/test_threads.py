"""Blocks on threads of their own: their number decides no bit, and torch has as many threads afterwards."""

from __future__ import annotations

import pytest
import torch

from dpilot.data.sentences import load_encoder
from dpilot.numerics.threads import map_blocks
from dpilot.transfer.scattering import scatter
from tests.encoders import save_encoder


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_number_of_threads_decides_no_bit(threads):
    pictures = torch.randint(256, (150, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = []
    for count in (1, 2, 5):
        threads(count)
        found.append(scatter(pictures, white=255.0))
        assert torch.get_num_threads() == count
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(scatter(pictures[70:75], white=255.0), found[0][70:75])


@pytest.mark.slow
def test_the_number_of_threads_decides_no_bit_of_a_text(threads, tmp_path):
    encoder = load_encoder(str(save_encoder(tmp_path / "encoder")), 12)
    texts = [None, *("good film " * (place % 5 + 1) for place in range(80))]
    found = []
    for count in (1, 3):
        threads(count)
        found.append(encoder.features(texts))
    assert torch.equal(found[0].nan_to_num(9), found[1].nan_to_num(9))
    assert torch.equal(encoder.features(texts[7:9]), found[0][7:9])


def test_a_block_is_computed_by_one_thread_with_gradients_as_the_caller_has_them(threads):
    threads(3)
    seen = map_blocks(lambda _: (torch.get_num_threads(), torch.is_inference_mode_enabled()), range(7))
    assert seen == [(1, False)] * 7
    assert map_blocks(lambda _: torch.get_num_threads(), [0]) == [1]  # a block alone too
    with torch.inference_mode():
        assert map_blocks(lambda _: torch.is_inference_mode_enabled(), range(3)) == [True] * 3
    with torch.no_grad():
        assert map_blocks(lambda _: torch.is_grad_enabled(), range(3)) == [False] * 3
    assert map_blocks(lambda _: torch.is_grad_enabled(), range(3)) == [True] * 3


def test_what_a_block_raises_is_raised_and_threads_come_back(threads):
    threads(2)
    with pytest.raises(ZeroDivisionError):
        map_blocks(lambda each: 1 / each, range(4))
    assert torch.get_num_threads() == 2
