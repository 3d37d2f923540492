"""A model card for a hub, and a record for a registry of deployments of differential privacy, from a run's record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dpilot.noise import NOT_HARDENED
from dpilot.records import FitRecord
from dpilot.report import words
from dpilot.report.about import FIELDS, About
from dpilot.report.answers import answers, known_fields, who
from dpilot.report.kinds import kind
from dpilot.report.promise import promise

__all__ = ["model_card", "registry_entry", "to_yaml"]

TO_FILL: Final = "TO BE FILLED IN"


def model_card(record: FitRecord, title: str, about: About) -> str:
    """Markdown with the front matter that Hugging Face reads: what it is, what it promises, how good, for what."""
    statement = promise(record)
    front = {
        "library_name": "dpilot",
        "license": TO_FILL,
        "tags": ["differential-privacy", "dpilot", *([] if statement.private else ["not-private"])],
        **({"pipeline_tag": f"tabular-{_task(record)}"} if record.data.get("target") else {}),
        "model-index": [{"name": title, "results": _results(record)}],
    }
    lines = ["---", to_yaml(front).rstrip(), "---", "", f"# {_inline(title)}", ""]
    if not statement.private:
        lines += [f"**NOT PRIVATE: do not publish.** {_inline('; '.join(statement.alarms))}", ""]
    lines += ["## Privacy", ""]
    if statement.private:
        lines += [
            f"Trained with dpilot under (epsilon {statement.epsilon}, delta {statement.delta}) differential privacy; "
            f"unit: {_inline(statement.unit)}.",
            "",
        ]
    for answer in answers(record, statement, about):
        lines += [f"**{answer.question}** {_inline(' '.join(answer.sentences))}", ""]
    lines += ["## Figures", "", *_figures(record), "", "## Use", ""]
    lines += [f"- **{label}**: {_inline(text) or TO_FILL}" for label, text in about.lines(known_fields(record))]
    return "\n".join([*lines, ""])


def registry_entry(record: FitRecord, title: str, about: About) -> dict[str, Any]:
    """What a registry of deployments asks of one: unit, budget, mechanism, accountant, what came after, whom to ask."""
    privacy, statement = record.privacy, promise(record)
    ledger = privacy.get("ledger") or {}
    shared = {} if ledger.get("own") else ledger  # one of a run's own says nothing of the data's budget
    return {
        "deployment": title,
        "private": statement.private,
        "contact": {name: about.texts.get(name) or TO_FILL for name in FIELDS if name not in known_fields(record)},
        "data": {"size": record.data.get("size"), "target": record.data.get("target")},
        "model": "central",
        "unit_of_privacy": {
            "name": who(record),
            "neighbours": statement.unit,
            "rows_per_unit": privacy.get("rows_per_unit"),
        },
        "privacy_loss": {
            "definition": "approximate differential privacy",
            "epsilon": privacy["epsilon"],
            "delta": privacy["delta"],
            "tuning_included": {"inside": True, "none": True}.get(str(privacy.get("tuning")), False),
            "budget_of_the_data": shared.get("total"),
            "left_of_it": shared.get("left"),
        },
        "mechanism": {
            "name": _mechanism(record),
            "noise": [*dict.fromkeys(record.stamps)],
            "hardened": NOT_HARDENED not in record.stamps,
            "sampling": "Poisson" if _is_sampled(record) else "none, every record in each step",
            "entries": sorted({str(entry.get("purpose", "")).split(" of fit ")[0] for entry in record.ledger}),
        },
        "accountant": {"how": privacy.get("accounting"), "bound": sorted({_bound(entry) for entry in record.ledger})},
        "post_processing": "figures, intervals and this record are computed from what was released",
        "not_protected": list(record.unprotected),
        "software": privacy.get("versions"),
        "ledger_head": privacy.get("head"),
    }


def to_yaml(data: Any, indent: int = 0) -> str:
    """Plain data as YAML: texts in double quotes, which JSON writes as YAML reads them.

    >>> print(to_yaml({"a": {"b": [1, "x: y"]}, "c": None}), end="")
    a:
      b:
      - 1
      - "x: y"
    c: null
    """
    pad = " " * indent
    if isinstance(data, Mapping):
        return "".join(f"{pad}{_key(name)}:{_value(value, indent)}" for name, value in data.items())
    return "".join(f"{pad}- {_item(value, indent)}" for value in data)


def _key(name: object) -> str:
    text = str(name)
    return text if text.replace("_", "").replace("-", "").isalnum() and text.isascii() else json.dumps(text)


def _value(value: Any, indent: int) -> str:
    if isinstance(value, Mapping) and value:
        return "\n" + to_yaml(value, indent + 2)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return "\n" + to_yaml(value, indent)
    return f" {_scalar(value)}\n"


def _item(value: Any, indent: int) -> str:
    if isinstance(value, Mapping) and value:
        return to_yaml(value, indent + 2).lstrip(" ")
    return f"{_scalar(value)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    text = json.dumps(words.printable(value) if isinstance(value, str) else value, ensure_ascii=False, allow_nan=False)
    # YAML 1.1 reads 2e-06 as a text: a float has a point
    return text.replace("e", ".0e", 1) if isinstance(value, float) and "e" in text and "." not in text else text


def _task(record: FitRecord) -> str:
    return "classification" if record.data.get("classes") else "regression"


def _results(record: FitRecord) -> list[dict[str, Any]]:
    found = [each for each in record.metrics if each.of == ""]
    if not found:
        return []
    metrics = [{"type": each.name, "value": each.value, "name": f"{kind(each.name).title}, noisy"} for each in found]
    task = f"tabular-{_task(record)}" if record.data.get("target") else "other"
    dataset = {"name": str(record.data.get("name") or "protected records"), "type": "private"}
    return [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}]


def _figures(record: FitRecord) -> list[str]:
    found = [each for each in record.metrics if each.of == ""]
    if not found:
        return ["None were released."]
    head = ["| figure | value | 95 % interval, population |", "|---|---|---|"]
    return head + [
        f"| {_inline(kind(each.name).title)} | {kind(each.name).say(each.value)} | "
        f"{words.between(*each.sampling, kind(each.name).say)} |"
        for each in found
    ]


def _inline(text: str) -> str:
    """A text that stays one line of markdown, and no markup."""
    plain = " ".join(words.printable(text).split())
    for mark in ("\\", "`", "*", "_", "[", "]", "<", ">", "|", "#"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def _mechanism(record: FitRecord) -> str:
    names = {name for entry in record.ledger for name in _types(entry.get("event"))}
    return ", ".join(sorted(names & {"Gaussian", "PureDP", "ExponentialMechanism", "RepeatAndSelect"})) or "Gaussian"


def _is_sampled(record: FitRecord) -> bool:
    return any("PoissonSampled" in set(_types(entry.get("event"))) for entry in record.ledger)


def _types(event: Any) -> list[str]:
    if not isinstance(event, Mapping):
        return []
    inner = [event.get("event"), *(event.get("events") or ())]
    return [str(event.get("type")), *(name for each in inner for name in _types(each))]


def _bound(entry: Mapping[str, Any]) -> str:
    return str(entry.get("bound_used", ""))
