"""Poisson batches of a plan as a real DataLoader, for people with their own loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import DataLoader

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.sampling import Batch
from dpilot.train.checks import check_plan
from dpilot.train.plan import Plan
from dpilot.train.reading import Collate, Reader, check_dataset, known_form
from dpilot.train.use import use_of


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LoadedBatch:
    """One Poisson batch with its records, for the one step it may be used in.

    ``parts`` are pieces of the batch, records of equal shapes: one as a rule, none of an empty batch. ``counts`` says
    how many records each holds. How many there are is secret: the representation shows the step only.
    """

    issued: Batch
    parts: tuple[Any, ...]
    counts: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"LoadedBatch(step={self.issued.step})"


def poisson_loader(
    dataset: Any, plan: Plan, *, num_workers: int = 0, collate_fn: Collate | None = None, **options: Any
) -> DataLoader[Any]:
    """A DataLoader that yields the plan's Poisson batches, ``plan.steps`` of them, empty ones included.

    Hand each to ``PrivateStep``, in order. Keys stay in this process; workers only read records.

    Guarantee:
        No record is read before a PrivateStep of the same plan has paid. Iterating anew issues again, unchanged, the
        batches that no step took.

    Edge cases:
        record that cannot be read    left out, in silence: the null record; so is one of another form than the
                                      PrivateStep's ``example`` (without one: the TensorDataset's, or the first
                                      record's)
        collate_fn                    is given one record at a time, and what it makes of them is joined where shapes
                                      are equal: none is padded to another, or standardised by it
        a sampler of its own          refused: batch_size, shuffle, sampler and the like are the plan's business
    """
    check_plan(plan)
    check_dataset(dataset)
    _validate.count(least=0, num_workers=num_workers)
    taken = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & set(options)
    if taken:
        raise InvalidInput(
            f"{', '.join(sorted(taken))} is given: expected none of these, as the plan draws the batches."
        )
    loaded = _Loaded(dataset, collate_fn)
    return DataLoader(
        cast(Any, loaded),
        batch_sampler=_Issued(plan, loaded),
        num_workers=num_workers,
        collate_fn=cast(Any, _as_it_is),
        **options,
    )


class _Issued:
    """The plan's batches as what a DataLoader calls a batch sampler; it runs in the main process."""

    def __init__(self, plan: Plan, loaded: _Loaded) -> None:
        self._plan = plan
        self._loaded = loaded

    def __iter__(self) -> Iterator[Any]:
        use = use_of(self._plan)
        if not use.paid:
            raise InvalidInput(
                "the loader is read before anything was paid: make the PrivateStep of this plan first, which reserves "
                "its price, and iterate after."
            )
        if use.form is not None:
            self._loaded.form = use.form  # before workers begin, which copy it
        return use.rewind().batches(len(self._loaded))

    def __len__(self) -> int:
        return self._plan.steps


class _Loaded:
    """A data set of batches: what is asked for is an issued batch, what comes back are its records, collated."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self._dataset = dataset
        self._collate = collate
        self.form = known_form(dataset, collate)

    def __getitems__(self, issued: Batch) -> LoadedBatch:
        if not issued.indices.size:
            return LoadedBatch(issued, ())
        if self.form is None:
            self.form = Reader(self._dataset, self._collate).one()
        if self.form is None:
            return LoadedBatch(issued, ())  # no record shows a form, so none has it
        found = list(Reader(self._dataset, self._collate, self.form).counted([issued.indices]))
        return LoadedBatch(issued, tuple(whole for whole, _ in found), tuple(count for _, count in found))

    def __getitem__(self, index: int) -> Any:
        raise InvalidInput(f"record {index} is asked for alone: expected batches. Iterate over the loader.")

    def __len__(self) -> int:
        return len(self._dataset)


def _as_it_is(loaded: LoadedBatch) -> LoadedBatch:
    return loaded
