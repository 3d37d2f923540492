"""The record of a fit, read back from its run folder and checked before anything is drawn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dpilot.errors import InvalidInput
from dpilot.records import FitRecord, MetricRecord
from dpilot.report.words import is_finite

FIT: Final = "fit.json"
PAGE: Final = "report.html"


def read(folder: str | Path) -> FitRecord:
    """The record in ``folder``/fit.json.

    Edge cases:
        no folder, no file, not JSON, another format, a field of another form   InvalidInput, which names the file
    """
    path = Path(folder) / FIT
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
        "thresholds": all(map(is_finite, record.thresholds)),
        "ledger": all(isinstance(entry, dict) for entry in record.ledger),
        "metrics": all(map(_is_metric, record.metrics)),
        "curves": all(is_finite(x) and is_finite(y) for points in record.curves.values() for x, y in points),
    }
    return [f"{name} has another form than fits write" for name, holds in forms.items() if not holds]


def _texts(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_metric(metric: MetricRecord) -> bool:
    ends = (metric.noise, metric.sampling)
    return (
        _texts((metric.name, metric.of))
        and isinstance(metric.exact, bool)
        and all(len(each) == 2 for each in ends)
        and all(map(is_finite, (metric.value, *metric.noise, *metric.sampling)))
    )
