"""Every claim about where records lie, against what really moves when a record is replaced or the order changes."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from dpilot.engine.trace.place import Place, Tag, fills_memory, locate
from dpilot.engine.trace.tracker import Answers, Constants, Tracker
from dpilot.engine.trace.watch import Exits
from dpilot.engine.writes import WriteGuard
from tests.engine.places_check import check, extreme, observe, replace
from tests.engine.places_programs import KINDS, Program

N = 4
QUICK = 60
WEIGHT = nn.Parameter(torch.ones(1, 2))
SLOW = 5000


def batch() -> list[Tensor]:
    g = torch.Generator().manual_seed(3)
    return [torch.randn(N, N, generator=g), torch.randint(0, 2, (N, N), generator=g)]


def place_of(run: Callable[[list[Tensor]], Tensor], n: int = N) -> Place:
    """The place of what a function returns, all of its claims checked."""
    given = batch()
    report = check(run, given, n, j=1, others=[replace, extreme])
    assert not report.false, report.false
    return observe(run, given, n, (), range(len(given))).results[-1].place


def rows() -> Tensor:
    """Another row for each position."""
    return torch.arange(float(N)).unsqueeze(1).expand(N, N).contiguous()


def bags(ids: Tensor, offsets: Tensor | None) -> Tensor:
    """Sums of a table that is not drawn."""
    return F.embedding_bag(ids, torch.arange(6.0).view(2, 3), offsets, mode="sum")


def gru() -> nn.GRU:
    """Of weights that are not drawn."""
    made = nn.GRU(2, N, batch_first=True)
    for weight in made.parameters():
        nn.init.constant_(weight, 0.5)
    return made


def reseeded(seed: int, draw: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(seed)
    return draw()


def written(into: Tensor, where: object, what: object) -> Tensor:
    into[where] = what  # type: ignore[index]
    return into


def twice(x: Tensor, shared: Tensor) -> Tensor:
    """Use a tensor, write it through ``.data``, which has a version of its own, and use it again."""
    y = x + shared
    shared.data.copy_(rows())
    return y + shared


def overlapping(unknown: Tensor) -> Tensor:
    """A tensor with as many entries as its memory, some of them twice, is copied into: not all memory is written."""
    unknown.as_strided((N, N), (1, 1)).copy_(rows())
    return unknown * 1


def failed(records: Tensor) -> Tensor:
    """What was in a tensor that an operation began to write and could not is not relied on."""
    with pytest.raises((RuntimeError, IndexError)):
        records.index_add_(0, torch.tensor([0, N]), torch.ones(2, N))
    return records * 1


POSITION = {
    "draws plus rows": lambda b: b[0] * (torch.rand(N, N) + rows()),
    "draws overwritten by rows": lambda b: b[0] * torch.rand(N, N).copy_(rows()),
    "rows added to draws in place": lambda b: b[0] * torch.rand(N, N).add_(rows()),
    "dropout of rows": lambda b: b[0] + F.dropout(rows(), 0.5),
    "normal draws around rows": lambda b: b[0] + torch.normal(rows(), 0.1),
    "a grown draw": lambda b: b[0] + torch.rand(2, N).resize_(N, N),
    "grown ones": lambda b: b[0] + torch.ones(2, N).resize_(N, N),
    "draws after seeding": lambda b: b[0] + reseeded(99, lambda: torch.rand(N, N)),
    "draws like records after seeding": lambda b: b[0] + reseeded(99, lambda: torch.rand_like(b[0])),
    "dropout after seeding": lambda b: reseeded(99, lambda: F.dropout(b[0], 0.5)),
    "dropout of ones after seeding": lambda b: b[0] * reseeded(99, lambda: F.dropout(torch.ones(N, N), 0.5)),
    "a generator": lambda b: b[0] + torch.rand(N, N, generator=torch.Generator().manual_seed(1)),
    "a generator and ones": lambda b: (
        b[0] * torch.poisson(torch.ones(N, N), generator=torch.Generator().manual_seed(1))
    ),
    "a generator among records": lambda b: b[0].clone().uniform_(generator=torch.Generator().manual_seed(1)),
    "records paired with a mask": lambda b: b[0][torch.arange(N), torch.ones(N, dtype=torch.bool)],
    "a table paired with a mask": lambda b: rows().T[b[1][:, 0], torch.ones(N, dtype=torch.bool)],
    "rows copied among records": lambda b: b[0].clone().copy_(rows()),
    "rows as out=": lambda b: torch.mul(rows(), 2, out=b[0].clone()),
    "arange as out=": lambda b: torch.arange(N * N, out=b[0].clone().view(-1)).view(N, N) * 1.0,
    "rows times records in place": lambda b: rows().mul_(b[0]),
    "rows that vanish in place": lambda b: rows().mul_(b[0] * 0),
    "records written among rows": lambda b: written(torch.cat([rows(), rows()], 1), (slice(None), slice(0, N)), b[0]),
    "a matrix for each position": lambda b: torch.bmm(b[0].unsqueeze(1), torch.arange(float(N**3)).view(N, N, N)),
    "a row for each of two rows": lambda b: torch.stack([b[0], b[0]], 1).flatten(0, 1) + torch.arange(8.0)[:, None],
    "classes by position": lambda b: F.cross_entropy(b[0], torch.arange(N), reduction="none"),
    "rows written through .data": lambda b: twice(b[0], torch.zeros(N, N)),
    "rows written through .data where it was looked at": lambda b: twice(b[0], torch.arange(N**2.0).view(N, N) * 0),
    "maxima of rows as out=": lambda b: torch.max(
        torch.stack([rows(), rows()], 1), 1, out=(b[0].clone(), torch.zeros(0, dtype=torch.long))
    )[0],
}
"""What gives each position in the chunk something of its own: it must not be said to lie on an axis."""
MIXING = {
    "gather across": lambda b: b[0].gather(1, b[1].T.contiguous().T.T),
    "records put among draws": lambda b: torch.rand(N, N).index_put((torch.tensor([0, 1]),), b[0][:, 0]),
    "randint up to records": lambda b: torch.randint_like(torch.zeros(N, N), b[1].sum() + 2),
    "bags that run on": lambda b: bags(b[1].flatten(), torch.arange(0, 2 * N, N)),
    "a diagonal": lambda b: b[0].diagonal() * 1,
    "a diagonal of columns": lambda b: b[0].T.contiguous().diagonal() * 1,
    "what a failed operation leaves": lambda b: failed(b[0].clone()),
    "overlapping writes": lambda b: overlapping(b[0][b[1][0]]),
    "the first record for all": lambda b: b[0][:1].expand(N, N) * 1,
    "all records but the first": lambda b: torch.cat([b[0], b[0]])[1 : N + 1] * 1,
    "rows in another order": lambda b: b[0][torch.tensor([1, 0, 3, 2])],
    "rows in another order by a list": lambda b: b[0][[1, 0, 3, 2]],
    "some rows by a list": lambda b: b[0][[True, False, True, False]],
    "a table by a list": lambda b: b[0] + rows()[[3, 2, 1, 0]],
    "rows written by a list": lambda b: written(b[0].clone(), [0, 1], 0.5) * 1,
    "rows of a mask": lambda b: torch.cat([b[0], b[0]])[torch.arange(2 * N) % 3 > 0][:N] * 1,
    "a table masked by records": lambda b: rows()[b[1] > 0],
    "bags of other lengths": lambda b: bags(b[1].flatten(), torch.arange(N)),
    "bags of columns": lambda b: bags(b[1].T.flatten(), torch.arange(0, N * N, N)),
    "bags that begin elsewhere": lambda b: bags(b[1].flatten(), torch.tensor([0, N, N + 1, 3 * N])),
    "rows reversed": lambda b: b[0].flip(0),
    "gather along records": lambda b: b[0].gather(0, b[1]),
    "gather of one record": lambda b: b[0].gather(0, torch.zeros(N, N, dtype=torch.long)),
    "scatter along records": lambda b: torch.zeros(N, N).scatter(0, b[1], b[0]),
    "records picked by records": lambda b: b[0].index_select(0, b[1][:, 0]),
    "rows before the records": lambda b: F.pad(b[0], (0, 0, N, 0)),
    "rows behind the records": lambda b: torch.cat([b[0], torch.zeros(N, N)]),
    "an operation without a rule": lambda b: torch.linalg.lu_factor(b[0])[0],
    "rows where columns were": lambda b: b[0].view(2, 2 * N).T.reshape(N, N),
}
"""What combines records, or picks from them by position."""
COMBINING = {
    "a sum": lambda b: b[0].sum(0),
    "a largest entry": lambda b: b[0].max(),
    "softmax": lambda b: b[0].softmax(0),
    "a product that sums records": lambda b: b[0].T @ torch.ones(N, N),
    "a product that sums records on the right": lambda b: torch.ones(N, N) @ b[0],
    "products of all pairs": lambda b: torch.bmm(b[0].unsqueeze(1), b[0].T.expand(N, N, N)),
    "a matrix times a vector of records": lambda b: torch.ones(N, N).mv(b[0][:, 0]),
    "batch statistics": lambda b: F.batch_norm(b[0], None, None, training=True),
    "normalised over everything": lambda b: F.layer_norm(b[0], (N, N)),
    "records as channels": lambda b: F.conv1d(b[0].unsqueeze(0), torch.ones(2, N, 1)),
    "attention over records": lambda b: F.scaled_dot_product_attention(*[b[0].view(1, 1, N, N)] * 3),
    "a reduced loss": lambda b: F.mse_loss(b[0], torch.zeros(N, N)),
    "records taken for classes": lambda b: F.nll_loss(b[0].T, torch.zeros(N, dtype=torch.long), reduction="none"),
    "distances between records": lambda b: torch.cdist(b[0], b[0] * 2),
    "repeated in two orders": lambda b: b[0].repeat(2, 1) + b[0].repeat_interleave(2, 0),
    "records on two axes": lambda b: b[0] + b[0].T,
    "scaled by the norm of a feature": lambda b: b[0].renorm(2, 1, 0.1),
}
"""What is refused before anything is spent: operations whose meaning is to combine records."""
APART = {
    "dropout": lambda b: F.dropout(b[0], 0.5),
    "noise": lambda b: b[0] + 0.5 * torch.randn(N, N),
    "drop path": lambda b: b[0] * torch.rand(N, 1).add_(0.9).floor_().div_(0.9),
    "locked dropout": lambda b: b[0] * F.dropout(torch.ones(N, 1), 0.5),
    "zeros filled": lambda b: written(torch.zeros(N, 2 * N), (slice(None), slice(0, N)), b[0]),
    "numbered": lambda b: b[0][torch.arange(N), b[1][:, 0]],
    "numbered write": lambda b: written(torch.zeros(N, N), (torch.arange(N), b[1][:, 0]), b[0][:, 0]),
    "a product whose weight has as many rows": lambda b: torch.einsum(
        "...i,io->...o", b[0], torch.ones(N, N).cumsum(1)
    ),
    "instance norm": lambda b: F.instance_norm(b[0].view(N, 2, 2), weight=torch.tensor([1.0, 2.0])),
    "a state from records": lambda b: gru()(torch.zeros(N, 3, 2), b[0].unsqueeze(0))[0],
    "a number under a mask": lambda b: written(b[0].clone(), b[1] > 0, 0.5),
    "a number under a mask of rows": lambda b: written(b[0].clone(), b[1][:, 0] > 0, 0.5),
    "resized": lambda b: b[0].clone().resize_(N, 2, 2),
    "hardswish": lambda b: F.hardswish(b[0]),
    "one token by a list": lambda b: b[0].view(N, 2, 2)[..., [-2], :],
    "features by a list": lambda b: b[0][:, [0, 2]],
    "features by a list of truth values": lambda b: b[0][:, [True, False, True, False]],
    "features by an array": lambda b: b[0][:, np.array([0, 2])],
    "entries by two lists": lambda b: b[0].view(N, 2, 2)[:, [0, 1], [1, 0]],
    "written by a list": lambda b: written(b[0].clone(), (slice(None), [1]), 0.5),
    "all records by a list": lambda b: b[0][[0, 1, 2, 3]],
    "bags of rows": lambda b: bags(b[1], None),
    "bags as long as rows": lambda b: bags(b[1].flatten(), torch.arange(0, N * N, N)),
}
"""Honest computations: refusing everything would be sound too."""


@pytest.mark.parametrize("name", POSITION)
def test_what_depends_on_the_position_is_not_called_a_record(name: str) -> None:
    assert place_of(POSITION[name]).kind != "axis"


@pytest.mark.parametrize("name", MIXING)
def test_what_combines_records_is_seen(name: str) -> None:
    assert place_of(MIXING[name]).kind in ("unknown", "mixed")


@pytest.mark.parametrize("name", COMBINING)
def test_what_combines_records_by_its_meaning_is_refused(name: str) -> None:
    assert place_of(COMBINING[name]).kind == "mixed"


@pytest.mark.parametrize("name", APART)
def test_honest_operations_keep_their_records(name: str) -> None:
    assert place_of(APART[name]).kind == "axis"


def test_a_tensordot_of_what_is_unknown_stays_unknown() -> None:
    assert place_of(lambda b: torch.tensordot(b[0][b[1][0]], torch.eye(N), dims=1)).kind == "unknown"


def test_records_that_make_up_for_their_position_are_not_looked_at() -> None:
    """Rows of constants that records cancel: the sum is the same for every position, what was added is not."""
    given = [1 - rows()]
    added = observe(lambda b: torch.addmm(b[0], rows(), torch.eye(N)), given, N, (), [0])
    assert added.results[-1].place.kind == "unknown"


def kind_of(run: Callable[[Tensor], Tensor]) -> str:
    """The kind of place of what a function makes of records."""
    x, constants = torch.randn(N, N), Constants()
    constants.add([x, WEIGHT])
    tracker = Tracker(N, [x], constants, WriteGuard())
    with torch.no_grad(), tracker, Exits(tracker, WriteGuard()):
        made = run(x)
    kinds = {finding.kind for finding in tracker.findings}
    return "unknown" if "unknown" in kinds else tracker.place(made).kind


def equal(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Two draws meet records one after the other, then each other."""
    return x * ((x + a) == (x + b))


def drawn() -> Tensor:
    return torch.rand(N, N)


def windows() -> Tensor:
    return torch.rand(2 * N - 1).unfold(0, N, 1)


def drawn_twice() -> tuple[Tensor, Tensor]:
    state = torch.get_rng_state()
    first = drawn()
    torch.set_rng_state(state)
    return first, drawn()


TWO_WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "a matrix and its transpose": lambda x: (lambda r: x * (r == r.T))(drawn()),
    "one after the other": lambda x: (lambda r: equal(x, r, r.T))(drawn()),
    "a copy of the transpose": lambda x: (lambda r: equal(x, r, r.T.contiguous()))(drawn()),
    "made from it": lambda x: (lambda r: equal(x, r * 1, (r * 2).T / 2))(drawn()),
    "of another type": lambda x: (lambda r: equal(x, r, r.double().T.float()))(drawn()),
    "the sum of both": lambda x: (lambda r: equal(x, r + r.T, 2 * r))(drawn()),
    "copied with its transpose": lambda x: (lambda r: equal(x, r, torch.empty(N, N).copy_(r).T))(drawn()),
    "copied among records": lambda x: (lambda r: equal(x, x.clone().copy_(r), r.T))(drawn()),
    "copied into a part": lambda x: (lambda r: equal(x, torch.zeros(2 * N, N)[:N].copy_(r), r.T))(drawn()),
    "windows": lambda x: x * windows(),
    "windows of records": lambda x: (lambda r: x * (r[:, :-1] - r[:, 1:]).sum(1, keepdim=True))(windows()),
    "shifted": lambda x: (lambda r: equal(x, r[:-1], r[1:]))(torch.rand(N + 1, N)),
    "one row for all, and its own": lambda x: (lambda r: equal(x, r, r[0]))(drawn()),
    "repeated down and across": lambda x: (lambda r: equal(x, r.expand(N, N), r.unsqueeze(1)))(torch.rand(N)),
    "a number that Python reads": lambda x: (lambda r: equal(x, r, r[0, 0].item()))(drawn()),  # type: ignore[arg-type]
    "a number taken by numpy": lambda x: (lambda r: equal(x, r, float(r.numpy()[0, 0])))(drawn()),  # type: ignore[arg-type]
    "one row larger": lambda x: (lambda r: (r[0].mul_(5), x * r)[1])(drawn()),
    "one row drawn anew": lambda x: (lambda r: (r[0].normal_(5), x * r)[1])(drawn()),
    "one row not drawn": lambda x: (lambda r: (r[0].zero_(), x * r)[1])(drawn()),
    "drawn by number of row": lambda x: x * torch.poisson(rows()),
    "counts and their transpose": lambda x: (lambda r: equal(x, r, r.T))(torch.poisson(torch.ones(N, N))),
    "picked, and picked across": lambda x: (lambda r: equal(x, rows()[r], rows()[r.T]))(
        torch.randint(0, N, (N,))[:, None]
    ),
    "ids of rows": lambda x: (lambda t, r: equal(x, t[r], t[r.T]))(torch.arange(float(N)), torch.randint(0, N, (N, N))),
    "picks from one law": lambda x: (lambda r: equal(x, r, r.T))(torch.ones(N).expand(N, N).multinomial(N).float()),
    "the same numbers drawn twice": lambda x: (lambda r, s: equal(x, r, s.T))(*drawn_twice()),
    "its own and all of them": lambda x: equal(x, *(lambda r: (r, r.cumsum(0)))(drawn())),
}
"""Draws that a record meets in two ways, or that are not alike for all records: its number in the chunk shows."""
OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout with records second": lambda x: F.dropout(x.T.contiguous(), 0.5),
    "dropout of features": lambda x: F.dropout1d(x.view(N, 2, 2), 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "drop path": lambda x: x * (torch.rand(N, 1) + 0.9).floor() / 0.9,
    "drop path, drawn in place": lambda x: x * x.new_empty(N, 1).bernoulli_(0.9).div_(0.9),
    "a mask": lambda x: x * (torch.rand(N, N) < 0.5),
    "a mask of another type": lambda x: x * (1 - (torch.rand(N, N) < 0.5).float()),
    "noise": lambda x: x + 0.1 * torch.randn(N, N),
    "two kinds of noise": lambda x: x * (torch.rand(N, N) + torch.randn(N, N)) + torch.rand(N, 1),
    "noise of features": lambda x: x + torch.arange(float(N)) * torch.randn(N, N),
    "a variational code": lambda x: x + torch.exp(x) * torch.randn_like(x),
    "a time for each record": lambda x: x * torch.arange(9.0)[torch.randint(0, 9, (N,))][:, None],
    "halves of one draw": lambda x: (lambda r: x * r[:, :2].sum(1, keepdim=True) + r[:, 2:].sum(1, keepdim=True))(
        drawn()
    ),
    "tokens in a row": lambda x: (x.view(2 * N, 2) * torch.rand(2 * N, 1)).view(N, N),
    "gumbel": lambda x: F.gumbel_softmax(x, dim=-1),
    "random leaky": lambda x: F.rrelu(x, training=True),
    "one column not drawn": lambda x: (lambda r: (r[:, 0].zero_(), x * r)[1])(drawn()),
    "records put into a draw": lambda x: (lambda r: (r[:, :2].copy_(x[:, :2]), r * 1)[1])(drawn()),
}
"""Draws that honest models use, each record its own."""
TOGETHER: dict[str, Callable[[Tensor], Tensor]] = {
    "one noise for all": lambda x: x + torch.randn(N),
    "noise on a weight": lambda x: x @ (torch.arange(N * N / 1.0).view(N, N) + 0.1 * torch.randn(N, N)),
    "a random weight": lambda x: x @ torch.randn(N, N),
    "one number": lambda x: x * torch.rand(()),
    "one number of several": lambda x: x * torch.rand(3)[0],
    "a row for each, from one draw": lambda x: x * torch.randn(1, N).expand(N, N).clone(),
    "its own noise times a number for all": lambda x: x + torch.rand(N, N) * torch.rand(()),
    "a number for all, added after a while": lambda x: x + torch.rand(N, N) * (torch.rand(()) + 1).exp().sqrt(),
    "drawn around a number for all": lambda x: x + torch.normal(torch.rand(1).expand(N, N), 1.0),
    "chances for all": lambda x: x * torch.bernoulli(torch.rand(1, 1).expand(N, N)),
    "weights and a draw": lambda x: x @ (torch.eye(N) * torch.rand(3)[0]).exp(),
    "written among constants": lambda x: (lambda c: (c[:, 0].fill_(torch.rand(())), x * c)[1])(torch.ones(N, N)),
    "constants written into it": lambda x: (lambda r: (r[:1].copy_(torch.ones(1, 2)), x[:, :3] @ r)[1])(
        torch.rand(3, 2)
    ),
    "a weight written into it": lambda x: (lambda r: (r[:1].copy_(WEIGHT), x[:, :3] @ r)[1])(torch.rand(3, 2)),
    "written over records": lambda x: x.clone().copy_(torch.rand(3)[0].expand(N, N)),
    "filled into records": lambda x: x.clone().fill_(torch.rand(())),
    "records written into it": lambda x: (lambda r: (r[:, :2].copy_(x[:, :2]), r * 1)[1])(
        torch.rand(1).expand(N, N).contiguous()
    ),
    "a permutation": lambda x: x[:, torch.randperm(N)],
    "a choice of entries": lambda x: x[:, :1] * torch.arange(9.0)[torch.randint(0, 9, (1,))],
    "a number that Python reads": lambda x: x * torch.rand(()).item(),
    "a truth that Python reads": lambda x: x * 2 if torch.rand(()) < 0.5 else x * 3,
    "a list that Python reads": lambda x: x * torch.rand(3).tolist()[0],
    "an array": lambda x: x * float(torch.rand(3).numpy()[0]),
    "a text": lambda x: x * len(str(torch.rand(3))),
    "a length": lambda x: x * len(torch.ones(9)[torch.rand(9) < 0.5]),
    "places": lambda x: x * len((torch.rand(9) < 0.5).nonzero()),
}
"""Draws that all records of the chunk share, in a tensor or by way of Python."""


@pytest.mark.parametrize("name", TWO_WAYS)
def test_draws_that_tell_a_records_number_are_not_its_own(name: str) -> None:
    assert kind_of(TWO_WAYS[name]) in ("unknown", "mixed")


@pytest.mark.parametrize("name", TOGETHER)
def test_draws_for_all_records_together_are_no_records_own(name: str) -> None:
    assert kind_of(TOGETHER[name]) == "unknown"


@pytest.mark.parametrize("name", OWN)
def test_draws_of_honest_models_are_each_records_own(name: str) -> None:
    assert kind_of(OWN[name]) == "axis"


def test_a_list_of_numbers_of_records_in_a_subscript_is_seen() -> None:
    assert kind_of(lambda x: x[:, [0, 1]]) == "axis"
    assert kind_of(lambda x: x[:, (x[0, :2] > 0).long().tolist()]) == "unknown"
    assert kind_of(lambda x: x[:, [(x[0, 0] > 0).long(), 1]]) == "unknown"


def test_values_that_weights_hold_now_do_not_decide_for_a_captured_pass() -> None:
    weight = nn.Parameter(torch.zeros(N, N))
    for write in (
        lambda x: x + torch.zeros(N, N).copy_(weight.detach()),
        lambda x: written(weight.detach().clone(), (slice(None), slice(0, 2)), x[:, :2]),
        lambda x: x.clone().copy_(weight.detach()),
        lambda x: x * (torch.rand(N, N) + weight.detach()),
    ):
        kinds = []
        for answers in (None, Answers()):
            x, constants = torch.randn(N, N), Constants()
            constants.add([x, weight])
            tracker = Tracker(N, [x], constants, WriteGuard(), answers)
            with tracker:
                made = write(x)
            kinds.append(tracker.place(made).kind)
        assert kinds == ["axis", "unknown"]


def test_an_outcome_that_rests_on_values_is_not_remembered() -> None:
    def run(shared: Tensor) -> str:
        x, constants = torch.randn(N, N), Constants()
        constants.add([x, shared])
        tracker = Tracker(N, [x], constants, WriteGuard())
        with tracker:
            made = x * (torch.rand(N, N) + shared)
        return tracker.place(made).kind

    assert [run(torch.zeros(N, N)), run(rows())] == ["axis", "unknown"]


def tracked(*tensors: Tensor, others: tuple[Tensor, ...] = ()) -> Tracker:
    """A tracker of a chunk of these tensors, to which others are constants."""
    constants = Constants()
    constants.add([*tensors, *others])
    return Tracker(N, tensors, constants, WriteGuard())


def test_a_rule_that_rests_on_values_is_not_remembered() -> None:
    def run(shared: Tensor) -> str:
        x = torch.randn(N, N)
        tracker = tracked(x, others=(shared,))
        with tracker:
            made = x + shared
        return tracker.place(made).kind

    assert [run(torch.zeros(N, N)), run(rows())] == ["axis", "unknown"]


def test_a_rule_is_remembered_for_the_places_it_was_asked_about() -> None:
    """The same operation on tensors of the same forms, whose records lie on the first axis and then on the last."""
    found = []
    for turned in (False, True):
        x = torch.randn(N, N)
        tracker = tracked(x)
        with tracker:
            y = (x.T if turned else x).contiguous() * 1
            found.append(tracker.place(y.mean(1, keepdim=True)).kind)
    assert found == ["axis", "mixed"]


def test_tensors_of_a_chunk_that_share_memory_otherwise_are_noticed() -> None:
    x = torch.randn(N, N)
    assert not tracked(x, x).findings
    assert [finding.kind for finding in tracked(x, x.T).findings] == ["unknown"]


def test_memory_that_nobody_wrote_holds_nothing() -> None:
    """Freed memory may hold other records: what is allocated again, and what a resize adds, is zero."""
    size = 1 << 12
    with tracked(torch.randn(N, N)):
        for make in (
            lambda: torch.empty(size),
            lambda: torch.ones(0).new_empty(size),
            lambda: torch.zeros(1).resize_(size),
        ):
            for _ in range(8):
                torch.full((size,), 7.0)  # freed at once
                assert not make().any()


def test_a_tensor_of_an_earlier_pass_is_no_constant() -> None:
    x, later = torch.randn(N, N), torch.randn(N, N)
    constants = Constants()
    constants.add([x, later])
    first = Tracker(N, [x], constants, WriteGuard())
    with first:
        kept, mean, shared = x.exp(), x.mean(0), torch.ones(N, N).exp()
    first.memory.close()
    second = Tracker(N, [later], constants, WriteGuard())
    with second:
        assert second.place(later + kept).kind == "unknown"
        assert second.place(later + mean).kind == "unknown"
        assert second.place(later + shared).kind == "axis"


LEAVING: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda x: float(x.sum()),
    "a branch": lambda x: bool((x > 0).any()),
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "an address": lambda x: x.data_ptr(),
    "a storage": lambda x: x.untyped_storage(),
    "a pickle": lambda x: pickle.dumps(x),
    "a number of rows": lambda x: (x > 0).nonzero(),
    "a number of masked rows": lambda x: x[x > 0],
    "a number of bins": lambda x: torch.bincount((x > 0).long().flatten()),
    "a number of values": lambda x: torch._unique(x > 0),
    "a number of entries": lambda x: (x > 0).float().to_sparse(),
    "a hook": lambda x: (x * torch.ones(N, requires_grad=True)).register_hook(lambda g: g.flip(0)),
    "a node": lambda x: (x * torch.ones(N, requires_grad=True)).grad_fn,
    "a text": lambda x: str(x),
    "a tensor of numbers": lambda x: torch.tensor([x[0, 0], x[1, 0]]),
}
"""What Python, or another library, sees of the records."""


@pytest.mark.parametrize("name", LEAVING)
def test_values_of_records_that_leave_torch_are_noted(name: str) -> None:
    x = torch.randn(N, N)
    tracker = tracked(x)
    with tracker, Exits(tracker, WriteGuard()):
        LEAVING[name](x)
    assert tracker.findings
    assert {finding.kind for finding in tracker.findings} == {"unknown"}


def test_values_of_constants_may_leave_torch() -> None:
    shared = rows()
    tracker = tracked(torch.randn(N, N), others=(shared,))
    with tracker, Exits(tracker, WriteGuard()):
        for leave in LEAVING.values():
            leave(shared)
    assert not tracker.findings


@pytest.mark.parametrize("write", [lambda t: t.add_(1), lambda t: t.data.zero_(), lambda t: np.copyto(t.numpy(), 0.0)])
def test_older_memory_is_saved_before_it_is_written(write: Callable[[Tensor], object]) -> None:
    x, older, guard = torch.randn(N, N), rows(), WriteGuard()
    constants = Constants()
    constants.add([x, older])
    tracker = Tracker(N, [x], constants, guard)
    with tracker, Exits(tracker, guard):
        write(older)
    assert not torch.equal(older, rows())
    guard.restore()
    assert torch.equal(older, rows())


def test_a_tensor_that_was_made_out_of_sight_is_unknown() -> None:
    x = torch.randn(N, N)
    tracker = tracked(x)
    with tracker:
        with _disable_current_modes():
            mean = x.mean(0)
        assert tracker.place(x + mean).kind == "unknown"


def test_a_rule_that_fails_makes_the_result_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpilot.engine.trace import tracker as trackers

    operation = trackers.describe(torch.ops.aten.tanh.default)
    monkeypatch.setitem(
        trackers._operations, torch.ops.aten.tanh.default, operation._replace(rule=lambda c: c["no such"])
    )
    monkeypatch.setattr(trackers, "_rules", {})
    found = observe(lambda b: b[0].tanh(), batch(), N, (), (0, 1)).results[-1].place
    assert found.kind == "unknown"
    assert "KeyError" in found.why


def test_checkpointed_layers_draw_again_what_they_drew() -> None:
    x, constants = batch(), Constants()
    constants.add(x)
    tracker, state = Tracker(N, x, constants, WriteGuard()), torch.get_rng_state()
    with tracker:
        first = F.dropout(x[0], 0.5)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    with tracker.again():
        again = F.dropout(x[0], 0.5)
    torch.set_rng_state(after)
    with tracker:
        made = first + again + F.dropout(x[0], 0.5)
    assert tracker.place(made).kind == "axis"


@pytest.mark.parametrize("seed", [0, 1])
def test_places_of_random_layouts_are_those_of_their_bytes(seed: int) -> None:
    """locate() of random strides: each entry belongs to its record, and lies at the same place in every record."""
    r = random.Random(seed)
    claims = 0
    for _ in range(4000):
        n, itemsize = r.randrange(2, 5), 4
        step, base, dim = itemsize * r.randrange(1, 7), itemsize * r.randrange(7), r.randrange(1, 4)
        shape = tuple(r.randrange(1, 3) * r.randrange(1, n + 1) for _ in range(dim))
        strides = tuple(r.randrange(3 * n) for _ in range(dim))
        offset = base // itemsize + r.randrange(8)
        place = locate((shape, strides, offset, itemsize), Tag("axis", step, base), n)
        if place.kind != "axis":
            continue
        claims, layout = claims + 1, list(zip(shape, strides, strict=True))
        at = sum(stride * torch.arange(size).view(-1, *[1] * (dim - a - 1)) for a, (size, stride) in enumerate(layout))
        record = (torch.arange(shape[place.axis]) // place.block % n).view(-1, *[1] * (dim - place.axis - 1))
        within = (at + offset) * itemsize - base - record * step  # where it lies, but for its record
        assert (within // step % n == 0).all()
        each = within.expand(shape).unflatten(place.axis, (-1, n, place.block))
        assert (each == each.narrow(place.axis + 1, 0, 1)).all()
    assert claims > 50


def test_memory_is_filled_by_tensors_that_have_each_entry_once() -> None:
    memory = torch.zeros(6)
    assert fills_memory(memory.view(2, 3).T)
    assert not fills_memory(memory.as_strided((3, 2), (1, 1)))
    assert not fills_memory(memory[1:])


def test_random_programs_make_no_false_claim() -> None:
    run_programs(range(QUICK), steps=12, kinds=200)


@pytest.mark.slow
def test_many_random_programs_make_no_false_claim() -> None:
    run_programs(range(10_000, 10_000 + SLOW), steps=20, kinds=len(KINDS) - 5)


def run_programs(seeds: range, *, steps: int, kinds: int) -> None:
    """Check programs of these seeds, and that they consist of many kinds of operations."""
    checked, used = Counter[str](), set[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            program = Program(seed, steps)
            report = program.check()
            assert not report.false, "\n".join([*report.false, str(program)])
            checked += report.checked
            used |= {line.split(" = ")[1].split("(")[0] for line in program.lines}
    assert len(used) >= kinds, sorted(set(KINDS) - used)
    assert min(checked["axis"], checked["shared"], checked["random"]) > 3 * len(seeds)


CATALOGUED = [
    "add", "addbmm", "addcmul", "addmm", "addmv", "amax", "argmax", "baddbmm", "bmm", "bucketize", "cat",
    "cdist", "clamp", "cross", "cummax", "cumsum", "diag_embed", "einsum", "expand", "fft.rfft", "flip",
    "gather", "index_add", "index_copy", "index_fill", "index_put", "index_select", "isin", "kthvalue", "lerp",
    "linalg.vector_norm", "log_softmax", "logsumexp", "masked_fill", "matmul", "max.binary",
    "max.reduction_with_dim", "nn.functional.avg_pool2d", "nn.functional.batch_norm", "nn.functional.conv1d",
    "nn.functional.conv_transpose1d", "nn.functional.embedding", "nn.functional.embedding_bag",
    "nn.functional.group_norm", "nn.functional.layer_norm", "nn.functional.nll_loss",
    "nn.functional.pad.reflect", "nn.functional.scaled_dot_product_attention", "norm", "renorm", "roll",
    "scatter", "scatter_reduce.amax", "searchsorted", "sort", "stack", "std", "take", "topk", "tril",
    "var_mean", "where",
]  # fmt: skip


def run_catalogue(names: list[str], timeout: int, module: str = "places_opinfo") -> str:
    """torch's own catalogue in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.engine.{module}", *names],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_catalogued_operations_make_no_false_claim() -> None:
    assert "0 false" in run_catalogue(CATALOGUED, 300)


@pytest.mark.slow
def test_all_catalogued_operations_make_no_false_claim() -> None:
    assert "0 false" in run_catalogue([], 3600)


@pytest.mark.slow
def test_no_record_moves_another_under_vmap() -> None:
    assert " 0 moved" in run_catalogue([], 1800, "vmap_opinfo")
