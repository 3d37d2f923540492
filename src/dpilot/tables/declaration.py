"""What is declared of a fit before a record is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dpilot import _validate
from dpilot.data.column import Column
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.metrics.counts import Layout
from dpilot.metrics.residuals import Groups
from dpilot.privacy.budget import Budget
from dpilot.records import PUBLISHED_SIZE, RUNNING_TIME

__all__ = ["EPOCHS", "HELD_OUT", "MODELS", "PARTS", "FitDeclaration", "TableTask", "declare", "resolve_size"]

MODELS: Final = ("logistic", "mlp")
PARTS: Final = ("train", "held-out")
HELD_OUT: Final = 0.1
EPOCHS: Final = 10.0


@dataclass(frozen=True, slots=True)
class TableTask:
    """What is predicted, and what is compared, by the schema."""

    schema: Schema

    @property
    def target(self) -> Column:
        return self.schema.target

    @property
    def numeric(self) -> bool:
        """Whether the target is a number."""
        return self.target.type == "numeric"

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a record: one a class, or the number."""
        return len(self.target.categories or ("",))

    @property
    def half_range(self) -> float:
        """Half of what is declared for a numeric target."""
        lower, upper = self.target.interval
        return (upper - lower) / 2

    @property
    def groups(self) -> Groups | None:
        """Whose residuals are compared, where the target is a number."""
        column = self.schema.protected
        if not self.numeric or column is None or column.categories is None or len(column.categories) < 2:
            return None
        return Groups(column.categories, column.name)

    @property
    def layout(self) -> Layout:
        """What is counted of held-out records, where the target has classes."""
        groups = self.schema.protected
        named = groups.categories if groups is not None and groups.categories else ("",)
        return Layout(self.target.categories or (), named, "" if groups is None else groups.name)


@dataclass(frozen=True, slots=True)
class FitDeclaration:
    """Schema, budget, size and kind of a fit; ``size`` is None while it is still to be bought.

    Guarantee:
        Nothing in it comes from a record's value. The number of records is in it only where the caller made it public,
        and is then listed as unprotected.
    """

    schema: Schema
    budget: Budget
    size: int | None
    held_out: float
    epochs: float
    model: str
    unprotected: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> TableTask:
        return TableTask(self.schema)

    @property
    def shares(self) -> dict[str, float]:
        """The expected shares of the parts."""
        return dict(zip(PARTS, (1 - self.held_out, self.held_out), strict=True))


def declare(
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None,
    allow_large_delta: bool = False,
    size: int | None,
    public_size: bool,
    target: str | None = None,
    protected: str | None = None,
    held_out: float = HELD_OUT,
    epochs: float | None = None,
    model: str = "logistic",
) -> FitDeclaration:
    """Check what the caller declares, and fill in the defaults."""
    if not isinstance(schema, Schema):
        raise InvalidInput(f"schema is a {type(schema).__name__}: expected a Schema, such as Schema.load(path).")
    roles = schema.with_roles(target=target, protected=protected)
    _check_roles(roles)
    budget = Budget.of_size(epsilon, delta, size, allow_large_delta=allow_large_delta)
    rule = "min(1e-5, 1/(10 size))" if size is not None else "where the size is bought"
    given = f"delta {budget.delta:.3g} is the default, {rule}." if delta is None else None
    return FitDeclaration(
        schema=roles,
        budget=budget,
        size=size,
        held_out=_validate.open_unit("It is the share kept apart for the metrics.", held_out=held_out),
        epochs=EPOCHS if epochs is None else _validate.positive(epochs=epochs),
        model=_validate.one_of(MODELS, model=model),
        unprotected=(PUBLISHED_SIZE, RUNNING_TIME) if public_size else (RUNNING_TIME,),
        notes=tuple(each for each in (given, budget.check_size(size)) if each),
    )


def resolve_size(size: Any, length: int) -> tuple[int | None, bool]:
    """The number to plan with, or None if it is to be bought, and whether it was taken from the data.

    >>> resolve_size("public", 70), resolve_size(100, 70), resolve_size("private", 70)
    ((70, True), (100, False), (None, False))
    """
    if isinstance(size, str):
        _validate.one_of(("public", "private"), "Or a whole number, declared.", size=size)
        if size == "private":
            return None, False
        if length == 0:
            raise InvalidInput("the table has 0 records: expected one or more.")
        return length, True
    return _validate.count('Or "public" or "private".', size=size), False


def _check_roles(schema: Schema) -> None:
    target, group = schema.target, schema.protected
    if not schema.features:
        raise InvalidInput("no column is a feature: expected one or more beside the target.")
    if group is not None and group.type != "categorical":
        raise InvalidInput(
            f"protected is {group.name!r}, a {group.type} column: expected a categorical one. Declare its groups."
        )
    if target.type == "numeric" and target.name in schema.to_buy:
        raise InvalidInput(f"the bounds of the target {target.name!r} are to be bought: expected declared ones.")
