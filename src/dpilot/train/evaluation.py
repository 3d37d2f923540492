"""How good a model is on private records: figures of one paid release."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from dpilot._arrays import Floats
from dpilot._quiet import keep_quiet, try_quietly
from dpilot.data.cells import Cells, objects, plain
from dpilot.data.reading import codes
from dpilot.data.values import key
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain, fresh_key
from dpilot.metrics.counts import Layout, Scored, counts_event, noisy_counts
from dpilot.metrics.figures import Figures
from dpilot.metrics.scores import scores
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import to_dict
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Ledger, Stage
from dpilot.privacy.ledger.ledger import commitment
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.sampling import check_source
from dpilot.train.batches.held_out import map_records
from dpilot.train.batches.reader import Collate, Reader, declared_form, first_record
from dpilot.train.batches.unit_reader import check_ids, rows_by_id
from dpilot.train.randomness import step_randomness

LABELS: Final = "labels"
Predict = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Noisy figures of private records, with their intervals, and what they cost."""

    metrics: Figures
    cost: Cost
    stage: Stage

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the figures as records keep them, their price, and what was paid for."""
        return {"metrics": [asdict(each.record()) for each in self.metrics], **asdict(self.cost), **self.claim()}

    def claim(self) -> dict[str, Any]:
        """The release as statements name it: somebody else can compose it with the run."""
        stage = self.stage
        return {"purpose": stage.purpose, "part": stage.part, "split": stage.split, "event": to_dict(stage.event)}


@dataclass(frozen=True, slots=True)
class Population:
    """Private records, their groups and whose they are: of each, what was declared.

    ``groups`` has one cell a record, read by its value: what is none of ``names`` makes its record null. Classes that
    have no ``class_names`` are called by their codes.
    """

    data: Any
    groups: Any = None
    names: Sequence[Any] | None = None
    unit: PrivacyUnit = RECORD
    ids: Any = None
    example: Any = None
    collate: Collate | None = None
    class_names: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        check_source(self.data)
        if not self.unit.is_record and self.ids is None:
            raise InvalidInput(
                f"the run protects {self.unit}, and units are missing: expected units=, one id for each row, of which "
                "one row counts."
            )
        check_ids(self.data, self.ids, self.unit)
        if self.groups is None:
            return
        if self.group_names is None:
            raise InvalidInput(
                "groups are given without the names they may have, which would show that a group occurs: expected "
                "group_names=, such as ['Female', 'Male'], or an array of booleans. The categories of a pandas "
                "Categorical are mostly those that occur."
            )
        if len(self.groups) != len(self.data):
            raise InvalidInput("groups and data have inconsistent numbers of records: expected one group a record.")
        keys = [key(name) for name in self.group_names]
        if None in keys or len(set(keys)) < len(keys):
            raise InvalidInput(
                "group_names cannot be told apart as values: expected texts, and numbers below 2^53, that differ "
                '(1, 1.0, "1" and True are one).'
            )
        self._cells()

    @property
    def group_names(self) -> Sequence[Any] | None:
        """The declared groups: those named, or false and true of an array, tensor or Series of booleans."""
        is_boolean = getattr(self.groups, "dtype", None) in (np.dtype(np.bool_), torch.bool)
        return (False, True) if self.names is None and is_boolean else self.names

    def form(self) -> Any:
        """The form of the records where it is known before one is read."""
        return declared_form(self.data, self.collate) if self.example is None else self.example

    def first_form(self) -> Any:
        """That of the first record that can be read; it counts as public, and so does that there is one."""
        found = Reader(self.data, self.collate).one()
        if found is None:
            raise InvalidInput("no record shows the form of the records: expected example=, a public batch of it.")
        return found

    def layout(self, classes: int) -> Layout:
        """What is counted: classes by their codes, and the declared groups."""
        named = tuple(map(str, range(classes) if self.class_names is None else self.class_names))
        if self.groups is None:
            return Layout(named)
        return Layout(named, tuple(map(str, self.group_names or ())), self._group_title)

    @property
    def _group_title(self) -> str:
        """What the groups are: the name of a Series, such as "sex", which its owner gave it."""
        name = getattr(self.groups, "name", None)
        return name if isinstance(name, str) and name else "group"

    def check_classes(self, classes: int) -> int:
        """The number of classes, if there are as many names, and they differ."""
        names = self.class_names
        if names is not None and (len(names) != classes or len(set(map(str, names))) < classes):
            raise InvalidInput(
                f"class_names are {list(names)!r}: expected {classes} that differ, one for each output of the model, "
                "in their order."
            )
        return classes

    def score(self, predict: Predict, form: Any, classes: int) -> Scored:
        """The records that count as the model sees them: all, or one of each unit. Sensitive: for the door only."""
        places = np.arange(len(self.data))
        if not self.unit.is_record:
            places = rows_by_id(self.ids, replace(self.unit, rows=1), fresh_key("units")).places
        data = _WithGroup(Subset(self.data, places.tolist()), self._codes()[places])
        labels, _ = labels_and_inputs(form)
        form = first_record((form, labels.new_zeros(len(labels), dtype=torch.float64)), len(labels))
        collate = None if self.collate is None else partial(_collate_both, self.collate)
        rows = map_records(data, form, partial(_score_chunk, predict, classes), collate=collate)
        whole = torch.cat([torch.zeros(0, 2 + classes, dtype=torch.float64), *rows]).numpy()
        return Scored(whole[:, 0], whole[:, 2:], whole[:, 1])

    def _codes(self) -> Floats:
        if self.groups is None:
            return np.zeros(len(self.data))
        found = codes(self._cells(), self.group_names or (), ())
        return np.where(found < 0, np.nan, found)

    def _cells(self) -> Cells:
        """The groups as plain cells; durations, which numpy makes of whole numbers for the sake of one, are refused."""
        cells = self.groups.numpy(force=True) if isinstance(self.groups, Tensor) else self.groups
        return plain(cells) if hasattr(cells, "dtype") or hasattr(cells, "type") else objects(cells)


def evaluate(
    predict: Predict, population: Population, budget: Budget, ledger: Ledger | str | os.PathLike[str] | None,
    *, part: str | None = None, split: str | None = None,
) -> Evaluation:  # fmt: skip
    """Pay ``budget``, then release one noisy table of counts, and every figure that it holds.

    Guarantee:
        One Gaussian on a joint vector that one record (of units, one unit by one of its rows) moves by 1 at most. The
        price is on disk before a record is read.
    """
    form, sigma = population.form(), 1 / gdp_mu(budget)
    classes = None if form is None else population.check_classes(count_classes(predict, form))
    unit = population.unit if population.unit.is_record else replace(population.unit, rows=1)
    event, purpose = counts_event(sigma), "evaluation"
    stage = Stage(purpose, event, part, split)
    paid = commitment([stage], budget, ledger, "the data of this evaluation", size=None, unit=unit)
    with paid as (made, cost), made.reserve(event, purpose=purpose, part=part, split=split) as receipt:
        with step_randomness(Chain(fresh_key("figures"))), keep_quiet():
            form = population.first_form() if form is None else form
            classes = classes or population.check_classes(count_classes(predict, form))
            scored = population.score(predict, form, classes)
        counts = noisy_counts(scored, population.layout(classes), noise_multiplier=sigma, receipt=receipt)
    return Evaluation(Figures(scores(counts)), cost, stage)


def count_classes(predict: Predict, form: Any) -> int:
    """How many classes the model tells apart, from a record of the public form."""
    with step_randomness(Chain(bytes(KEY_BYTES))):  # a record of the form is public
        found = try_quietly(lambda: probabilities(predict(labels_and_inputs(form)[1])))
    if found is None:
        raise InvalidInput(
            "the model does not give records of this form one output a class: expected records (inputs, class), or "
            f"mappings with {LABELS!r}, and outputs of shape (records, classes). Give example= where the form differs."
        )
    return found.shape[1]


class _WithGroup:
    """A data set whose items are a record and the code of its group."""

    def __init__(self, data: Any, codes: Floats) -> None:
        self._data, self._codes = data, codes

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, place: int) -> tuple[Any, float]:
        return self._data[place], float(self._codes[place])


def _collate_both(collate: Collate, records: list[Any]) -> Any:
    return collate([record for record, _ in records]), torch.tensor([code for _, code in records], dtype=torch.float64)


def _score_chunk(predict: Predict, classes: int, chunk: Any) -> Tensor:
    """Class, group and probabilities of some records."""
    record, group = chunk
    labels, inputs = labels_and_inputs(record)
    found = probabilities(predict(inputs))
    if found.shape != (len(group), classes):
        raise ValueError("not one probability a class and record")
    return torch.cat([labels.double().cpu().reshape(-1, 1), group.double().cpu().reshape(-1, 1), found], 1)


def labels_and_inputs(record: Any) -> tuple[Tensor, Any]:
    """The classes of some records, and what the model is called with."""
    if isinstance(record, Mapping):
        return record[LABELS], {name: each for name, each in record.items() if name != LABELS}
    return record[1], record[0]


def probabilities(outputs: Tensor) -> Tensor:
    """The probability of each class, from one output a class, or one for the second of two classes."""
    logits = outputs.double().cpu()
    if logits.dim() > 2:
        raise ValueError("not one output a class and record")
    if logits.dim() == 1 or logits.shape[1] == 1:
        second = torch.sigmoid(logits.reshape(-1))
        return torch.stack([1 - second, second], 1)
    return torch.softmax(logits, 1)
