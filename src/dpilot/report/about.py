"""What no record can know: who is responsible, what for, where the data come from. Read from a small toml file.

    [about]                                  # the heading may be left out
    controller = "St. Mary Hospital"
    contact = "dpo@example.org"
    purpose = "find patients at risk of coming back"

Fields that are not filled in stay visibly empty on the page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.report.words import is_finite

__all__ = ["FIELDS", "OPEN", "About"]

FIELDS: Final = {
    "controller": "Controller",
    "contact": "Contact",
    "purpose": "Purpose",
    "data_origin": "Where the data come from",
    "intended_use": "Intended use",
    "forbidden_use": "Forbidden use",
    "ledger_keeper": "Who keeps the ledger",
    "rows_per_person": "How many rows a person may have",
    "settings_from": "Where the settings come from",
    "measured_on": "What the figures were measured on",
    "means": "What a prediction leads to",
    "favourable": "Which prediction is good to get",
}
OPEN: Final = ("rows_per_person", "settings_from", "measured_on", "means", "favourable")
"""Asked for only where the record does not know it."""


@dataclass(frozen=True, slots=True)
class About:
    """Texts by field, "" where they are not filled in; and the figure of a model without privacy, with its source.

    ``baseline`` must come from data that may be seen: computed from the protected records it would reveal them.
    """

    texts: Mapping[str, str]
    baseline: float | None = None
    baseline_source: str = ""

    @classmethod
    def of(cls, about: About | Mapping[str, Any] | str | Path | None = None, baseline: float | None = None) -> About:
        """From a mapping, or from the toml file at a path; ``baseline`` stands in for the file's own.

        Edge cases:
            a key that is none of the fields, a value that is no text    InvalidInput
        """
        if isinstance(about, About):
            return about if baseline is None else cls(about.texts, _figure(baseline), about.baseline_source)
        found = dict(_read(Path(about)) if isinstance(about, str | Path) else about or {})
        given = found.pop("baseline", None) if baseline is None else baseline
        found.pop("baseline", None)
        source = found.pop("baseline_source", "")
        for name, text in {**found, "baseline_source": source}.items():
            _validate.one_of((*FIELDS, "baseline", "baseline_source"), "See docs/report.md.", field=name)
            if not isinstance(text, str):
                _validate.refuse(name, text, "a text")
        texts = {name: found.get(name, "").strip() for name in FIELDS}
        return cls(texts, None if given is None else _figure(given), source)

    def lines(self, known: Container[str] = ()) -> tuple[tuple[str, str], ...]:
        """Label and text of every field but those ``known`` without it."""
        return tuple((label, self.texts.get(name, "")) for name, label in FIELDS.items() if name not in known)


def _figure(baseline: Any) -> float:
    if not is_finite(baseline):
        _validate.refuse("baseline", baseline, "a number", "The figure of a model without privacy, from public data.")
    return float(baseline)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"about is {str(path)!r}: expected a readable toml file ({problem}).") from None
    inner = data.get("about")
    return inner if isinstance(inner, dict) and len(data) == 1 else data
