"""Validation on records that the caller declared public: exact figures along the way, which move nothing of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from dpilot._quiet import try_quietly
from dpilot.engine import batch as batches
from dpilot.engine.made_up import evaluation_mode
from dpilot.engine.state import preserve_state
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.records import ValidationRecord
from dpilot.sampling import check_source
from dpilot.train.batches.reader import Collate, Reader, base_of
from dpilot.train.evaluation import labels_and_inputs, probabilities
from dpilot.train.randomness import step_randomness
from dpilot.train.run import predict

_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class PublicValidation:
    """Records declared public, and how a model is scored on them every so many steps."""

    data: Any
    model: nn.Module
    loss_fn: Callable[..., Tensor]
    per_batch: bool
    collate: Collate | None
    every: int

    def check(self, private: Any) -> None:
        """Score a few of the records, so that what is wrong with them or the loss is raised before anything is paid."""
        check_source(self.data)
        if base_of(self.data) is base_of(private):
            raise InvalidInput(
                "public_validation is the data set to train on, or another part of it, which is private: expected "
                "public data. Records of it that are public are a data set of their own."
            )
        if not len(self.data):
            raise InvalidInput("public_validation holds no record: expected some, or None.")
        try:
            replace(self, data=Subset(self.data, range(min(len(self.data), 2)))).score(0)
        except (RuntimeError, ValueError, TypeError, LookupError) as problem:
            raise InvalidInput(
                f"public_validation cannot be scored ({problem}): expected records as in training."
            ) from problem

    def due(self, taken: int) -> bool:
        """Whether the model is scored after so many steps."""
        return taken % self.every == 0

    def score(self, taken: int) -> ValidationRecord:
        """The mean loss and, of a classifier, the accuracy of the model as it stands, in evaluation mode.

        Guarantee:
            Parameters, buffers, modes and the generators of torch, numpy and random are left as they were, so that a
            run ends bit for bit as without.

        Edge cases:
            a loss that is not finite                   None
            targets that are not one class a record     no accuracy: None
        """
        with leave_no_trace(self.model, self.loss_fn):
            rows = [self._score(chunk) for chunk in public_chunks(self.data, self.model, self.collate)]
        if not rows:
            raise InvalidInput("public_validation has no record that can be read: expected records as in training.")
        losses, right = torch.cat([loss for loss, _ in rows]), [each for _, each in rows]
        loss = float(losses.mean())
        accuracy = None if any(each is None for each in right) else float(torch.cat(right).mean())  # type: ignore[arg-type]
        return ValidationRecord(taken, loss if math.isfinite(loss) else None, accuracy)

    def _score(self, chunk: Any) -> tuple[Tensor, Tensor | None]:
        losses = _losses(chunk, self.model, self.loss_fn, self.per_batch)
        return losses, try_quietly(lambda: self._right(chunk))

    def _right(self, chunk: Any) -> Tensor:
        labels, inputs = labels_and_inputs(chunk)
        found = probabilities(predict(self.model, inputs)).argmax(1)
        if labels.reshape(-1).shape != found.shape or labels.is_complex() or bool((labels != labels.round()).any()):
            raise ValueError("not one class a record")
        return (found == labels.cpu().reshape(-1)).double()


def exact_losses(
    data: Any, model: nn.Module, loss_fn: Callable[..., Tensor], *, per_batch: bool, collate: Collate | None
) -> Tensor:
    """The loss of each record of public ``data`` that can be read, in evaluation mode."""
    with leave_no_trace(model, loss_fn):
        found = [_losses(chunk, model, loss_fn, per_batch) for chunk in public_chunks(data, model, collate)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


@contextmanager
def leave_no_trace(model: nn.Module, loss_fn: Callable[..., Tensor]) -> Iterator[None]:
    """Evaluation mode, after which parameters, buffers, modes and generators are as they were."""
    untouched = step_randomness(Chain(bytes(KEY_BYTES))), preserve_state(model, loss_fn)
    with untouched[0], untouched[1], evaluation_mode(model), torch.no_grad():
        yield


def public_chunks(data: Any, model: nn.Module, collate: Collate | None) -> Iterator[Any]:
    """Public records in chunks, where the model is."""
    reader = Reader(data, collate, None, next(model.parameters()).device)
    pieces = np.split(np.arange(len(data)), range(_ROWS, len(data), _ROWS))
    return (chunk.whole for chunk in reader.chunks(pieces))


def _losses(chunk: Any, model: nn.Module, loss_fn: Callable[..., Tensor], per_batch: bool) -> Tensor:
    n = batches.size(chunk, per_batch)
    return batches.Chunk(model, loss_fn, chunk, n, per_batch).losses().double().cpu()
