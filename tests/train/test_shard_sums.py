"""Sums and noise of a model in pieces: together the ranks release what one process would, each its own rows of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import dpilot
from dpilot import Trainer
from dpilot.engine import per_sample
from dpilot.engine.base import empty, trainable
from dpilot.errors import InvalidInput
from dpilot.keys import Chain
from dpilot.noise import seeded_noise
from dpilot.privacy.events import Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.private_sum import private_sum
from dpilot.train.ranks import Alone, find_ranks
from dpilot.train.shards import Part, Shards, whole_state
from dpilot.train.step import _add, initial_state
from dpilot.train.step import _ChunkGradients as ChunkGradients
from dpilot.train.sums import ExactSums, ShardSums, sum_types
from tests.train.helpers import LOSS, STEPS, data, fit, model, plan, records
from tests.train.threads import run_on_ranks


def released(make):
    """What two steps release on three chunks of records, dealt to the ranks in turn."""
    net, chosen, ranks = model(), plan("slack"), find_ranks()
    receipt = Receipt(Repeated(chosen.step_event, 2)) if ranks.leads else None
    noise, sums, found = seeded_noise(7), make(ranks, net), []
    kinds = sum_types(trainable(net), 18.0)
    inputs, labels = records(12)

    def piece(numbers):
        some = (
            empty(trainable(net), "none", "")
            if numbers is None
            else per_sample(net, LOSS, (inputs[numbers], labels[numbers]))
        )
        return sums.piece(ChunkGradients(some, None, kinds, None))

    for step in range(2):
        share = ranks.deal(Chain(bytes(32)), step, np.split(np.arange(12), 3))
        gradients, extras = private_sum(
            map(piece, sums.rounds(share.pieces)),
            chosen.clipping.clip,
            initial_state(chosen, net),
            empty=piece(None),
            noise_multiplier=chosen.noise_multiplier,
            sample_rate=chosen.sample_rate,
            receipt=receipt,
            noise=noise,
            add=_add,
            door=sums.release,
        )
        found.append((gradients, extras, sums.length(gradients)))
    return found


def whole(ranks, net):
    del ranks
    return ExactSums.of(Alone(), net, 18.0)


def in_pieces(ranks, net):
    parts = tuple(Part(name, each, each, ()) for name, each in net.named_parameters())
    made = ShardSums.of(Shards(net, ranks, parts, {}), 18.0, seeded_noise(7))
    assert made.kinds == sum_types(trainable(net), 18.0)
    return made


def put_together(rows, name, shape):
    """A leaf of which each rank released its rows."""
    return torch.cat([each[name].reshape(-1) for each in rows]).view(shape)


def test_each_rank_releases_its_rows_of_what_one_process_would():
    """The same sums and noise to the last bit, each coordinate its own, and other noise at each step."""
    alone = released(whole)
    for count in (2, 3):  # of three, some have no row of a parameter of two
        seen = run_on_ranks(count, lambda rank: released(in_pieces))
        for number, (gradients, extras, length) in enumerate(alone):
            steps = [rank[number] for rank in seen]
            for name, each in gradients.items():
                assert torch.equal(put_together([step[0] for step in steps], name, each.shape), each)
            assert all(torch.equal(step[1], extras) for step in steps)
            assert all(torch.equal(step[2], steps[0][2]) for step in steps)
            assert torch.allclose(steps[0][2].float(), length)


def test_hashes_of_rows_add_up_to_one_number_on_any_number_of_ranks():
    """By which a resumed run knows the sum that its noise covered; rows that change places are another sum."""

    def number_of(count, sums):
        def work(rank):
            made = in_pieces(find_ranks(), model())
            mine = {each.name: sums[each.name].reshape(-1)[s.first : s.last]
                    for each, s in zip(made.held.trained, made.held.layout, strict=True)}  # fmt: skip
            return made._hash(mine)

        return torch.stack(run_on_ranks(count, work)).sum(0).tolist()

    sums = {name: torch.arange(each.numel()).view(each.shape) for name, each in model().named_parameters()}
    turned = {name: each.flip(0) for name, each in sums.items()}
    assert number_of(1, sums) == number_of(2, sums) == number_of(3, sums)
    assert number_of(2, sums) != number_of(2, turned)


def test_a_part_says_whose_rows_are_whose():
    part = Part("table", None, nn.Parameter(torch.zeros(5, 3)), ())
    assert [part.stretch(rank, 4)[1:] for rank in range(4)] == [(0, 6), (6, 12), (12, 15), (15, 15)]


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_model_that_one_rank_has_whole_is_trained_like_a_plain_one(one_rank, tmp_path):
    net = fully_shard(model())
    run = fit("slack", net=net, checkpoint=tmp_path / "run", checkpoint_every=STEPS)
    assert all(isinstance(each, DTensor) for each in net.parameters())
    alone = fit("slack").model.state_dict()
    assert all(torch.allclose(each, alone[name], atol=1e-6) for name, each in whole_state(run.model).items())
    saved = dpilot.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(each, saved[name]) for name, each in whole_state(run.model).items())
    with pytest.raises(InvalidInput, match="the stored model was in pieces"):
        Trainer.resume(tmp_path / "run", model(), LOSS, data())
