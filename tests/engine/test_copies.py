"""A chunk that is computed one sample at a time because of one of them: the others' gradients stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import PerSample, single_backward
from dpilot.engine.batch import Chunk
from dpilot.engine.generators import GeneratorStates
from dpilot.engine.isolate import copies, vmap
from tests.attacks.catalogue.edges import edge_beside_a_failure
from tests.attacks.judge import neighbour
from tests.engine.conftest import DEVICE

N, WORDS = 12, 50
entropy = nn.CrossEntropyLoss(reduction="none")


class Careful(nn.Module):
    """Ids beyond the table are taken for the last one; in the chunk that has some, a row is picked by its number."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.table, self.hidden, self.head = nn.Embedding(WORDS, width), nn.Linear(width, 24), nn.Linear(24, 5)
        self.norm, self.drop, self.scale = nn.LayerNorm(width), nn.Dropout(0.0), 0.0

    def forward(self, ids: Tensor) -> Tensor:
        try:
            tokens = self.table(ids)
        except IndexError:
            tokens = self.table(ids.clamp(max=WORDS - 1))
        tokens = self.drop(self.norm(tokens)) + self.scale * torch.randn_like(tokens)
        return self.head(self.hidden(tokens).relu().mean(1))


def build(kind: str) -> tuple[Careful, Callable[[], AbstractContextManager[object]]]:
    torch.manual_seed(0)
    model = Careful().to(DEVICE)
    if kind == "dropout":
        model.drop.p = 0.5
    if kind == "noise":
        model.scale = 1.0
    if kind == "weights":
        model.bfloat16()
    if kind == "autocast":
        return model, lambda: torch.autocast(DEVICE.type, torch.bfloat16)
    return model, nullcontext


def chunk() -> tuple[Tensor, Tensor]:
    return torch.randint(0, WORDS, (N, 6), device=DEVICE), torch.arange(N, device=DEVICE) % 5


KINDS = ["weights", "autocast", "dropout", "noise"]


@pytest.mark.parametrize("way", [single_backward.run, vmap.run])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_among_copies_of_itself_is_what_it_is_among_others(kind: str, way: Callable[..., PerSample]) -> None:
    model, context = build(kind)
    batch, weights = chunk(), torch.rand(N, device=DEVICE)
    with context():
        draws = GeneratorStates.now()
        together = way(Chunk(model, entropy, batch, N), reason="")
        sums, after = together.weighted_sum(weights), GeneratorStates.now()
        alone = copies.run(Chunk(model, entropy, batch, N), reason="", draws=draws, of_chunk=way)
        assert not after.moved()
        again = alone.weighted_sum(weights)
        assert not after.moved()
    assert torch.equal(alone.norms, together.norms)
    for name, value in sums.items():
        torch.testing.assert_close(again[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU raises nothing that a model could catch")
@pytest.mark.parametrize("kind", [*KINDS, "plain"])
def test_a_sample_that_an_operation_fails_on_moves_no_other(kind: str) -> None:
    model, context = build(kind)
    ids, y = chunk()
    bad = ids.clone()
    bad[-1] = WORDS
    weights = torch.ones(N)
    weights[-1] = 0.0
    with context():
        torch.manual_seed(1)
        before = engine.per_sample(model, entropy, (ids, y))
        sums = before.weighted_sum(weights)
        torch.manual_seed(1)
        after = engine.per_sample(model, entropy, (bad, y))
        again = after.weighted_sum(weights)
    assert before.engine == "single-backward"
    assert "embedding raises" in after.reason
    for name, value in sums.items():
        torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU raises nothing that a model could catch")
def test_the_sample_that_fails_has_its_own_gradient_and_draws_go_on() -> None:
    model, _ = build("dropout")
    model.eval()
    model.scale = 1e-9  # drawn, and too small to matter
    ids, y = chunk()
    ids[3] = WORDS
    before = GeneratorStates.now()
    found = engine.per_sample(model, entropy, (ids, y))
    assert before.moved()
    alone = engine.per_sample(model, entropy, (ids.clamp(max=WORDS - 1), y), engine="loop")
    torch.testing.assert_close(found.norms, alone.norms, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the edge is one of the CPU's own sums")
def test_a_sample_at_an_edge_stays_beside_one_that_is_judged_otherwise() -> None:
    """Alone its ReLUs would turn over, and its gradient would be 0."""
    case = edge_beside_a_failure()
    usual, beside = neighbour(replace(case, extra=tuple(t[:1] for t in case.data)), "last"), neighbour(case, "last")
    found = [engine.per_sample(case.model, case.loss, batch) for batch in (usual, beside)]
    assert [each.engine for each in found] == ["single-backward", "loop"]
    assert torch.equal(found[0].norms[:-1], found[1].norms[:-1])
