"""Declared values as lines of a table: a name, a value, and what the name means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dpilot.report.words import label, number

_MEANINGS: Final = {
    "size": "how many records were declared",
    "sample_rate": "the chance of each record to be looked at in a step",
    "batch_size": "how many records a step looks at, on average",
    "expected_batch_size": "how many records a step looks at, on average",
    "steps": "how often the model was improved a little",
    "epochs": "how often each record was looked at, on average",
    "noise_multiplier": "the noise in a step, in units of the most that one record can add",
    "noise_of_all_steps": "the noise of one release that costs as much as all steps together",
    "tuning_share": "the share of the training part's budget that trying and choosing took, inside the total",
    "clipping": "the rule that bounds what one record can add to a step",
    "threshold": "the most that one record can add to a step, at the start",
    "floor": "the least that the threshold may become",
    "lr": "how far the model moves in a step",
    "learning_rate": "how far the model moves in a step",
    "optimizer": "the rule that turns a noisy step into a move of the model",
    "momentum": "how much of the last move is kept in the next",
    "model": "the kind of model",
    "held_out": "the share of records kept apart to measure the model, drawn in secret",
    "classes": "what is predicted",
    "target": "the column that is predicted",
    "protected": "the columns whose groups are compared; all columns are protected alike",
    "name": "what the data set is called",
    "accountant": "how the costs of all steps were added up",
    "accounting": "how the costs of all steps were added up",
    "parameters": "how many numbers of the model were trained",
    "trials": "how many settings were tried on the records",
    "objective": "what the tuning aimed at",
    "features": "the columns that the model may use",
    "bought_bounds": "columns whose range was measured with noise, as a part of the total",
    "schedule": "how the moves become smaller towards the end",
    "budget": "the most that this training was allowed; measuring the model may be paid apart",
    "cost": "the most that the plan may cost; what was booked is in the list of costs",
}
_HIDDEN: Final = {"format"}
_OUTER: Final = {"target", "name"}
"""Fields that mean something else inside a rule than of a table."""
_SHARED: Final = {"name", "epsilon", "delta"}
_LABELS: Final = {"Protected": "Groups compared"}
_OTHERS: Final = "Other settings"


class Fact(NamedTuple):
    """One line."""

    name: str
    value: str
    meaning: str


class Facts(NamedTuple):
    """The lines that are shown, and how many more the record holds."""

    lines: tuple[Fact, ...]
    more: int


def facts(data: Mapping[str, Any], *, without: Sequence[str] = (), most: int = 120) -> Facts:
    """Nested plain data as lines; a nested name is written after its parent's.

    >>> facts({"steps": 66, "clipping": {"name": "slack", "floor": 0.1}}).lines[1]
    Fact(name='Clipping, name', value='slack', meaning='the rule that bounds what one record can add to a step')
    """
    hidden = _HIDDEN | set(without)
    lines = [fact for key, value in data.items() if key not in hidden for fact in _lines((str(key),), value)]
    shown = lines[:most]
    kept = [fact for fact in shown if fact.meaning]
    others = "; ".join(f"{fact.name}: {fact.value}" for fact in shown if not fact.meaning)
    rest = [Fact(_OTHERS, others, "as the program was given or set them")] if others else []
    return Facts((*kept, *rest), max(0, len(lines) - most))


def _lines(path: tuple[str, ...], value: object) -> Iterator[Fact]:
    if isinstance(value, Mapping) and value and len(path) < 6:
        for key, inner in value.items():
            if key not in _HIDDEN:
                yield from _lines((*path, str(key)), inner)
        return
    parts = ("learning rate" if each == "lr" else each.replace("_", " ") for each in path[1:])
    name = ", ".join([label(path[0]), *parts])
    inner = path[-1] if len(path) == 1 or path[-1] not in _OUTER else ""
    of_all = len(path) == 1 or path[-1] in _SHARED  # what the whole is, said once
    meaning = _MEANINGS.get(inner, "") or (_MEANINGS.get(path[0], "") if of_all else "")
    yield Fact(_LABELS.get(name, name), _text(value), meaning)


def _text(value: object, most: int = 40) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {number(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(_text(each) for each in value[:most])
        rest = f" and {len(value) - most:,} more" if len(value) > most else ""
        return shown + rest if value else "none"
    return number(value)
