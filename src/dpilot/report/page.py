"""One fit as one HTML file that needs nothing else: a pure function of its record.

    page.write(record, "report.html")

Guarantee:
    Equal records give equal pages. The page has no script, no link to elsewhere and no picture from elsewhere, and
    forbids them to itself; whatever anybody typed is escaped, and characters that could hide others are marked.

Names in a record that have a place of their own: metrics called "confusion" and of "TRUE predicted PREDICTED"; curves
called "UP against ACROSS: series"; ``privacy["head"]`` (of the ledger) and ``privacy["versions"]``; ``data["size"]``.
Everything else in ``privacy``, ``data`` and ``plan`` becomes a line of a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpilot.errors import InvalidInput
from dpilot.metrics.interval import LEVEL
from dpilot.records import FitRecord, MetricRecord
from dpilot.report import entries, words
from dpilot.report.condition import condition, is_health
from dpilot.report.confusion import confusion
from dpilot.report.curves import charts, trajectory
from dpilot.report.facts import facts
from dpilot.report.figures import families, headline
from dpilot.report.promise import promise
from dpilot.report.verdict import UNTOLD, verdict

TITLE: Final = "Privacy report"
FIT: Final = "fit.json"
PAGE: Final = "report.html"
# what else writes run folders, by the file it leaves there
_OTHERS: Final = {
    "arguments.json": "a fit that is not finished: expected a finished one. Go on with it: dpilot fit --resume {run}.",
    "record.json": "a training run of a Trainer, which has no report: expected the run folder of a fit, with a "
    "fit.json in it. dpilot.load reads the run, and its record.json says what it cost.",
    "run.json": "a training run of a Trainer that is not finished: expected the run folder of a fit, with a fit.json "
    "in it.",
}


def render(record: FitRecord, title: str = TITLE) -> str:
    """The page, as text.

    Example:
        >>> total = {"epsilon": 1.0, "delta": 1e-5}
        >>> page = render(FitRecord(total, {}, {}, (), (), (), (), ("float noise, not hardened",), ()))
        >>> "at most 73.2 %" in page, "<script" in page
        (True, False)
    """
    return _environment().get_template("report.html").render(title=title or TITLE, **_view(record))


def write(record: FitRecord, path: str | Path, title: str = TITLE) -> Path:
    """Write the page to ``path`` and return it."""
    target = Path(path)
    text = render(record, title)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"path is {str(path)!r}: expected a file that can be written ({problem}).") from None
    return target


def read(folder: str | Path) -> FitRecord:
    """The record in ``folder``/fit.json.

    Edge cases:
        no folder, no file, not JSON, another format, a field of another form   InvalidInput, which names the file
        a training run of a Trainer, a fit that was interrupted                 InvalidInput, which says what it is
    """
    path = Path(folder) / FIT
    for name, advice in _OTHERS.items():
        if not path.exists() and (path.parent / name).is_file():
            raise InvalidInput(f"run is {str(folder)!r}, which holds {advice.format(run=folder)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"run is {str(folder)!r}: expected a run folder with a {FIT} in it ({problem}).") from None
    try:
        record = FitRecord.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise InvalidInput(f"{path} is not a record of a fit ({problem}). Fit again, or restore the file.") from None
    wrong = faults(record)
    if wrong:
        raise InvalidInput(f"{path} is not a record of a fit: {wrong[0]}. Fit again, or restore the file.")
    return record


def faults(record: FitRecord) -> list[str]:
    """Fields that do not have the form a page can be drawn from."""
    forms = {
        "privacy": isinstance(record.privacy, dict),
        "data": isinstance(record.data, dict),
        "plan": isinstance(record.plan, dict),
        "decisions": _texts(record.decisions),
        "stamps": _texts(record.stamps),
        "unprotected": _texts(record.unprotected),
        "thresholds": all(map(words.is_finite, record.thresholds)),
        "ledger": all(isinstance(entry, dict) for entry in record.ledger),
        "metrics": all(map(_is_metric, record.metrics)),
        "curves": all(
            words.is_finite(x) and words.is_finite(y) for points in record.curves.values() for x, y in points
        ),
        "health": is_health(record.health),
    }
    return [f"{name} has another form than fits write" for name, holds in forms.items() if not holds]


def _view(record: FitRecord) -> dict[str, Any]:
    privacy, data = record.privacy, record.data
    return {
        "promise": promise(record),
        "unprotected": record.unprotected,
        "decisions": record.decisions,
        "headline": headline(record.metrics),
        "verdict": verdict(record.metrics),
        "untold": UNTOLD,
        "condition": condition(record.health),
        "families": families(record.metrics),
        "confusion": confusion(record.metrics),
        "level": words.percent(LEVEL),
        "trajectory": trajectory(record.thresholds),
        "charts": charts(record.curves),
        "accounting": facts(privacy, without=("epsilon", "delta", "unit", "head", "ledger_head", "versions")),
        "data": facts(data, without=("versions",)),
        "plan": facts(record.plan),
        "ledger": tuple(entries.row(entry) for entry in record.ledger),
        "head": str(privacy.get("head") or privacy.get("ledger_head") or ""),
        "versions": facts({"versions": privacy.get("versions") or data.get("versions") or {}}),
        "stamps": tuple(dict.fromkeys(record.stamps)),
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dpilot.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_final,
    )
    environment.filters["visible"] = words.visible_name
    return environment


def _final(value: Any) -> Any:
    """Every text that goes into the page passes here before it is escaped."""
    return words.printable(value) if type(value) is str else value


def _texts(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_metric(metric: MetricRecord) -> bool:
    ends = (metric.noise, metric.sampling)
    return (
        _texts((metric.name, metric.of))
        and isinstance(metric.exact, bool)
        and all(len(each) == 2 for each in ends)
        and all(map(words.is_finite, (metric.value, *metric.noise, *metric.sampling)))
    )
