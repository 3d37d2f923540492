"""Where the records of a regression come from: a table of numbers, or a frame that a schema describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.bounds import SHARE, buy, buy_event, raw_numbers
from dpilot.data.encoder import Encoder
from dpilot.data.frames import Frame
from dpilot.data.reading import codes
from dpilot.data.schema import Column, Schema
from dpilot.errors import InvalidInput
from dpilot.linear.declared_bounds import DeclaredBounds, parse_bounds
from dpilot.linear.inputs import target_numbers
from dpilot.linear.problem import CommittedRun, LinearProblem, multiplier
from dpilot.linear.scoring import Grouped
from dpilot.metrics.residuals import Groups
from dpilot.privacy.events import Event

__all__ = ["Described", "Numbers", "RecordSource"]

_UNKNOWN_SIZE: Final = 10_000.0  # what the tails of bought bounds go by where the size is to be bought itself


class RecordSource(Protocol):
    """Records and what is declared of them: ``bounds`` of the encoded columns, as ``linear.declared`` reads them.

    ``share`` is what the bounds to buy take of the squared mu, in the one stage of ``stages``; ``read`` runs it on the
    records at ``places`` and gives the encoder that came out (None: the values are numbers already).
    """

    @property
    def length(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def bounds(self) -> Any: ...

    @property
    def share(self) -> float: ...

    @property
    def groups(self) -> Grouped | None: ...

    def stages(self, problem: LinearProblem, /) -> dict[str, Event]: ...

    def read(self, places: Any, problem: LinearProblem, run: CommittedRun, /) -> Encoder | None: ...

    def table(self, encoder: Encoder | None, /) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table of numbers: what is not declared of it is bought by the fit itself."""

    values: Floats
    target: Floats

    @property
    def length(self) -> int:
        return int(self.values.shape[0])

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def bounds(self) -> None:
        return None

    @property
    def share(self) -> float:
        return 0.0

    @property
    def groups(self) -> None:
        return None

    def stages(self, *_: object) -> dict[str, Event]:
        return {}

    def read(self, *_: object) -> None:
        return None

    def table(self, *_: object) -> Floats:
        return np.column_stack([self.values, self.target])


@dataclass(frozen=True, slots=True)
class Described:
    """A frame whose columns ``schema`` declares: numbers between their bounds, categories one-hot.

    Edge cases:
        A target outside declared bounds is the null record, or is pulled in where the schema says "clamp".
    """

    schema: Schema  # of the features alone
    column: Column | None  # of the target
    frame: Any
    target: Floats
    groups: Grouped | None = None

    @classmethod
    def of(cls, schema: Schema, frame: Any, y: Any, protected: str | None) -> Described:
        """The records of ``frame`` and their targets ``y``."""
        if not isinstance(schema, Schema):
            _validate.refuse("schema", schema, "a Schema", "See Schema.from_toml.")
        schema = schema.with_roles(protected=protected)
        column = schema.target if schema.has_target else None
        if column is not None and column.categories is not None:
            raise InvalidInput(
                f"target is {column.name!r}, which is categorical: expected numbers. Use AutoClassifier."
            )
        target = target_numbers(y, Frame.of(frame).length)
        if column is not None and isinstance(column.bounds, tuple) and column.outside == "null":
            lower, upper = column.bounds
            target = np.where((target >= lower) & (target <= upper), target, np.nan)
        return cls(schema.inputs_only(), column, frame, target, _read_groups(schema, Frame.of(frame)))

    @property
    def length(self) -> int:
        return int(self.target.size)

    @property
    def width(self) -> int:
        return len(self._bare().names)

    @property
    def bounds(self) -> DeclaredBounds:
        """Encoded numbers lie in [-1, 1], indicators in [0, 1]; the target in its own bounds, or to be bought.

        Bought bounds lie close, and indicators are scaled by theirs: what was declared of numbers is an outer limit.
        """
        names = self._bare().names
        numeric = {column.name for column in self.schema.features if column.categories is None}
        lower = [-1.0 if name in numeric else 0.0 for name in names]
        known = self.column is not None and isinstance(self.column.bounds, tuple)
        target = self.column.bounds if known and self.column else None
        scaled = [name not in numeric or name in self.schema.to_buy for name in names]
        return replace(parse_bounds({"X": (lower, 1.0), "y": target}, len(names)), scaled=np.array([*scaled, False]))

    @property
    def share(self) -> float:
        return SHARE if self.schema.to_buy else 0.0

    def stages(self, problem: LinearProblem) -> dict[str, Event]:
        return {"bounds": buy_event(self.schema, multiplier(problem, SHARE))} if self.schema.to_buy else {}

    def read(self, places: Any, problem: LinearProblem, run: CommittedRun) -> Encoder:
        names = self.schema.to_buy
        if not names:
            return Encoder(self.schema)
        columns = raw_numbers(self.frame, self.schema, names)[places].T
        with run.stage("bounds") as receipt:
            bought = buy(
                self.schema,
                dict(zip(names, columns, strict=True)),
                size=problem.size or _UNKNOWN_SIZE,
                noise_multiplier=multiplier(problem, SHARE),
                receipt=receipt,
                noise=run.noise,
            )
        return Encoder(self.schema.with_bounds(bought))

    def table(self, encoder: Encoder | None) -> Floats:
        assert encoder is not None
        features = encoder.encode_features(self.frame)
        return np.column_stack([features.astype(np.float64), self.target])

    def _bare(self) -> Encoder:
        """An encoder of the same columns, to ask for their names before the bounds are bought."""
        return Encoder(self.schema.with_bounds(dict.fromkeys(self.schema.to_buy, (0.0, 1.0))))


def _read_groups(schema: Schema, frame: Frame) -> Grouped | None:
    """The groups that are compared: those of the protected column, if it is there and has two categories or more."""
    column = schema.protected
    if column is None or column.categories is None or len(column.categories) < 2 or frame.names[column.name] != 1:
        return None
    found = codes(frame.cells(column), column.categories, schema.missing_values)
    return Grouped(np.where(found >= 0, found.astype(np.float64), np.nan), Groups(column.categories, column.name))
