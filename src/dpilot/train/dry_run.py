"""What can be tried without a record: does the model run, and in what chunks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from dpilot.engine import PerSample
from dpilot.engine import batch as batches
from dpilot.engine.base import trainable
from dpilot.engine.made_up import check_values_first, need_checks
from dpilot.errors import DpilotError, InvalidInput
from dpilot.train.gradients import OUT_OF_MEMORY, PerSampleOf

TRIED_ALONE: Final = 4
_SMALLEST: Final = 32
_LARGEST: Final = 2048
_ABOUT: Final = 0.97
_PATIENCE: Final = 1.0  # seconds a chunk may take before no larger one is tried


def synthetic_records(form: Any, count: int, *, per_batch: bool) -> Any:
    """``count`` made-up records, or the next ``free_count``, in the form of a chunk: shapes and types, no values."""
    n = batches.size(form, per_batch)
    return batches.synthetic(form, n, batches.free_count(form, n, count), torch.Generator().manual_seed(0))


def run_synthetic(per_sample: PerSampleOf, form: Any, *, per_batch: bool, public: bool = False) -> PerSample:
    """Compute the gradients of two made-up records, and raise what is wrong with the configuration.

    A ``public`` form may be looked at: where made-up values do not run, it is tried as it is.

    Guarantee:
        What is raised depends on the model, the loss and the form of the records, never on a record's value.
    """
    try:
        return _first(per_sample, synthetic_records(form, 2, per_batch=per_batch))
    except (DpilotError, *OUT_OF_MEMORY):
        raise
    except Exception as problem:
        if public:
            return _first(per_sample, form)
        raise InvalidInput(
            f"model and loss do not run on made-up records ({type(problem).__name__}: {problem}). Expected records "
            "that fit the model; if only made-up values are the trouble, give example=, a public batch that runs."
        ) from problem


def chunk_size(per_sample: PerSampleOf, form: Any, expected: float, *, per_batch: bool, rows: int = 1) -> int:
    """The largest chunk that computes about as many records a second as any, on made-up records; a batch at most.

    Every size is timed twice, in turns, so that a busy moment of the machine does not decide. The result changes
    rounding, memory and time, never privacy. Records of several ``rows`` (units) are tried as many fewer at a time.
    """
    return largest_fast_size(lambda size: seconds_a_chunk(per_sample, form, size, per_batch), expected, rows=rows)


def largest_fast_size(
    seconds_of: Callable[[int], float | None], expected: float, *, patience: float = _PATIENCE, rows: int = 1
) -> int:
    """The largest power of two whose chunk, by ``seconds_of``, computes about as many records a second as any.

    No larger chunk is tried behind one that takes more than ``patience`` seconds, or None: that does not fit.
    """
    needed = 1 << math.ceil(math.log2(max(expected * 1.25, 1)))
    smallest, largest = (_power_of_two(most // rows) for most in (_SMALLEST, _LARGEST))
    if needed <= smallest:
        return needed  # the only size that would be tried
    rates: dict[int, float] = {}
    for _ in range(2):
        for size in _powers_of_two(smallest, min(needed, largest)):
            seconds = seconds_of(size)
            if seconds is None:
                break
            rates[size] = max(rates.get(size, 0.0), size / seconds)
            if seconds > patience:
                break
    best = max(rates.values(), default=0.0)
    return max((size for size, rate in rates.items() if rate >= _ABOUT * best), default=smallest)


def _power_of_two(most: int) -> int:
    """The largest that is at most so much; at least 1."""
    return 1 << max(most, 1).bit_length() - 1


def _powers_of_two(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def seconds_a_chunk(per_sample: PerSampleOf, form: Any, size: int, per_batch: bool) -> float | None:
    """The better of two timings after a warm-up; None if memory does not suffice."""
    chunk = synthetic_records(form, size, per_batch=per_batch)
    taken = []
    try:
        for run in (_first, _once, _once):
            start = time.perf_counter()
            run(per_sample, chunk)
            taken.append(time.perf_counter() - start)
            if taken[0] > 2 * _PATIENCE:
                break
    except Exception:  # memory, or values that the model refuses: run_synthetic has raised which
        return None
    return max(min(taken), 1e-9)


def _first(per_sample: PerSampleOf, chunk: Any) -> PerSample:
    """On an accelerator values are looked at first: what is an error on the CPU would end the process there."""
    if need_checks(batches.tensors(chunk)):
        return check_values_first(lambda: _once(per_sample, chunk))
    return _once(per_sample, chunk)


def _once(per_sample: PerSampleOf, chunk: Any) -> PerSample:
    gradients = per_sample(chunk)
    total = gradients.weighted_sum(torch.zeros_like(gradients.norms))
    if gradients.norms.is_cuda:
        torch.cuda.synchronize()
    del total
    return gradients


def squares(per_sample: PerSampleOf, chunk: Any, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The squared norm of each made-up record's gradient, for each trained parameter by itself.

    The squares that an engine has are of layers, or upper bounds: sums of one record at a time are exact.
    """
    gradients = per_sample(chunk)
    one = torch.zeros_like(gradients.norms)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in trainable(model)}
    for place in range(min(TRIED_ALONE, one.numel())):
        weights = one.clone()
        weights[place] = 1.0
        for name, total in gradients.weighted_sum(weights).items():
            found[name].append(total.abs().float().square().sum())
    return {name: torch.stack(each) for name, each in found.items()}
