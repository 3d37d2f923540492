"""Which whole numbers model and loss take, so that a record with others is null on a GPU too.

A label outside the classes, or an id outside the vocabulary, is an error on the CPU. In a kernel of a GPU it ends the
process: one record would decide whether a run dies. So what is taken is found on made-up samples beforehand, and
records are compared with it before they are used, without waiting for the GPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpilot.engine import api
from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction
from dpilot.engine.forms import is_sample
from dpilot.engine.keeping import Kept, modules_of
from dpilot.engine.masking import LookingFirst

Takes = Callable[[int], bool]

SAMPLES = 3
JOINT = 3
"""How often all whole numbers are mixed together."""
APART = (batches.IGNORED, 255)
"""Labels that losses ignore by custom, tried besides what the operations say they ignore."""
MOST = 1 << 28
"""Nothing has more places: beyond this only a model that takes every number is believed."""
ODD = (0x55, 0x5555, 0x55555555)
"""Numbers that narrower types hold, or cut to other large ones: a model that takes these too takes every number."""
FLOATS = (math.nan, 1e30, -1e30)


GREATEST, LEAST = 1, 2
"""Where they are among the ends of a range."""


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers from ``least`` to ``greatest``, those ``apart`` from them, and one that is always taken."""

    least: int
    greatest: int
    apart: tuple[int, ...]
    usual: int

    def outside(self, numbers: Tensor) -> Tensor:
        """Which rows hold another number, (n,)."""
        wide = numbers.long()  # unsigned types have no comparisons on some devices
        out = wide.clamp(self.least, self.greatest) != wide
        for number in self.apart:
            out &= wide != number
        return out if out.dim() == 1 else out.flatten(1).any(1)

    def everything(self, dtype: torch.dtype) -> bool:
        """Whether every number of the type is taken."""
        return self.least <= torch.iinfo(dtype).min and self.greatest >= torch.iinfo(dtype).max

    @property
    def ends(self) -> tuple[int, ...]:
        """Numbers that are taken, the usual one first."""
        return (self.usual, self.greatest, self.least, *self.apart)


@dataclass(frozen=True, slots=True)
class Known:
    """What model and loss take: a range for every whole-number tensor of the samples, None for the other tensors.

    ``floats_decide``: floats that are not finite or are large, or whole numbers that do not go together, make trouble
    as well, which no range tells.
    """

    ranges: tuple[Range | None, ...]
    floats_decide: bool
    made_up: Any = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Trial:
    """Model and loss on made-up samples, with every number looked at before it is used."""

    model: nn.Module
    loss_fn: LossFunction
    per_batch: bool

    def run(self, samples: Any) -> tuple[bool, LookingFirst]:
        """Whether the losses of the samples can be had, and what was seen; nothing is left behind."""
        return strictly(partial(batches.losses, self.model, self.loss_fn, samples, self.per_batch), *self.roots)

    def takes(self, samples: Any) -> bool:
        return self.run(samples)[0]

    @property
    def roots(self) -> tuple[nn.Module, LossFunction]:
        return self.model, self.loss_fn


def known(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> Known | None:
    """The numbers that model and loss take in samples of the form of ``batch``; None where they cannot be looked at.

    Only forward passes of three samples are run: a few a tensor, 2 log2(k) where no operation names its k places.

    Guarantee:
        Of the samples of the batch shapes and types are read, never values. Nothing of the model, the loss and the
        generators is changed. No number reaches a kernel that does not take it, as far as ``masking`` knows them.

    Edge cases:
        arithmetic, which takes every number    the range of the type
        numbers of a sample that only together are places (a + b)    ``floats_decide``

    Example:
        >>> batch = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
        >>> found = known(nn.Linear(2, 3), nn.CrossEntropyLoss(reduction="none"), batch, 4, False)
        >>> found.ranges[1]
        Range(least=0, greatest=2, apart=(-100,), usual=0)
    """
    trial = Trial(model, loss_fn, per_batch)
    with torch.inference_mode(False), torch.enable_grad(), api.eager(model):
        for base, usual in bases(batch, n):
            runs, seen = trial.run(base)
            if runs:
                rows = [is_sample(t, n) for t in batches.tensors(batch)]
                return found_from(trial, base, rows, usual, {int(e) for e in seen.ends if math.isfinite(e)})
    return None


def found_from(trial: Trial, base: Any, rows: list[bool], usual: int, ends: set[int]) -> Known:
    """What is taken beside made-up samples that run."""
    held = list(enumerate(zip(batches.tensors(base), rows, strict=True)))
    ranges = tuple(range_of(trial, base, j, usual, ends) if row and is_whole(t) else None for j, (t, row) in held)
    decide = any(found(trial, samples) for samples in mixed(base, ranges))
    floats = [j for j, (t, row) in held if row and t.is_floating_point()]
    decide = decide or any(
        found(trial, changed(base, j, lambda t, f=factor: t * f)) for j in floats for factor in FLOATS
    )
    return Known(ranges, decide, base)


def found(trial: Trial, samples: Any) -> bool:
    """Whether an operation was about to use a number that it does not take."""
    return bool(trial.run(samples)[1].found)


def is_whole(t: Tensor) -> bool:
    """Whether it holds whole numbers; truths are none."""
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def bases(batch: Any, n: int) -> Iterator[tuple[Any, int]]:
    """Made-up samples, and a whole number in them: as ever, then with floats between 0 and 1, whole numbers 1 or 0."""
    made_up = batches.synthetic(batch, n, SAMPLES, torch.Generator().manual_seed(0))
    rows = [is_sample(t, n) for t in batches.tensors(batch)]
    likely = only(made_up, rows, lambda t: t.sigmoid() if t.is_floating_point() else t)
    yield made_up, 0
    yield likely, 0
    yield only(likely, rows, lambda t: torch.ones_like(t) if is_whole(t) else t), 1
    yield only(likely, rows, lambda t: torch.zeros_like(t) if is_whole(t) else t), 0


def only(tree: Any, rows: list[bool], change: Callable[[Tensor], Tensor]) -> Any:
    """The tree with the tensors of samples changed."""
    each = iter(rows)
    return batches.rebuild(tree, lambda t: change(t) if next(each) else t)


def changed(tree: Any, place: int, change: Callable[..., Tensor]) -> Any:
    """The tree with one tensor changed."""
    return only(tree, [j == place for j in range(len(batches.tensors(tree)))], change)


def range_of(trial: Trial, base: Any, place: int, usual: int, ends: Iterable[int]) -> Range:
    """What is taken in one tensor."""
    kind = torch.iinfo(batches.tensors(base)[place].dtype)
    lowest, highest = kind.min, min(kind.max, torch.iinfo(torch.int64).max)

    def beside(other: int) -> Takes:
        """Whether a number is taken: alone in a sample, among the made-up numbers, and together with another one."""
        return cache(lambda v: trial.takes(changed(base, place, lambda t: tried(t, v, other))))

    above = beside(usual)
    greatest = furthest(above, usual, highest, ends)
    below = beside(greatest)
    least = furthest(below, usual, lowest, ends)
    lone = (v for v in sorted({*ends, *APART}) if lowest <= v < least or (greatest < v <= highest and above(v)))
    return Range(least, greatest, tuple(v for v in lone if below(v)), usual)


def tried(t: Tensor, value: int, other: int) -> Tensor:
    """Samples of one number only, of that and those of ``t``, of that and another one."""
    coins = torch.rand(t.shape, generator=torch.Generator().manual_seed(1), device="cpu").to(t.device) < 0.5
    mix = torch.where(coins, value, t.long())
    mix[0] = value
    mix[2:] = torch.where(coins[2:], value, other)
    return mix.to(t.dtype)


def furthest(takes: Takes, start: int, limit: int, ends: Iterable[int]) -> int:
    """The last number taken from ``start`` on towards ``limit``: first by the ends that operations name, then doubling.

    Example:
        >>> furthest(lambda v: v < 50257, 0, 2**63 - 1, ()), furthest(lambda v: v >= -3, 0, -(2**63), [-3])
        (50256, -3)
    """
    sign = 1 if limit > start else -1
    steps, most = takes_steps(takes, start, sign), abs(limit - start)
    if all(steps(min(v, most)) for v in (most, *ODD)):
        return limit
    good, bad = 0, min(most, MOST) + 1
    for step in sorted({sign * (e - start) for e in ends if 0 < sign * (e - start) < bad}):
        if not (steps(step - 1) and steps(step)):  # an end that is taken alone is none
            bad = step if steps(step - 1) else step - 1
            break
        good = step
    pace = 1
    while bad - good > 1:
        step = min(good + pace, (good + bad) // 2) if bad <= MOST else min(good + pace, bad - 1)
        if steps(step):
            good, pace = step, 2 * pace
        else:
            bad = step
    return start + sign * good


def takes_steps(takes: Takes, start: int, sign: int) -> Takes:
    return lambda step: takes(start + sign * step)


def mixed(base: Any, ranges: tuple[Range | None, ...]) -> Iterator[Any]:
    """Samples in which the ends of all ranges meet: usual numbers, all the greatest, all the least; then at random."""
    for seed in range(JOINT if any(ranges) else 0):
        generator, each = torch.Generator().manual_seed(seed), iter(ranges)

        def meeting(
            t: Tensor, seed: int = seed, generator: torch.Generator = generator, each: Iterator[Range | None] = each
        ) -> Tensor:
            limits = next(each)
            if limits is None:
                return t
            chosen = torch.randint(len(limits.ends), t.shape, generator=generator, device="cpu")
            chosen[0] = 0
            if seed == 0:
                chosen[1], chosen[2] = GREATEST, LEAST
            return torch.tensor(limits.ends, device="cpu")[chosen].to(t)

        yield batches.rebuild(base, meeting)


def strictly(work: Callable[[], Any], *roots: Any) -> tuple[bool, LookingFirst]:
    """Whether work on made-up samples gets to its end while every number is looked at, and what was seen."""
    looking, done = LookingFirst(), False
    with aside(*roots), suppress(Exception):  # whatever a user's model does with made-up samples
        with looking:
            work()
        done = True
    return done and not looking.found, looking


@contextmanager
def aside(*roots: Any) -> Iterator[None]:
    """The same random numbers each time; generators, buffers and frozen parameters are put back. Autocast stays."""
    kept, others = Kept.of(*roots), (random.getstate(), np.random.get_state())
    held = [p.device for module in modules_of(*roots) for p in module.parameters(recurse=False)]
    devices = sorted({device.index or 0 for device in held if device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        for generator in (torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)):
            generator.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            kept.put_back()
            torch.clear_autocast_cache()  # weights cast on the way are not the run's own
            random.setstate(others[0])
            np.random.set_state(others[1])
