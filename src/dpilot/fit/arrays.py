"""What scikit-learn users pass, as tables that a schema describes: arrays, frames with a target beside them, labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.column import Column
from dpilot.data.frames import Frame
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

__all__ = [
    "TARGET", "Labels", "array_frame", "class_schema", "column_names", "free_name", "is_images",
    "join_target", "name_classes", "number_schema", "regression_schema", "text_schema", "unit_schema",
]  # fmt: skip

TARGET: Final = "y"
ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class Labels:
    """Declared or published classes, and the code of each record's; nan, the null record, for any other label.

    Edge cases:
        One class alone gets a second one that no record has, so that one kind of model serves all.
    """

    classes: NDArray[Any]
    codes: Floats

    @property
    def names(self) -> tuple[str, ...]:
        """What figures call the classes: their texts, or their places where two texts are the same."""
        names = tuple(str(each) for each in self.classes.tolist())
        names = names if len(set(names)) == len(names) else tuple(map(str, range(len(names))))
        return names if len(names) > 1 else (*names, "(no other class)")

    def cells(self) -> list[str | None]:
        """The codes as a column of texts, None where there is none."""
        return [None if np.isnan(code) else str(int(code)) for code in self.codes]


def name_classes(class_weight: Any, names: Mapping[Any, str]) -> Any:
    """The weights of classes by the names that figures have for them; what is no dict stays as it is.

    >>> name_classes({1: 5.0}, {0: "0", 1: "1"}), name_classes("balanced", {})
    ({'1': 5.0}, 'balanced')
    """
    if not isinstance(class_weight, Mapping):
        return class_weight
    return {names.get(label, str(label)): weight for label, weight in class_weight.items()}


def column_names(estimator: Any) -> tuple[str, ...]:
    """What the columns of an array are called: as the frame that was fitted calls them, or x0, x1, ..."""
    named = getattr(estimator, "feature_names_in_", None)
    return tuple(f"x{place}" for place in range(estimator.n_features_in_)) if named is None else tuple(named.tolist())


def class_schema(columns: Sequence[str], classes: int) -> Schema:
    """Numbers whose bounds are bought, and the place of the class as the target.

    >>> schema = class_schema(("age", "pay"), 3)
    >>> schema.to_buy, schema.target.categories
    (('age', 'pay'), ('0', '1', '2'))
    """
    numeric = {name: Column(name, "numeric", bounds="buy") for name in columns}
    target = free_name(TARGET, columns)
    codes = tuple(map(str, range(classes)))
    return Schema({**numeric, target: Column(target, "categorical", categories=codes, role="target")})


def unit_schema(width: int, classes: int) -> Schema:
    """Rows that are scaled to unit length by themselves, as one vector, and the place of the class as the target.

    >>> unit_schema(384, 2).features[0].width
    384
    """
    rows = Column(ROWS, "vector", width=width, missing="null")
    codes = tuple(map(str, range(classes)))
    return Schema({ROWS: rows, TARGET: Column(TARGET, "categorical", categories=codes, role="target")})


def text_schema(columns: Iterable[Any], text: Any, classes: int) -> Schema:
    """Texts where ``text`` says so, alone or with the encoder of each; other columns and the target as above.

    >>> schema = text_schema(("review", "age"), "review", 2)
    >>> [column.type for column in schema.features]
    ['text', 'numeric']
    """
    names = tuple(columns)
    named: dict[Any, Any] = {text: None} if isinstance(text, str) else dict(text) if isinstance(text, Mapping) else {}
    if not isinstance(text, str | Mapping):
        named = dict.fromkeys(text)
    for name in named:
        if name not in names:
            raise InvalidInput(f"text is {name!r}: expected a column" + _validate.suggest(str(name), map(str, names)))
    made = class_schema(names, classes)
    texts = {name: Column(name, "text", encoder=encoder) for name, encoder in named.items()}
    return replace(made, columns={name: texts.get(name, column) for name, column in made.columns.items()})


def number_schema(columns: Sequence[str]) -> Schema:
    """Numbers, and a number as the target; a record with a value that is none is null."""
    numeric = {name: Column(name, "numeric", bounds="buy", missing="null") for name in columns}
    target = free_name(TARGET, columns)
    return Schema({**numeric, target: _number_to_buy(target)})


def regression_schema(schema: Schema, frame: Any) -> Schema:
    """The schema of a frame whose target comes beside it: a target that is not declared is a number to be bought.

    Edge cases:
        a protected column that the frame lacks    is ignored: there are no groups to compare
    """
    columns = dict(schema.columns)
    for column in schema.protected_columns:
        if Frame.of(frame).names[column.name] != 1:
            columns[column.name] = Column(column.name, role="ignored")
    if not schema.has_target:
        name = free_name(TARGET, tuple(columns))
        columns[name] = _number_to_buy(name)
    return replace(schema, columns=columns)


def array_frame(values: Floats, schema: Schema, target: Any = None) -> dict[str, Any]:
    """The columns of an array by the names of one of the schemas above; all of it where that is one vector."""
    if [column.type for column in schema.features] == ["vector"]:
        frame: dict[str, Any] = {schema.features[0].name: values}
    else:
        frame = {column.name: values for column, values in zip(schema.features, values.T, strict=True)}
    return frame if target is None else {**frame, schema.target.name: target}


def join_target(frame: Any, y: Any, schema: Schema) -> tuple[dict[str, Any], Schema]:
    """The declared columns of ``frame`` with ``y`` as the target's, and the schema for them: what a fit reads.

    Edge cases:
        y None      the target is a column of the frame
    """
    table, target = Frame.of(frame), schema.target.name
    resolved = table.resolve(schema, beside=() if y is None else (target,))
    needed = [column for column in resolved.needed if y is None or column.name != target]
    columns = {name: frame[name] for column in needed for name in column.sources}
    if y is None:
        return columns, resolved
    if len(y) != table.length:
        raise InvalidInput("X and y have inconsistent numbers of records: expected one label a record.")
    return {**columns, target: y}, resolved


def is_images(X: Any) -> bool:
    """Whether X is an array of three or four dimensions: a fact of the table, not of a record."""
    return getattr(X, "ndim", 2) in (3, 4)


def free_name(name: str, columns: Sequence[str]) -> str:
    """A name like ``name`` that no column has."""
    while name in columns:
        name += "_"
    return name


def _number_to_buy(name: str) -> Column:
    return Column(name, "numeric", bounds="buy", role="target")
