"""How an attack is judged: refused before anything is spent, or within one bound in a whole run.

A run of a few full-batch steps on D is recorded and repeated on D plus one extreme record, with every released value
frozen (``dpilot.audit.replay``). All that may differ is the input of each release, by one bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, PrivateStep, Trainer, audit, engine, poisson_loader, sampling
from dpilot.engine.base import NoRule
from dpilot.engine.batch import Chunk, tensors
from dpilot.engine.isolate import loop, vmap
from dpilot.errors import DpilotError
from dpilot.privacy.ledger import Ledger
from dpilot.privacy.unit import PrivacyUnit
from dpilot.train import gradients
from tests.attacks.case import Attack, Case, Records

STEPS = 2
BUDGET = Budget(5.0, 1e-5)
TOLERANCE = 1e-4
PERSON = "person"
POSITIONS = ("last", "first", "middle")


@dataclass(frozen=True)
class Verdict:
    """Why an attack was refused, what was spent by then, how many bounds a sum moved, and what else differs."""

    refused: str | None
    spent: int
    moved: float
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Refused with nothing spent, or run with nothing moved but the sums, by a bound at most."""
        if self.refused is not None:
            return self.spent == 0 and not self.differences
        return self.moved <= 1 + TOLERANCE and not self.differences


def judge(
    attack: Attack, chunk: int | None, position: str, *, chosen: str = "auto", way: str = "trainer",
    places: Callable[[], AbstractContextManager[None]] | None = None,
) -> Verdict:  # fmt: skip
    """A run on D and on D', with the record added at ``position``, in chunks of ``chunk`` records.

    ``chosen`` is the engine; ``places`` says where records stand in their chunks, in the order of the data where
    nothing is said; ``way`` is "trainer", "own loop" for ``poisson_loader`` and ``PrivateStep``, or
    "persons" for a trainer whose records are persons of several rows.
    """
    ends: list[tuple[str | None, int]] = []
    case = attack()
    with (places or places_in_order)(), draws_with_records() if case.draws else nullcontext():
        result = audit.replay(
            lambda data: _run(attack, data, ends, {"chunk_size": chunk, "engine": chosen}, WAYS[way]),
            case.data,
            neighbour(case, position),
            tolerance=TOLERANCE,
            opaque=("ledger*",),
        )
    assert ends, f"the run on D did not end: {result.differences}"
    return Verdict(*ends[0], result.largest, result.differences)


@contextmanager
def places_in_order() -> Iterator[None]:
    """Records take their places in the order of the data, so that an attack meets whom it means to meet."""

    def scatter(count: int, size: int, *_: Any) -> Iterator[Any]:
        return (np.arange(start, min(start + size, count)) for start in range(0, count, size))

    with patch.object(sampling, "scatter", scatter), patch.object(gradients, "draw_places", lambda *_: None):
        yield


@contextmanager
def draws_with_records() -> Iterator[None]:
    """A record's seed is what it holds, so that its draws come with it from D to D', wherever it then stands.

    Draws of a chunk, or of a place in it, are left as they are. vmap has no seeds: a model that it would compute is
    computed by the loop, whose draws have the same law.
    """
    plain = loop.gradients

    def seeded(chunk: Chunk, *more: Any) -> Any:
        samples = map(chunk.sample, range(chunk.n))
        each = ([row.numpy().tobytes() for row in tensors(sample.batch)] for sample in samples)
        seeds = [zlib.crc32(b"".join(parts)) for parts in each]
        with patch.object(loop, "seeds", lambda _: seeds):
            return plain(chunk, *more)

    def refuse(*_: Any, **__: Any) -> Any:
        raise NoRule("draws are to come with the records.")

    with patch.object(loop, "gradients", seeded), patch.object(vmap, "run", refuse):
        yield


def chunk_sizes(case: Case) -> list[int | None]:
    """The critical width, one coprime to it, one record at a time, and the trainer's own choice."""
    return [case.width, case.width + 1, 1, None]


def neighbour(case: Case, position: str) -> Records:
    """D with the extreme record at a position."""
    at = {"first": 0, "middle": len(case.data[0]) // 2, "last": len(case.data[0])}[position]
    return tuple(torch.cat([t[:at], e, t[at:]]) for t, e in zip(case.data, case.extra, strict=True))


def built(attack: Attack) -> Case:
    """The attack, with the same first weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return attack()


def _run(attack: Attack, data: Records, ends: list[tuple[str | None, int]], options: Any, way: Way) -> Any:
    """Train, and hand back all that comes out: the model and what was released, or the refusal."""
    case, unit = built(attack), PERSON if way is _persons else "record"
    ledger = Ledger.open("ledger", dataset="records", budget=BUDGET, mode="precommitted", unit=unit)
    try:
        if case.first is not None:
            engine.per_sample(case.model, case.first, public(case), per_batch=case.per_batch)
        released = way(case, data, {"ledger": ledger, "per_batch": case.per_batch, **options})
    except DpilotError as problem:
        ends.append((str(problem), len(ledger.entries())))
        return type(problem).__name__
    ends.append((None, len(ledger.entries())))
    return case.model, released


def _trainer(case: Case, data: Records, options: Any) -> Any:
    plan = _plan(len(case.data[0]))
    more = {"collate_fn": case.collate, "example": case.example}
    run = Trainer(case.model, case.loss, plan, lr=0.1, **more, **options).fit(_dataset(case, data))
    return run.record, run.epsilon


def _own_loop(case: Case, data: Records, options: Any) -> Any:
    plan = _plan(len(case.data[0]))
    example = public(case) if case.example is None else case.example
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    step = PrivateStep(case.model, case.loss, optimizer, plan, example=example, **options)
    return [step(batch) for batch in poisson_loader(_dataset(case, data), plan, collate_fn=case.collate)]


def _persons(case: Case, data: Records, options: Any) -> Any:
    """A run in which each record is a person of two rows, of four that count: the extreme one has two extreme rows."""
    plan = replace(_plan(len(case.data[0])), unit=PrivacyUnit(PERSON, 4))
    rows = tuple(t.repeat_interleave(2, 0) for t in data)
    more = {"collate_fn": case.collate, "example": case.example, "units": torch.arange(2 * len(data[0])) // 2}
    run = Trainer(case.model, case.loss, plan, lr=0.1, **more, **options).fit(_dataset(case, rows))
    return run.record, run.epsilon


Way = Callable[[Case, Records, Any], Any]
WAYS: dict[str, Way] = {"trainer": _trainer, "own loop": _own_loop, "persons": _persons}


def public(case: Case) -> Records:
    """Records that nobody protects, in the form of the case's."""
    return tuple(t[:3].clone() for t in case.data)


def _dataset(case: Case, data: Records) -> Any:
    if case.dataset is not None:
        return case.dataset(data)
    return TensorDataset(*data) if case.collate is None else list(zip(*data, strict=True))


def _plan(size: int) -> Plan:
    return Plan.from_dict(_calibrated(size))  # a plan is used once; the calibration is shared


@lru_cache
def _calibrated(size: int) -> dict[str, Any]:
    return Plan.calibrate(BUDGET, size=size, sample_rate=1.0, steps=STEPS, clipping="constant").to_dict()


def bite(attack: Attack, position: str) -> float:
    """How far the extreme record moves the clipped sums of an engine that trusts the batched pass, in bounds.

    Infinite where the model itself is another after the pass. The library is not asked: this shows what the attack is.
    """
    case = built(attack)
    before, left = _trusting(built(attack), case.data)
    after, other = _trusting(built(attack), neighbour(case, position))
    if any(not torch.equal(left[name], other[name]) for name in left):
        return float("inf")
    return max(float((b - a).norm()) for a, b in zip(before, after, strict=True))


def _trusting(case: Case, data: Records) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Sums of clipped gradients over chunks of the critical width, twice, and what the model holds afterwards."""
    sums = []
    for _ in range(STEPS):
        sums.append(torch.stack([_clipped(case, chunk) for chunk in _chunks(case, data)]).sum(0))
        for parameter in case.model.parameters():
            parameter.data.add_(0.01)  # a public step
    return sums, {k: v.clone() for k, v in case.model.state_dict().items()}


def _chunks(case: Case, data: Records) -> Iterator[Any]:
    for start in range(0, len(data[0]), case.width):
        rows = tuple(t[start : start + case.width].clone() for t in data)
        yield rows if case.collate is None else case.collate(list(zip(*rows, strict=True)))


def _clipped(case: Case, chunk: Any) -> Tensor:
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    losses = losses_of(case.model, case.loss, chunk, case.per_batch)
    total = torch.zeros(sum(p.numel() for p in parameters))
    for loss in losses:
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        pairs = zip(parameters, found, strict=True)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])
        total += flat / flat.norm().clamp_min(1.0) if bool(flat.isfinite().all()) else 0.0
    return total


def losses_of(model: nn.Module, loss: Callable[..., Tensor], chunk: Any, per_batch: bool) -> Tensor:
    """One loss a record, from a plain pass over the chunk."""
    if per_batch:
        return loss(model, chunk)
    *inputs, targets = chunk
    inputs = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], tuple) else inputs
    return loss(model(*inputs), targets)
