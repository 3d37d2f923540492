"""A worker process: trials come in, released parameters go out, and nothing else leaves it.

Started by ``tune.pool`` with a pipe on either side; it ends when the process that started it does.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, BinaryIO

import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from dpilot.errors import InvalidInput
from dpilot.records import StepRecord
from dpilot.train.batches.unit_reader import UnitsById
from dpilot.train.plan import Plan
from dpilot.tune.recipe import Recipe, TrialKeys
from dpilot.tune.task import Trial

__all__ = ["Conditions", "Refusal", "TrialOutput", "answer_trial", "main"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a worker takes over from the process that started it, so that both compute the same."""

    threads: int
    dtype: torch.dtype
    precision: str
    deterministic: bool

    @classmethod
    def here(cls, workers: int) -> Conditions:
        """Those of this process, with its share of the cores for each of ``workers``."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(
            max(1, min(torch.get_num_threads(), cores // workers)),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        )

    def apply(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        torch.use_deterministic_algorithms(self.deterministic)


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """What a trial released: trained parameters by name, and its steps; ``frozen`` is a digest of all else."""

    parameters: dict[str, NDArray[Any]]
    records: list[StepRecord]
    frozen: str

    def load_into(self, model: nn.Module) -> None:
        """Give ``model``, made like the one that was trained, its parameters."""
        trained = dict(_trainable(model))
        here = {name: tuple(each.shape) for name, each in trained.items()}
        there = {name: each.shape for name, each in self.parameters.items()}
        if here != there or _digest_frozen(model) != self.frozen:
            raise InvalidInput(
                "model_fn made another module in a worker process: expected the same parameters, and the same frozen "
                "ones and buffers, from the same seeds in every process. Load frozen weights from a file, or leave "
                "workers=1."
            )
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(torch.from_numpy(self.parameters[name]))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a worker cannot run the trials: found before a record is read, so it may be shown."""

    why: str


def main() -> None:
    """Serve until the other side ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the process that waits
    source, sink = _pipes()
    try:
        conditions, recipe = pickle.load(source)
        conditions.apply()
    except Exception as problem:
        _send(sink, _refusal(problem))
        return
    # What is raised here may depend on records, so it is not reported.
    tensors, units = pickle.load(source)
    rows = TensorDataset(*tensors)
    recipe = replace(recipe, dataset=rows if units is None else UnitsById(rows, units))
    _send(sink, None)
    inbox: SimpleQueue[tuple[Trial, Plan, TrialKeys]] = SimpleQueue()
    threading.Thread(target=_receive_trials, args=(source, inbox), daemon=True).start()
    while True:
        _send(sink, answer_trial(recipe, *inbox.get()))


def answer_trial(recipe: Recipe, trial: Trial, plan: Plan, keys: TrialKeys) -> TrialOutput | Refusal:
    """One trial, once. What goes wrong after a record was read ends the process without a word."""
    try:
        run = recipe.run(trial, plan, keys)
    except Exception as problem:
        return _refusal(problem)
    frozen = _digest_frozen(run.job.model)
    run.run_steps()
    run.state.finish()
    return TrialOutput({name: _array(each) for name, each in _trainable(run.job.model)}, run.state.records, frozen)


def _trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return (pair for pair in model.named_parameters() if pair[1].requires_grad)


def _digest_frozen(model: nn.Module) -> str:
    """A name for the frozen parameters and the buffers, before training: no record decides them."""
    frozen = (pair for pair in model.named_parameters() if not pair[1].requires_grad)
    digest = blake2b()
    for name, each in (*frozen, *model.named_buffers()):
        digest.update(name.encode())
        digest.update(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _array(parameter: torch.Tensor) -> NDArray[Any]:
    """The same numbers; types that numpy has not, such as bfloat16, as the float32 that holds them exactly."""
    values = parameter.detach().cpu()
    exact = values.is_complex() or values.dtype in (torch.float32, torch.float64)
    array: NDArray[Any] = (values if exact else values.float()).numpy()
    return array


def _refusal(problem: Exception) -> Refusal:
    return Refusal(f"{type(problem).__name__}: {problem}")


def _receive_trials(source: BinaryIO, inbox: SimpleQueue[tuple[Trial, Plan, TrialKeys]]) -> None:
    """Hand on what comes; end the process at once when the other side is gone, whatever is under way."""
    try:
        while True:
            inbox.put(pickle.load(source))
    finally:
        os._exit(70)


def _send(sink: BinaryIO, what: object) -> None:
    pickle.dump(what, sink)
    sink.flush()


def _pipes() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes, out of reach of what a module prints: that goes nowhere."""
    source, sink = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout):  # errors go nowhere from the start
        os.dup2(nowhere, stream.fileno())
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")
