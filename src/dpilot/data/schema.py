"""The schema: what is declared of a table before anyone looks at it.

Types, bounds and categories come from here and never from the values.

>>> schema = Schema.parse('''
... [columns.age]
... type = "numeric"
... bounds = [17, 90]
... [columns.income]
... type = "categorical"
... categories = ["<=50K", ">50K"]
... role = "target"
... ''')
>>> schema.target.categories, [column.name for column in schema.features]
(('<=50K', '>50K'), ['age'])
>>> Schema.parse(schema.to_toml()) == schema
True
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpilot import _validate
from dpilot.data import toml, wildcards
from dpilot.data.column import Column
from dpilot.data.sentences import fingerprint, shared_encoder
from dpilot.data.types.base import BUY
from dpilot.errors import InvalidInput

__all__ = ["Column", "Defaults", "Schema"]

_KEYS: Final = ("columns", "missing_values", "defaults")
_OTHERS: Final = ("refused", "ignored")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a column says nothing: ``others`` are the columns of a table that the schema does not name.

    "refused" (the default): such a column is an error before anything is spent. "ignored": it is never read.
    """

    others: str = "refused"

    def __post_init__(self) -> None:
        if not isinstance(self.others, str) or self.others not in _OTHERS:
            _validate.refuse("others in [defaults]", self.others, " or ".join(f'"{each}"' for each in _OTHERS))

    @classmethod
    def from_dict(cls, declared: Any) -> Defaults:
        """The defaults that the table [defaults] of a schema file declares."""
        if not isinstance(declared, Mapping):
            raise InvalidInput(f'defaults are {declared!r}: expected a table, as [defaults] with others = "ignored".')
        for key in declared:
            if key != "others":
                raise InvalidInput(
                    f"{key!r} is no key of [defaults]" + _validate.suggest(key, ("others",), "; known is others.")
                )
        return cls(**declared)

    def to_dict(self) -> dict[str, Any]:
        """What ``from_dict`` reads: only what was not the default."""
        return {} if self == Defaults() else {"others": self.others}


@dataclass(frozen=True, slots=True)
class Schema:
    """All columns of a table, in their order, and the texts that mean "missing" in a csv file.

    A name may be a wildcard, as "pixel_*": it stands for all columns of that kind once ``resolve`` has seen the names
    of a table. ``defaults`` say what becomes of columns that are not named.

    Guarantee:
        Everything an encoder does is a function of the schema and of one record (privacy rules 8 and 21).

    Edge cases:
        At most one target and one unit. An empty text that is declared a category is not missing.
    """

    columns: Mapping[str, Column]
    missing_values: tuple[str, ...] = ("",)
    defaults: Defaults = Defaults()

    def __post_init__(self) -> None:
        columns = dict(self.columns)
        wrong = [name for name, column in columns.items() if not isinstance(column, Column) or column.name != name]
        if wrong:
            raise InvalidInput(f"columns has {wrong[0]!r}: expected a Column of that name. See Schema.from_dict.")
        if not columns:
            raise InvalidInput("the schema has no columns: expected one [columns.NAME] table for each column.")
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "missing_values", _texts(self.missing_values))
        self._check_members()
        for role in ("target", "unit"):
            held = [column.name for column in columns.values() if column.role == role]
            if len(held) > 1:
                raise InvalidInput(
                    f"{role} columns are {held[:5]!r}: expected one at most. Give the others another role."
                )

    def _check_members(self) -> None:
        """Refuse a column that is listed in a vector and has an entry of its own, or a place in two vectors."""
        seen = dict.fromkeys(self.columns, "has an entry of its own")
        for column in self.columns.values():
            for name in column.columns if isinstance(column.columns, tuple) else ():
                if name in seen:
                    column.refuse(f"its columns have {name!r}, which {seen[name]}: expected it in one place")
                seen[name] = f"is in {column.name!r}"

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """A schema file; JSON if its name ends in .json, else TOML."""
        return cls.from_json(path) if Path(path).suffix.lower() == ".json" else cls.from_toml(path)

    @classmethod
    def from_toml(cls, path: str | Path) -> Schema:
        """The schema of a TOML file."""
        return cls.parse(_read(path), source=str(path), folder=Path(path).parent)

    @classmethod
    def from_json(cls, path: str | Path) -> Schema:
        """The schema of a JSON file."""
        return cls.parse(_read(path), form="json", source=str(path), folder=Path(path).parent)

    @classmethod
    def parse(cls, text: str, *, form: str = "toml", source: str = "the schema", folder: str | Path = ".") -> Schema:
        """The schema that ``text`` declares; files of ``levels`` are looked for in ``folder``."""
        _validate.one_of(("toml", "json"), form=form)
        try:
            declared = tomllib.loads(text) if form == "toml" else json.loads(text, object_pairs_hook=_once)
        except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as problem:
            raise InvalidInput(f"{source} is no {form.upper()} ({problem}): expected [columns.NAME] tables.") from None
        return cls.from_dict(declared, folder=folder)

    @classmethod
    def from_dict(cls, declared: Any, *, folder: str | Path = ".") -> Schema:
        """The schema of plain data: {"columns": {name: {"type": ..., ...}}}."""
        if not isinstance(declared, Mapping):
            raise InvalidInput(f"the schema is a {type(declared).__name__}: expected a mapping with 'columns'.")
        for key in declared:
            if key not in _KEYS:
                hint = _validate.suggest(key, _KEYS, ": columns are tables named [columns.NAME].")
                raise InvalidInput(f"{key!r} is no key of a schema{hint}")
        columns = declared.get("columns")
        if not isinstance(columns, Mapping):
            raise InvalidInput("the schema has no 'columns': expected one [columns.NAME] table for each column.")
        read = {name: Column.from_dict(name, each, folder=Path(folder)) for name, each in columns.items()}
        defaults = Defaults.from_dict(declared.get("defaults", {}))
        return cls(read, declared.get("missing_values", ("",)), defaults)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads."""
        return {**self._top(), **self._defaults(), "columns": self._columns()}

    def to_toml(self) -> str:
        """A text that ``from_toml`` reads from a file."""
        columns = {toml.header(name): declared for name, declared in self._columns().items()}
        return toml.dumps(self._top(), {**self._defaults(), **columns})

    def to_json(self) -> str:
        """A text that ``from_json`` reads from a file."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @property
    def target(self) -> Column:
        """The target column; refused where none is declared."""
        found = self._of("target")
        if found is None:
            raise InvalidInput('no column is the target: expected one with role = "target", or name it in the call.')
        return found

    @property
    def has_target(self) -> bool:
        """Whether a target is declared."""
        return self._of("target") is not None

    @property
    def protected(self) -> Column | None:
        """The column whose groups are compared, if any; refused where there are several (``protected_columns``)."""
        found = self.protected_columns
        if len(found) > 1:
            names = [column.name for column in found]
            raise InvalidInput(
                f"protected columns are {names[:5]!r}: expected one here. Give the others another role, or compare "
                "their groups in a fit of their own."
            )
        return found[0] if found else None

    @property
    def protected_columns(self) -> tuple[Column, ...]:
        """All columns whose groups are compared."""
        return tuple(column for column in self.columns.values() if column.role == "protected")

    @property
    def features(self) -> tuple[Column, ...]:
        """What a model may look at; a protected column only if it says ``feature = true``."""
        return tuple(column for column in self.columns.values() if column.is_feature)

    @property
    def unit(self) -> Column | None:
        """The column of ids that says which rows are of one unit, if any."""
        return self._of("unit")

    @property
    def used(self) -> tuple[Column, ...]:
        """All columns whose values are read."""
        return tuple(column for column in self.columns.values() if column.used)

    @property
    def needed(self) -> tuple[Column, ...]:
        """All columns that a table must have: those whose values are read, and the unit's."""
        return tuple(column for column in self.columns.values() if column.needed)

    @property
    def to_buy(self) -> tuple[str, ...]:
        """Numeric columns whose bounds are still to be bought."""
        return tuple(column.name for column in self.used if column.bounds == BUY)

    def with_bounds(self, bounds: Mapping[str, tuple[float, float]]) -> Schema:
        """The same with bought bounds filled in; values beyond them are clamped."""
        strange = [name for name in bounds if name not in self.to_buy]
        if strange:
            raise InvalidInput(f'bounds are given for {strange[0]!r}: expected a column with bounds = "buy".')
        return self._replace({name: {"bounds": tuple(pair), "outside": "clamp"} for name, pair in bounds.items()})

    @property
    def buys_classes(self) -> bool:
        """Whether the classes of the target are still to be bought."""
        return self.has_target and self.target.levels == BUY

    def with_classes(self, names: Iterable[str]) -> Schema:
        """The same with bought classes filled in; a record of another one is null."""
        return self._replace({self.target.name: {"categories": tuple(names), "levels": None}})

    def pin_encoders(self) -> Schema:
        """The same with the fingerprint of every sentence encoder: who reads texts by it takes no other.

        Each is loaded, so that one that does not run is refused before anything is spent.
        """
        changes: dict[str, dict[str, str]] = {}
        for column in self.used:
            if column.encoder is not None:
                found = column.fingerprint or fingerprint(column.encoder)
                shared_encoder(column.encoder, column.length or 0, found)
                changes[column.name] = {"fingerprint": found}
        return self._replace(changes)

    def with_roles(
        self,
        *,
        target: str | None = None,
        protected: str | Iterable[str] | None = None,
        unit: str | None = None,
    ) -> Schema:
        """The same with a target, one or more protected columns, or the column of a unit's ids, named.

        Edge cases:
            Naming a column that has the role already changes nothing. Another target or unit is a contradiction, and
            refused; a unit's column needs no entry in the schema, as nothing is declared of ids;
            protected columns are added to those of the schema.
            A column that a wildcard stands for gets an entry of its own, after the others.
        """
        groups = [protected] if isinstance(protected, str) else list(protected or ())
        wanted = [("target", target), *(("protected", name) for name in groups), ("unit", unit)]
        changed = dict(self.columns)
        if unit is not None and wildcards.find(changed, unit) is None:
            changed[unit] = Column(unit, role="ignored")
        for role, name in wanted:
            if name is None or (name in changed and changed[name].role == role):
                continue
            if (name == target and role != "target") or (role == "unit" and name in groups):
                other = "target" if name == target else "protected"
                raise InvalidInput(f"{name!r} is asked to be {other} and {role}: expected two different columns.")
            found = self._column_for(role, name, changed)
            changed[name] = (
                Column(name, role=role)
                if role == "unit"
                else dataclasses.replace(found, name=name, role=role, missing=None, feature=None, **_known(found))
            )
        return dataclasses.replace(self, columns=changed)

    def resolve(self, names: Iterable[str], *, source: str = "the table") -> Schema:
        """The same for a table with columns ``names``: every wildcard replaced by the columns that it stands for.

        Guarantee:
            Only names are looked at: a fact of the container, which is not protected (docs/privacy.md).

        Edge cases:
            A name in the schema that is a column of the table is that column, whatever characters it has; an entry of
            its own wins over a wildcard. Refused: two wildcards for one column, a column of the schema that is not
            there and not ignored, and, unless ``defaults.others`` is "ignored", one of the table that is not named.
            What is resolved stays as it is when it is resolved again.

        Example:
            >>> schema = Schema.parse('[columns."pixel_*"]\\ntype = "numeric"\\nbounds = [0, 255]')
            >>> list(schema.resolve(["pixel_1", "pixel_2"]).columns)
            ['pixel_1', 'pixel_2']
        """
        there = tuple(names)
        columns = wildcards.expand(self.columns, there)
        wildcards.check_there(self.columns, columns, there, source)  # first: until it passes, names may be a record's
        wildcards.check_single(self.columns, there)
        if self.defaults.others == "refused":
            wildcards.check_declared(columns, there, source)
        return dataclasses.replace(self, columns=columns or self.columns)

    def inputs_only(self) -> Schema:
        """The same for prediction: target, unit and a protected column that is no feature need not be there."""
        others = [column.name for column in self.needed if not column.is_feature]
        return self._replace({name: {"role": "ignored", "missing": None, "feature": None} for name in others})

    def without_unit(self) -> Schema:
        """The same where whose rows they are need not be there, or comes apart."""
        return self if self.unit is None else self._replace({self.unit.name: {"role": "ignored"}})

    def _column_for(self, role: str, name: str, columns: Mapping[str, Column]) -> Column:
        """The declaration of a column that is to have a role; refused where the schema says otherwise."""
        found = wildcards.find(columns, name)
        if found is None:
            raise InvalidInput(
                f"{role} is {name!r}: expected a column of the schema" + _validate.suggest(name, self.columns)
            )
        if found.role not in ("feature", "ignored"):
            raise InvalidInput(
                f"{role} is {name!r}, which the schema declares as {found.role}. Change the schema, or the call."
            )
        holder = self._of(role)
        if role in ("target", "unit") and holder is not None:
            raise InvalidInput(
                f"{role} is {name!r}, but the schema declares {holder.name!r}. Change the one or the other."
            )
        return found

    def _of(self, role: str) -> Column | None:
        return next((column for column in self.columns.values() if column.role == role), None)

    def _replace(self, changes: Mapping[str, Mapping[str, Any]]) -> Schema:
        changed = {
            name: dataclasses.replace(column, **changes[name]) if name in changes else column
            for name, column in self.columns.items()
        }
        return dataclasses.replace(self, columns=changed)

    def _columns(self) -> dict[str, Any]:
        return {name: column.to_dict() for name, column in self.columns.items()}

    def _defaults(self) -> dict[str, Any]:
        return {"defaults": self.defaults.to_dict()} if self.defaults != Defaults() else {}

    def _top(self) -> dict[str, Any]:
        return {} if self.missing_values == ("",) else {"missing_values": list(self.missing_values)}


def _known(column: Column) -> dict[str, Any]:
    """What a column with another role is otherwise: a target and a protected column have no unknown categories."""
    return {"outside": None} if column.outside == "indicator" else {}


def _texts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f'missing_values is {given!r}: expected a list of texts, as ["", "NA"].')
    return tuple(given)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise InvalidInput(f"schema is {str(path)!r}: expected a readable TOML or JSON file ({reason}).") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in {key for key, _ in pairs[:place]})
        raise InvalidInput(f"{twice!r} is declared twice: expected each key once.")
    return found
