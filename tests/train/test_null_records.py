"""A record of another form, or one that cannot be read or computed, adds nothing and leaves the others as they are."""

from __future__ import annotations

import warnings
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from torch import nn

from dpilot import PrivateStep, Trainer, poisson_loader
from tests.tapes import exact_sum
from tests.train.helpers import LOSS, model, plan, records

INPUTS, LABELS = records(40)
BASE = [(x, int(y)) for x, y in zip(INPUTS, LABELS, strict=True)]
EXAMPLE = (INPUTS[:2] * 0, LABELS[:2] * 0)
ROUNDING = 1e-4


class Lazy:
    """A data set whose records are made when they are read."""

    def __init__(self, made):
        self.made = made

    def __len__(self):
        return len(self.made)

    def __getitem__(self, i):
        found = self.made[i]
        return found() if callable(found) else found


def fit(dataset, net=None, loss=LOSS, **more):
    options = {"chunk_size": 64, "example": EXAMPLE, "test_seed": 3, **more}
    Trainer(net or model(), loss, plan("slack", rate=1.0, steps=1), **options).fit(dataset)


def loop(dataset, net=None, loss=LOSS, workers=0, collate_fn=None, **more):
    chosen, net = plan("slack", rate=1.0, steps=1), net or model()
    options = {"example": EXAMPLE, "test_seed": 3, **more}
    step = PrivateStep(net, loss, torch.optim.SGD(net.parameters(), lr=0.5), chosen, **options)
    for batch in poisson_loader(dataset, chosen, num_workers=workers, collate_fn=collate_fn):
        step(batch)


def loop_with_worker(dataset, **more):
    loop(dataset, workers=1, **more)


def distance(one, other):
    return float(np.linalg.norm(one - other))


@pytest.fixture(scope="module")
def expected():
    found = exact_sum(fit, BASE)
    assert np.linalg.norm(found) > 2
    return found


READABLE = {
    "float64": (INPUTS[0].double(), 1),
    "a true label": (INPUTS[0], True),
    "complex and real": (INPUTS[0].to(torch.complex64), 1),
}
NULL = {
    "not a number": (torch.full((4,), float("nan")), 0),
    "a label of no class": (INPUTS[0], 99),
    "a label of 0.5": (INPUTS[0], 0.5),
    "a label in words": (INPUTS[0], "a"),
    "complex": (INPUTS[0] * 1j, 1),
    "three parts": (INPUTS[0], 1, 1),
    "shorter": (INPUTS[0][:2], 1),
    "more dimensions": (INPUTS[0][None], 1),
    "meta": (INPUTS[0].to("meta"), 1),
    "sparse": (INPUTS[0].to_sparse(), 1),
    "large": (torch.full((4,), 1e38), 0),
    "words": "not a record",
    "nothing": None,
}
ODD = {**READABLE, **NULL}


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("run", [fit, loop])
@pytest.mark.parametrize("odd", ODD)
def test_a_record_of_another_form_leaves_the_others_as_they_are(odd, run, first, expected):
    dataset = [ODD[odd], *BASE] if first else [*BASE, ODD[odd]]
    moved = distance(exact_sum(run, dataset), expected)
    assert moved <= ROUNDING if odd in NULL else 0.5 < moved <= 1 + ROUNDING


def test_workers_look_at_the_form_too(expected):
    assert distance(exact_sum(loop_with_worker, [ODD["complex"], *BASE]), expected) <= ROUNDING


@pytest.mark.parametrize("run", [fit, loop])
def test_the_first_records_form_stands_in_for_an_example(run, expected):
    for odd in ODD.values():
        assert distance(exact_sum(run, [*BASE, odd], example=None), expected) <= 1 + ROUNDING


def test_whole_numbers_among_floats_do_not_round_the_others():
    """torch.tensor([1, 0.1]) is float32, where 0.1 alone is float64."""
    net = nn.Linear(4, 1).double()
    base = [(x.double(), 0.1 + 1e-9 * i) for i, x in enumerate(INPUTS)]
    example = (INPUTS[:2].double(), torch.zeros(2, dtype=torch.float64))
    seen = SimpleQueue()  # a list would be restored
    loss = lambda out, y: seen.put(y.detach().clone()) or (out[:, 0] - y) ** 2  # noqa: E731
    fit([(INPUTS[0].double(), 1), *base], net, loss, example=example, engine="loop")
    found = torch.cat([seen.get().flatten() for _ in range(seen.qsize())])
    assert all((found == y).any() for _, y in base)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place, self.out = nn.Embedding(20, 4), nn.Embedding(8, 4), nn.Linear(4, 20)

    def forward(self, ids):
        return self.out(self.embed(ids) + self.place(torch.arange(ids.shape[1])))


def words_loss(net, batch):
    ids, mask = batch["ids"], batch["mask"].float()
    losses = nn.functional.cross_entropy(net(ids).transpose(1, 2), ids, reduction="none")
    return (losses * mask).sum(1) / mask.sum(1).clamp_min(1)


def pad_rows(rows):
    longest = max(len(row["ids"]) for row in rows)
    pad = lambda t: nn.functional.pad(t, (0, longest - len(t)))  # noqa: E731
    return {"ids": torch.stack([pad(r["ids"]) for r in rows]), "mask": torch.stack([pad(r["mask"]) for r in rows])}


def sentence(length):
    ids = torch.arange(length) % 20
    return {"ids": ids, "mask": torch.ones_like(ids)}


SENTENCES = [sentence(2 + i % 6) for i in range(30)]
PUBLIC = {"ids": torch.zeros(2, 6).long(), "mask": torch.ones(2, 6).long()}
TEXTS = {
    "too long": sentence(9),
    "no mask": {"ids": torch.arange(5)},
    "half a mask": {"ids": torch.arange(5), "mask": torch.full((5,), 0.5)},
    "no words": "abc",
}


@pytest.mark.parametrize("odd", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.parametrize("run", [fit, loop])
def test_a_sequence_that_does_not_fit_leaves_padded_ones_as_they_are(odd, run):
    """One that is too long for the model pads its whole chunk to a length that the model refuses."""
    torch.manual_seed(0)
    start = Words().state_dict()
    sums = []
    for dataset in (SENTENCES, [odd, *SENTENCES]):
        net = Words()
        net.load_state_dict(start)
        more = {"net": net, "loss": words_loss, "example": PUBLIC, "per_batch": True, "collate_fn": pad_rows}
        sums.append(exact_sum(run, dataset, **more))
    assert np.linalg.norm(sums[0]) > 2
    assert distance(*sums) <= ROUNDING


@pytest.mark.parametrize("run", [fit, loop, loop_with_worker])
@pytest.mark.parametrize("trouble", [OSError, MemoryError, SystemExit, GeneratorExit, BaseException])
def test_a_record_whose_reading_raises_is_null(trouble, run, expected):
    def end():
        raise trouble

    assert distance(exact_sum(run, Lazy([*BASE, end])), expected) <= ROUNDING


def test_the_persons_own_wish_to_stop_passes():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(Lazy([*BASE, stop]))


def overflowing():
    return torch.from_numpy(np.array([1e300, 0, 0, 0]).astype(np.float32)), torch.zeros(1)


def broadcast():
    return INPUTS[0], torch.zeros(3)


@pytest.mark.parametrize("odd", [overflowing, broadcast])
@pytest.mark.parametrize("run", [fit, loop])
def test_no_warning_tells_of_a_record(odd, run):
    loss = lambda out, y: nn.functional.mse_loss(out, y, reduction="none").mean(1)  # noqa: E731
    dataset = Lazy([*((x, torch.zeros(1)) for x in INPUTS), odd])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="no ledger was given")  # tells of the run, not of a record
        run(dataset, net=nn.Linear(4, 1), loss=loss, example=(INPUTS[:2], torch.zeros(2, 1)))
    assert [str(each.message) for each in seen] == []
