"""A record as what a tracker takes: parameters as text, figures as numbers, and numbers by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Final

from dpilot.errors import InvalidInput
from dpilot.records import FitRecord, MetricRecord, RunRecord, ValidationRecord
from dpilot.train.run import step_numbers

_SERIES: Final = ("steps", "validation", "metrics", "thresholds", "curves")


@dataclass(frozen=True, slots=True)
class Fields:
    """All that a record holds.

    ``parameters``: what was declared, and what is text (stamps, decisions, notes, entries of the ledger). ``figures``:
    epsilon, delta and released figures with their intervals. ``series``: the number of each step and what it released.
    """

    parameters: Mapping[str, str]
    figures: Mapping[str, float]
    series: tuple[tuple[int, Mapping[str, float]], ...] = ()


def record_fields(source: Any) -> Fields:
    """The fields of a record (``run.record``, ``clf.record_``), or of whatever has one: a run, an estimator.

    >>> from dpilot.records import StepRecord
    >>> made = record_fields(RunRecord({"steps": 1}, 1.0, 1e-5, (StepRecord(0, 2.0, 2.0, False),), ("stamp",)))
    >>> made.parameters, made.figures
    ({'plan.steps': '1', 'stamps.0': 'stamp'}, {'epsilon': 1.0, 'delta': 1e-05})
    >>> made.series
    ((0, {'threshold': 2.0, 'bound': 2.0, 'measuring': 0.0}),)
    """
    record = find_record(source)
    if isinstance(record, RunRecord):
        return _run_fields(record)
    if isinstance(record, FitRecord):
        return _fit_fields(record)
    privacy = source.privacy_  # of a linear model, which has no more
    entries = {"entries": [entry.as_dict() for entry in privacy.entries]}
    return Fields(_texts({**asdict(privacy), **entries}), asdict(privacy.spent))


def find_record(source: Any) -> RunRecord | FitRecord | None:
    """The record that ``source`` is or has; None of a linear model, which has an account of its privacy alone."""
    for candidate in (source, getattr(source, "record_", None), getattr(source, "record", None)):
        if isinstance(candidate, RunRecord | FitRecord):
            return candidate
    if not hasattr(source, "privacy_"):
        raise InvalidInput(
            f"a {type(source).__name__} has no record: expected a run, a fitted estimator, or a record of one."
        )
    return None


def _run_fields(record: RunRecord) -> Fields:
    plain = {name: value for name, value in _plain(record).items() if name not in ("epsilon", "delta")}
    steps = [(each.step, step_numbers(each)) for each in record.steps]
    return Fields(
        _texts(plain),
        {"epsilon": record.epsilon, "delta": record.delta},
        (*steps, *map(_validation, record.validation)),
    )


def _fit_fields(record: FitRecord) -> Fields:
    figures: dict[str, float] = {
        name: float(record.privacy[name]) for name in ("epsilon", "delta") if name in record.privacy
    }
    figures |= {f"health.{name}": value for name, value in _numbers(record.health or {}).items()}
    for name, value in _distinct(pair for metric in record.metrics for pair in _metric(metric)):
        figures[name] = value
    curves = {
        f"curves.{name}.{place}.{axis}": value
        for name, points in record.curves.items()
        for place, point in enumerate(points)
        for axis, value in zip("xy", point, strict=True)
    }
    steps = tuple((each.step, step_numbers(each)) for each in record.steps)
    thresholds = tuple((step, {"threshold": each}) for step, each in enumerate(record.thresholds))
    return Fields(_texts(_plain(record)), figures | curves, steps or thresholds)


def _validation(each: ValidationRecord) -> tuple[int, dict[str, float]]:
    found = {"public_validation_loss": each.loss, "public_validation_accuracy": each.accuracy}
    return each.step, {name: value for name, value in found.items() if value is not None}


def _metric(metric: MetricRecord) -> Iterator[tuple[str, float]]:
    name = f"{metric.name}: {metric.of}" if metric.of else metric.name
    yield name, metric.value
    for kind in ("noise", "sampling"):
        for end, value in zip(("low", "high"), getattr(metric, kind), strict=True):
            yield f"{name}: {kind} {end}", value
    yield f"{name}: exact", float(metric.exact)


def _plain(record: RunRecord | FitRecord) -> dict[str, Any]:
    """The rest of a record, which is not numbers by step and not figures."""
    return {name: _tree(getattr(record, name)) for name in record.__dataclass_fields__ if name not in _SERIES}


def _tree(value: Any) -> Any:
    """A field of a record as plain data."""
    if isinstance(value, tuple):
        return [_tree(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _texts(tree: Any) -> dict[str, str]:
    return {name: str(value) for name, value in _leaves(tree, "")}


def _numbers(tree: Any) -> dict[str, float]:
    return {name: float(value) for name, value in _leaves(tree, "") if isinstance(value, int | float)}


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Every value of nested plain data, by its path."""
    if isinstance(tree, Mapping) or (isinstance(tree, list | tuple) and any(_is_nested(each) for each in tree)):
        pairs: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        for name, value in pairs:
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(tree, list | tuple) and all(isinstance(each, str) for each in tree):
        yield from ((f"{prefix}.{place}", value) for place, value in enumerate(tree))
    elif tree is not None:
        yield prefix, tree


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _distinct(pairs: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """The same pairs; a name that comes again gets a number."""
    seen: dict[str, int] = {}
    for name, value in pairs:
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), value


def rename(names: Iterable[str], allowed: str) -> Callable[[str], str]:
    """From names to names of ``allowed`` characters alone, two never to the same.

    >>> rename(["a <= 5", "a >= 5"], "A-Za-z0-9_")("a >= 5")
    'a____5_2'
    """
    taken: dict[str, str] = {}
    for name in dict.fromkeys(names):
        short = first = re.sub(f"[^{allowed}]", "_", name)
        count = 1
        while short in taken.values():
            count += 1
            short = f"{first}_{count}"
        taken[name] = short
    return taken.__getitem__
