"""One declared column: its type, its domain, its role, and what a missing or an outside value means.

>>> Column("age", "numeric", bounds=(17, 90))
Column(name='age', type='numeric', bounds=(17.0, 90.0), categories=None, role='feature', missing='indicator', ...)
>>> Column("age", "numeric", bounds=(90, 17))
Traceback (most recent call last):
dpilot.errors.InvalidInput: column 'age': bounds are [90, 17]: expected two finite numbers, the lower one first...
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from dpilot import _validate
from dpilot.data import values
from dpilot.data.column_types import TYPES, CellState, type_of
from dpilot.data.sentences import NAMES
from dpilot.data.types.base import BUY
from dpilot.data.types.categorical import TRUTH
from dpilot.errors import InvalidInput
from dpilot.privacy.unit import RECORD

NARROWEST: Final = 1e-300  # what floats can still divide into parts

Bounds = tuple[float, float] | Literal["buy"] | None

_ALIASES: Final = {"classes": "categories", "values": "categories", "limits": "bounds", "dimension": "width"}
_OWN: Final = (
    "bounds", "categories", "range", "levels", "ordered", "features", "length", "encoder", "fingerprint", "width",
    "file", "columns", "size", "mode", "folder", "backbone",
)  # fmt: skip
"""Keys that belong to some types alone."""


@dataclass(frozen=True, slots=True)
class Column:
    """What is declared of one column; contradictions are refused, and defaults filled in.

    | field | of | is |
    |---|---|---|
    | bounds | numeric | (lower, upper), or "buy" |
    | categories | categorical | texts, the code of each is its place; those of a boolean column are False and True |
    | levels | categorical | "hash:256" for categories that nobody lists; of the target "buy": classes are paid for |
    | ordered | categorical | whether their order means something |
    | range | date, datetime | first and last, as texts |
    | features, length | text | how many hashed columns, and how many letters count |
    | encoder | text | a sentence encoder in place of hashed columns, by name or folder; ``length`` counts tokens |
    | fingerprint | text | the files that the encoder must have (``data.sentences.fingerprint``) |
    | width | vector | how many numbers each list has |
    | file | vector | an .npy file beside the table that holds them, a row for each record |
    | columns | vector | the columns that are its numbers: "e*", "e0..e383" in the table's order, or their names |
    | size, mode | image | (width, height) in pixels; "RGB" or "L" |
    | folder | image | where the files are, from the folder of the table on |
    | backbone | image | "scattering", "pixels", or a pretrained network by name or path |
    | outside | numeric, dates | a value beyond them: "null" (default), or "clamp" (default where bounds are bought) |
    | | categorical | an unknown category: "null" (default), or "indicator", a column that says so |
    | | image | a picture of another mode: "null" (default), or "convert" |

    ``missing``: "indicator" (default of features) adds a column that says so; "null" makes the record null, which is
    the only choice for a target and a protected column. ``feature`` says whether a protected column is a feature too.

    Edge cases:
        An ignored column needs no type and no domain, nor does the column of a unit's ids.
        Numbers and truth values among the categories become their text; True, 1, "1" and "1.0" are one category under
        several names (``values.key``), so only one of them is declared.
    """

    name: str
    type: str | None = None
    bounds: Bounds = None
    categories: tuple[str, ...] | None = None
    role: str = "feature"
    missing: str | None = None
    outside: str | None = None
    feature: bool | None = None
    range: tuple[str, str] | None = None
    levels: str | None = None
    ordered: bool = False
    features: int | None = None
    length: int | None = None
    width: int | None = None
    encoder: str | None = None
    fingerprint: str | None = None
    file: str | None = None
    columns: str | tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    mode: str | None = None
    folder: str | None = None
    backbone: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            _validate.refuse("name of a column", self.name, "a text")
        self._check_name()
        self._one_of("role", ("feature", "target", "protected", "unit", "ignored"))
        if self.role == "unit" and self.name == RECORD.name:
            self.refuse("its role is 'unit', and 'record' is what each row by itself is called. Rename the column")
        self._settle_type()
        self._check_keys()
        self._set("bounds", self._parse_bounds())
        self._set("categories", self._parse_categories())
        for key, value in type_of(self).settle(self).items() if self.used else ():
            self._set(key, value)
        self._settle_missing()
        self._settle_outside()
        self._settle_feature()

    @classmethod
    def from_dict(cls, name: str, declared: Any, *, folder: Path = Path()) -> Column:
        """The column that a table of a schema file declares; ``folder`` is where a file of ``levels`` is looked for."""
        if not isinstance(declared, Mapping):
            raise InvalidInput(f"column {name!r} is {declared!r}: expected a table of its type, bounds and so on.")
        known = [field.name for field in fields(cls) if field.name != "name"]
        for key in declared:
            if key in ("defaults", "missing_values") or (key == "columns" and isinstance(declared[key], Mapping)):
                raise InvalidInput(f"column {name!r}: {key!r} is inside it: expected it at the top, above all columns.")
            if key not in known:
                others = f"; known are {', '.join(known)}."
                hint = _validate.suggest(_ALIASES.get(key, key), known, others)
                raise InvalidInput(f"column {name!r}: {key!r} is no key of a column{hint}")
        return cls(name, **_with_encoder(_with_backbone(_with_levels(name, declared, folder), folder), folder))

    def to_dict(self) -> dict[str, Any]:
        """What ``from_dict`` reads: only what was not the default."""
        declared: dict[str, Any] = {"type": self.type} if self.type else {}
        if self.bounds is not None:
            declared["bounds"] = self.bounds if self.bounds == BUY else list(self.bounds)
        if self.categories is not None and self.type == "categorical":
            declared["categories"] = list(self.categories)
        if self.range is not None:
            declared["range"] = list(self.range)
        if self.size is not None:
            declared["size"] = list(self.size)
        if self.columns is not None:
            declared["columns"] = self.columns if isinstance(self.columns, str) else list(self.columns)
        own = ("levels", "width", "file", "encoder", "fingerprint", *(("features",) if self.encoder else ()))
        declared |= {key: getattr(self, key) for key in own if getattr(self, key) is not None}
        if self.role != "feature":
            declared["role"] = self.role
        for key in ("ordered", "features", "length", "mode", "folder", "backbone", "missing", "outside", "feature"):
            value = getattr(self, key)
            if value != getattr(self._bare(), key):
                declared[key] = value
        return declared

    @property
    def is_feature(self) -> bool:
        """Whether a model may look at it."""
        return bool(self.feature)

    @property
    def used(self) -> bool:
        """Whether its values are read, as its type says."""
        return self.role not in ("unit", "ignored")

    @property
    def needed(self) -> bool:
        """Whether a table must have it: its values are read, or it says which rows are of one unit."""
        return self.role != "ignored"

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of a table that it is read from, once names are known: its own, or those of a vector."""
        return self.columns if isinstance(self.columns, tuple) else (self.name,)

    @property
    def null_states(self) -> tuple[CellState, ...]:
        """What a cell of it makes the whole record null by being."""
        missing = (CellState.MISSING,) if self.missing == "null" else ()
        outside = (CellState.OUTSIDE,) if self.outside == "null" else ()
        unknown = (CellState.UNKNOWN,) if self.outside != "indicator" else ()
        return (*missing, *outside, *unknown, CellState.UNREADABLE)

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds, once they are known."""
        if not isinstance(self.bounds, tuple):
            self.refuse(f"bounds are {self.bounds!r}: expected known ones. Buy or declare them first")
        return self.bounds

    def _bare(self) -> Column:
        own: dict[str, Any] = {"range": self.range, "levels": self.levels, "width": self.width, "size": self.size}
        own |= {"encoder": self.encoder, "features": self.features} if self.encoder else {}
        own |= {"columns": self.columns} if self.columns else {}
        return Column(self.name, self.type, self.bounds, self.categories, self.role, **own)

    def _check_name(self) -> None:
        try:
            self.name.encode("utf-8")
        except UnicodeEncodeError:
            self.refuse("its name has a character that no file can hold: expected Unicode text")

    def _settle_type(self) -> None:
        if self.type is None and not self.used:
            return
        named = (f'"{name}"' + (f" with {each.domain}" if each.domain else "") for name, each in TYPES.items())
        remedy = "Write " + ", or ".join(named)
        if self.type is None:
            self.refuse(f"type is missing. {remedy}")
        self._one_of("type", tuple(TYPES), remedy)
        if self.role == "protected" and not type_of(self).has_groups:
            self.refuse(f"it is protected and {self.type}: groups are compared by categories. Declare it categorical")
        if self.role == "target" and not type_of(self).is_target:
            self.refuse(f"it is the target and {self.type}: expected numbers, categories or truth values")

    def _check_keys(self) -> None:
        """Refuse a key that only other types have."""
        allowed = TYPES[self.type].keys if self.type is not None else ()
        for key in _OWN[2:]:
            if getattr(self, key) not in (None, False) and key not in allowed:
                kinds = " and ".join(name for name, each in TYPES.items() if key in each.keys)
                found = _quote(getattr(self, key))
                self.refuse(f"{key} is {found}, but its type is {self.type!r}: only {kinds} columns have it")

    def _parse_bounds(self) -> Bounds:
        given: Any = self.bounds
        if given is None:
            if self.type == "numeric" and self.used:
                self.refuse('bounds are missing: declare [lower, upper], or "buy" to have them as private quantiles')
            return None
        if self.type != "numeric":
            self.refuse(f"bounds are {_quote(given)}, but its type is {self.type!r}: only numeric columns have bounds")
        if isinstance(given, str) and given == BUY:
            return BUY
        pair = list(given) if isinstance(given, list | tuple) else []
        if len(pair) != 2 or not all(map(_is_finite, pair)) or not float(pair[0]) < float(pair[1]):
            rule = 'two finite numbers, the lower one first and not equal, or "buy"'
            self.refuse(f"bounds are {_quote(given)}: expected {rule}")
        if not math.isfinite(float(pair[1]) - float(pair[0])):
            self.refuse(f"bounds are {_quote(given)}: expected an interval of finite width")
        if float(pair[1]) - float(pair[0]) < NARROWEST:
            self.refuse(f"bounds are {_quote(given)}: expected a width of {NARROWEST} or more. Choose a larger unit")
        return float(pair[0]), float(pair[1])

    def _parse_categories(self) -> tuple[str, ...] | None:
        given: Any = self.categories
        if given is None:
            if self.type == "boolean":
                return TRUTH
            if self.type == "categorical" and self.used and self.levels is None:
                otherwise = (
                    '"buy" to pay for those of many records'
                    if self.role == "target"
                    else '"hash:256" where there are too many to list'
                )
                self.refuse(
                    "categories are missing: declare all values it can have, from knowledge, not from the data, or "
                    f"levels = {otherwise}"
                )
            return None
        if self.type == "boolean" and tuple(given) == TRUTH:
            return TRUTH
        if self.type != "categorical":
            self.refuse(f"it has categories, but its type is {self.type!r}: only categorical columns have them")
        if not isinstance(given, list | tuple):
            self.refuse(f"categories are {_quote(given)}: expected a list of texts")
        return self._distinct([values.text(value) for value in given], given)

    def _distinct(self, texts: list[str | None], given: Iterable[object]) -> tuple[str, ...]:
        wrong = [
            value for value, written in zip(given, texts, strict=True) if written is None or not _storable(written)
        ]
        if wrong:
            self.refuse(f"{_quote(wrong[0])} is no category: expected texts, numbers or truth values")
        least = 2 if self.role == "target" else 1
        if len(texts) < least:
            self.refuse(f"it has {len(texts)} categories: expected {least} or more")
        seen: dict[str, str] = {}
        for each in texts:
            self._see(str(each), seen)
        return tuple(each for each in texts if each is not None)

    def _see(self, written: str, seen: dict[str, str]) -> None:
        """Refuse a category that some container would not tell from an earlier one."""
        compared = values.key(written)
        if compared is None:
            self.refuse(
                f"category {_quote(written)} is a whole number from 2^53 on, which floats confuse with others: "
                "expected a smaller one, or a text. Put a letter before it, in the data too"
            )
        if seen.get(compared) == written:
            self.refuse(f"category {_quote(written)} is there twice: expected each once")
        if compared in seen and seen[compared].strip() != written.strip():  # blanks tell apart, in every container
            self.refuse(
                f"{_quote(seen[compared])} and {_quote(written)} are both categories: expected one of them, as one "
                "record of another type makes a container write one for the other. Either finds both"
            )
        seen[compared] = written

    def _settle_missing(self) -> None:
        only_null = self.role in ("target", "protected")
        if self.missing is None:
            self._set("missing", "null" if only_null else "indicator")
        self._one_of("missing", ("indicator", "null"))
        if only_null and self.missing == "indicator":
            self.refuse(
                f'missing is "indicator": a record without its {self.role} value can only be null. '
                "Leave it out, or declare a category for it"
            )

    def _settle_outside(self) -> None:
        bought = self.bounds == BUY
        if self.outside is None:
            self._set("outside", "clamp" if bought else "null")
        self._one_of("outside", ("null", "clamp", "indicator", "convert"))
        if self.outside == "convert" and self.type != "image":
            self.refuse('outside is "convert": only pictures have a mode to convert')
        if self.outside == "clamp" and self.type not in ("numeric", "date", "datetime"):
            self.refuse('outside is "clamp": only numeric columns, dates and times can be clamped')
        if self.outside == "indicator" and (self.type != "categorical" or self.categories is None):
            self.refuse('outside is "indicator": only categorical columns have unknown categories')
        if self.outside == "indicator" and self.role in ("target", "protected"):
            self.refuse(f'outside is "indicator": a record whose {self.role} value is unknown can only be null')
        if self.outside == "null" and bought:
            self.refuse('outside is "null", but bought bounds are no domain: values beyond them are clamped')

    def _settle_feature(self) -> None:
        default = self.role == "feature"
        if self.feature is None:
            self._set("feature", default)
        if not isinstance(self.feature, bool):
            self.refuse(f"feature is {_quote(self.feature)}: expected true or false")
        if self.feature != default and self.role != "protected":
            said = "true" if self.feature else "false"
            self.refuse(f"feature is {said}, but its role is {self.role!r}: only a protected column may choose")

    def _one_of(self, key: str, choices: tuple[str, ...], remedy: str = "") -> None:
        value = getattr(self, key)
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(map(repr, choices))
            self.refuse(f"{key} is {_quote(value)}: expected one of {listed}" + (f". {remedy}" if remedy else ""))

    def _set(self, key: str, value: object) -> None:
        object.__setattr__(self, key, value)

    def refuse(self, problem: str) -> NoReturn:
        """Raise, with the column's name."""
        raise InvalidInput(f"column {_quote(self.name)}: {problem}.")


def _with_levels(name: str, declared: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """What is declared, the values of a file of ``levels`` in place of its name: an unknown one gets a column then."""
    levels = declared.get("levels")
    if not isinstance(levels, str) or levels == BUY or levels.startswith("hash:") or "categories" in declared:
        return declared
    try:
        lines = (folder / levels).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise InvalidInput(
            f'column {name!r}: levels are {levels!r}: expected "hash:K", as "hash:256", or a readable file of public '
            f"values, one a line ({reason})."
        ) from None
    rest = {key: value for key, value in declared.items() if key != "levels"}
    own = {} if declared.get("role", "feature") != "feature" else {"outside": "indicator"}
    return {**own, **rest, "categories": list(dict.fromkeys(line for line in lines if line.strip()))}


def _with_encoder(declared: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """What is declared, the folder of an encoder found from that of the schema."""
    encoder = declared.get("encoder")
    if not isinstance(encoder, str) or encoder in NAMES:
        return declared
    return {**declared, "encoder": str((folder / encoder).absolute())}


def _with_backbone(declared: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """What is declared, the folder of a backbone, a text with a slash in it, found from that of the schema."""
    backbone = declared.get("backbone")
    if not isinstance(backbone, str) or "\0" in backbone or "/" not in backbone:
        return declared
    return {**declared, "backbone": str((folder / backbone).absolute())}


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _storable(written: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in written)


def _quote(value: object) -> str:
    said = repr(list(value) if isinstance(value, tuple) else value)
    return said if len(said) <= 80 else said[:77] + "..."
