"""One fit as one HTML file that needs nothing else: a pure function of its record.

    page.write(record, "report.html")

Guarantee:
    Equal records give equal pages, and those of one folder the same bytes. The page has no script, no link to elsewhere
    and no picture from elsewhere, and forbids them to itself; whatever anybody typed is escaped, and characters that
    could hide others are marked.

Names in a record that have a place of their own: metrics called "confusion" and of "TRUE predicted PREDICTED"; curves
called "UP against ACROSS: series"; ``privacy["head"]`` (of the ledger) and ``privacy["versions"]``; ``data["size"]``.
Everything else in ``privacy``, ``data`` and ``plan`` becomes a line of a table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpilot.errors import InvalidInput
from dpilot.metrics.interval import LEVEL
from dpilot.records import FIT, RUN, FitRecord, Influence, MetricRecord
from dpilot.report import entries, words
from dpilot.report.about import About
from dpilot.report.answers import (
    Answer,
    answers,
    has_reserve,
    is_apart,
    is_held_out,
    known_fields,
    left_text,
    unit_text,
    who,
)
from dpilot.report.canaries import canary_bounds
from dpilot.report.comparison import RunComparison, rows
from dpilot.report.condition import condition, is_health
from dpilot.report.confusion import confusion
from dpilot.report.curves import calibration, charts, roc, tradeoff
from dpilot.report.facts import facts
from dpilot.report.figures import families, gauge, headline
from dpilot.report.folder import RunFolder
from dpilot.report.groups import groups
from dpilot.report.kinds import TO_COMPARE, key, kind
from dpilot.report.promise import PRIORS, Promise, belief, promise
from dpilot.report.terms import find_terms
from dpilot.report.verdict import UNTOLD, WIDEST, verdict

TITLE: Final = "Privacy report"
_HELD_OUT: Final = "These figures were measured on records that training did not use."
_GIVEN: Final = (
    "These figures were measured on records that were given for it. Whether training had used them the record does not "
    "say; if it had, the figures are too good."
)
_APART: Final = (
    "These figures were measured on another part of the records than training used, by the names that whoever ran it "
    "gave the parts."
)
_PUBLIC: Final = "These figures are exact, of data declared public."
_BY_UNIT: Final = "A record is here one {}, by one row of theirs that was drawn in secret: each weighs the same."
_EXACT: Final = ", except to those marked exact, which are of data declared public"
_COLUMNS: Final = 30  # of what drives the prediction
PAGE: Final = "report.html"
_UNFINISHED: Final = {
    "arguments.json": "a fit that is not finished: expected a finished one. Go on with it: dpilot fit --resume {run}.",
    "run.json": "a training run that is not finished: expected a finished one. Go on with it: Trainer.resume.",
}


def render(
    record: FitRecord,
    title: str = TITLE,
    *,
    about: Any = None,
    baseline: float | None = None,
    folder: str | Path | None = None,
) -> str:
    """The page, as text; ``about`` and ``baseline`` as ``About.of`` takes them.

    ``folder``: the run's own, of which the page says whether it holds a statement, and who signed it.

    Example:
        >>> total = {"epsilon": 1.0, "delta": 1e-5}
        >>> page = render(FitRecord(total, {}, {}, (), (), (), (), ("float noise, not hardened",), ()))
        >>> "at most 73.2 %" in page, "<script" in page
        (True, False)
    """
    page = _Page(record, About.of(about, baseline), RunFolder.of(folder))
    return (
        _environment()
        .get_template("report.html")
        .render(title=title or TITLE, sections=_sections(page), **_frame(page))
    )


def write(record: FitRecord, path: str | Path, title: str = TITLE, **options: Any) -> Path:
    """Write the page to ``path`` and return it; ``options``: those of ``render``, its folder being that of ``path``."""
    return write_page(render(record, title, folder=Path(path).parent, **options), path)


def render_comparison(comparison: RunComparison, title: str = "Runs compared") -> str:
    """The page of several runs, as text."""
    columns, made = rows(comparison)
    shown = {"comparison": comparison, "columns": columns, "rows": made, "promises": comparison.promises}
    return _environment().get_template("compare.html").render(title=title, **shown)


def write_page(text: str, path: str | Path) -> Path:
    """Write a text to ``path`` and return it."""
    target = Path(path)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"path is {str(path)!r}: expected a file that can be written ({problem}).") from None
    return target


def read(folder: str | Path) -> FitRecord:
    """The record of the run in ``folder``: its fit.json, or the record.json of a Trainer's run and what lies beside it.

    Edge cases:
        no folder, no file, not JSON, another format, a field of another form   InvalidInput, which names the file
        a run or a fit that was interrupted                                     InvalidInput, which says what it is
    """
    where = Path(folder)
    path = where / (RUN if (where / RUN).is_file() and not (where / FIT).exists() else FIT)
    for name, advice in _UNFINISHED.items():
        if not path.exists() and (where / name).is_file():
            raise InvalidInput(f"run is {str(folder)!r}, which holds {advice.format(run=folder)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InvalidInput(
            f"run is {str(folder)!r}: expected a run folder with a {FIT} or a {RUN} in it ({problem})."
        ) from None
    try:
        record = FitRecord.from_json(text) if path.name == FIT else _read_run(where)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error) as problem:
        raise InvalidInput(f"{path} is not a record of a run ({problem}). Run again, or restore the file.") from None
    wrong = faults(record)
    if wrong:
        raise InvalidInput(f"{path} is not a record of a run: {wrong[0]}. Run again, or restore the file.")
    return record


def _read_run(where: Path) -> FitRecord:
    from dpilot.train.run import read_fit  # loads torch

    return read_fit(where)


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
        "metrics": all(map(_is_metric, (*record.metrics, *record.trials))),
        "influences": all(map(_is_influence, record.influences)),
        "curves": all(
            words.is_finite(x) and words.is_finite(y) for points in record.curves.values() for x, y in points
        ),
        "health": is_health(record.health),
    }
    return [f"{name} has another form than fits write" for name, holds in forms.items() if not holds]


@dataclass(frozen=True, slots=True)
class _Page:
    """What a section is made from: the record, and what its writer added."""

    record: FitRecord
    about: About
    folder: RunFolder | None = None

    @property
    def promise(self) -> Promise:
        return promise(self.record)

    @property
    def answers(self) -> tuple[Answer, ...]:
        return answers(self.record, self.promise, self.about, self.folder)


View = Mapping[str, Any] | None


def _about(page: _Page) -> View:
    return {"lines": page.about.lines(known_fields(page.record))}


def _quality(page: _Page) -> View:
    metrics = page.record.metrics
    return {
        "untold": UNTOLD,
        "families": families([each for each in metrics if key(each.name) not in TO_COMPARE]),
        "confusion": confusion(metrics),
        "level": words.percent(LEVEL),
        "measured": _measurements(page.record, page.about),
        "noisy": not metrics or not all(each.exact for each in metrics),
        "pictures": [each for each in (roc(metrics), calibration(metrics, WIDEST)) if each is not None],
    }


def _given(about: About) -> str:
    source = about.texts.get("measured_on", "").rstrip(".")
    return (
        f"These figures were measured on this, as whoever wrote this page says: {source}. The record itself does not "
        "know; if training had used the same records, the figures are too good."
        if source
        else _GIVEN
    )


def _measurements(record: FitRecord, about: About) -> str:
    if record.metrics and all(each.exact for each in record.metrics):
        return _PUBLIC
    noisy = _APART if is_apart(record) else _HELD_OUT if is_held_out(record) else _given(about)
    told = f"{noisy} Noise was added to them too{_EXACT if any(each.exact for each in record.metrics) else ''}."
    return told if who(record) == "record" else f"{told} {_BY_UNIT.format(who(record))}"


def _groups(page: _Page) -> View:
    found = groups(page.record.metrics, page.about.texts.get("favourable", ""))
    if found is None:
        return None
    rates = not any(key(each.name) == "group_mean_residual" for each in page.record.metrics)
    pareto = tradeoff(page.record.metrics)
    return {"groups": found, "rates": rates, "level": words.percent(LEVEL), "tradeoff": pareto}


def _influences(page: _Page) -> View:
    found = page.record.influences
    if not found:
        return None
    most, numeric = found[0].effect or 1.0, not page.record.data.get("classes")
    say = words.number if numeric or most > 1 else words.points
    shown = [
        {"column": each.column, "effect": say(each.effect), "percent": 100 * each.effect / most,
         "least": each.least, "most": each.most}
        for each in found[:_COLUMNS]
    ]  # fmt: skip
    return {"influences": shown, "more": max(0, len(found) - _COLUMNS)}


def _promise(page: _Page) -> View:
    said, epsilon = page.promise, page.record.privacy["epsilon"]
    bars = [[100 * each for each in belief(before, float(epsilon))] for before in PRIORS]
    return {"promise": said, "who": who(page.record), "beliefs": list(zip(said.beliefs, bars, strict=True))}


def _health(page: _Page) -> View:
    found = condition(page.record.health)
    return None if found is None else {"condition": found}


def _ledger(page: _Page) -> View:
    record = page.record
    return {
        "promise": page.promise,
        "unit": None if who(record) == "record" else unit_text(record),
        "spending": entries.spent_on(record),
        "spending_note": entries.spending_note(record),
        "total_note": entries.total_note(record),
        "ledger": tuple(entries.row(entry) for entry in record.ledger),
        "apart": entries.is_paid_apart(record),
    }


def _tuning(page: _Page) -> View:
    pictures = charts(page.record.curves, steps=False)
    if not page.record.trials and not pictures:
        return None
    scaled = any(each.of.startswith("r ") for each in page.record.trials)
    return {"trials": families(page.record.trials), "pictures": pictures, "scaled": scaled}


def _course(page: _Page) -> View:
    from dpilot.report.course import course  # loads torch, as rules do

    found = course(page.record)
    return None if found is None else {"course": found}


def _canaries(page: _Page) -> View:
    found = canary_bounds(page.record)
    return None if found is None else {"audit": found}


def _decisions(page: _Page) -> View:
    return {"decisions": [words.powers(each) for each in page.record.decisions]}


def _details(page: _Page) -> View:
    record = page.record
    apart = ("epsilon", "delta", "unit", "head", "ledger_head", "versions", "ledger", "tuning")
    return {
        "plan": facts(record.plan),
        "noise_note": entries.noise_note(record),
        "accounting": facts(record.privacy, without=apart),
        "data": facts(record.data, without=("versions",)),
        "to_compare": families([each for each in record.metrics if key(each.name) in TO_COMPARE]),
    }


def _verify(page: _Page) -> View:
    privacy = page.record.privacy
    return {
        "promise": page.promise,
        "head": str(privacy.get("head") or privacy.get("ledger_head") or ""),
        "versions": _versions(privacy.get("versions") or page.record.data.get("versions")),
        "stamps": tuple(dict.fromkeys(page.record.stamps)),
    }


def _versions(found: object) -> list[tuple[str, str]]:
    return [(str(name), words.number(each)) for name, each in found.items()] if isinstance(found, Mapping) else []


SECTIONS: Final[dict[str, tuple[str, Callable[[_Page], View]]]] = {
    "about": ("Who, what for, from where", _about),
    "quality": ("How well it works", _quality),
    "groups": ("Whether it is worse for a group", _groups),
    "influences": ("What drives the prediction", _influences),
    "promise": ("What is promised", _promise),
    "health": ("How healthy the data are", _health),
    "ledger": ("What was spent", _ledger),
    "tuning": ("What was tried", _tuning),
    "course": ("How training went", _course),
    "canaries": ("What canaries found", _canaries),
    "decisions": ("What was decided, and why", _decisions),
    "details": ("Details", _details),
    "verify": ("How to check and cite", _verify),
}
"""Every section by the name of its template: its title, and what it shows of a page; None leaves it out."""


def _sections(page: _Page) -> list[dict[str, Any]]:
    made = []
    for name, (title, view) in SECTIONS.items():
        shown = view(page)
        if shown is not None:
            html = _environment().get_template(f"{name}.html").render(**shown)
            made.append({"id": name, "title": title, "html": Markup(html)})
    said = " ".join([*(each["html"] for each in made), *(line for each in page.answers for line in each.sentences)])
    html = _environment().get_template("words.html").render(terms=find_terms(said))
    return [*made, {"id": "words", "title": "Words", "html": Markup(html)}]


def _frame(page: _Page) -> dict[str, Any]:
    record = page.record
    ledger: Any = record.privacy.get("ledger")
    first = next((metric for metric in record.metrics if metric.of == ""), None)
    shared = isinstance(ledger, dict) and not ledger.get("own")
    amounts: list[Any] = [(ledger.get(name) or {}).get("epsilon") if shared else None for name in ("left", "total")]
    baseline, say = page.about.baseline, words.number if first is None else kind(first.name).say
    found, known = groups(record.metrics, page.about.texts.get("favourable", "")), all(map(words.is_finite, amounts))
    verdict_, _, rest = ("" if found is None else found.short).replace(";", ":").partition(":")
    return {
        "promise": page.promise,
        "who": who(record),
        "belief": 100 * belief(0.5, float(record.privacy["epsilon"])).most,
        "headline": headline(record.metrics),
        "gauge": gauge(record.metrics, baseline),
        "verdict": verdict(record.metrics),
        "about": page.about,
        "unit": unit_text(record),
        "without": "" if baseline is None else say(baseline),
        "left": left_text(*amounts) if known else "",
        "spent": 100 * (1 - amounts[0] / amounts[1]) if known and amounts[1] > 0 else 0.0,
        "total": words.number(amounts[1]),
        "group": {"verdict": verdict_, "rest": rest.strip()},
        "lead": _lead(record, page.about),
        "reserve": has_reserve(record),
        "own": isinstance(ledger, dict) and bool(ledger.get("own")),
        "answers": page.answers,
    }


def _lead(record: FitRecord, about: About) -> str:
    """What the model is for, in a sentence: as its writer says, or as far as the record tells."""
    target, size = record.data.get("target"), record.data.get("size")
    named = record.data.get("classes")
    classes = [str(each) for each in named] if isinstance(named, list | tuple) else []
    which = f" ({' or '.join(classes)})" if 1 < len(classes) < 5 else ""
    told = [each.of for each in record.metrics if kind(each.name).title == "Recall by class"]
    told = [] if all(each.isdigit() for each in told) or len(told) > 4 else told
    what = f"A model that predicts {target}{which}" if target else "A model"
    if not target and told:
        what = f"A model that tells {' and '.join(told)} apart"
    data = f" from {words.number(size)} {who(record)}s" if words.is_finite(size) else ""
    purpose = f" Its purpose: {about.texts['purpose'].rstrip('.')}." if about.texts.get("purpose") else ""
    return f"{what}, trained under differential privacy{data}.{purpose}"


@cache
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


def _is_influence(influence: Influence) -> bool:
    return _texts((influence.column, influence.least, influence.most)) and words.is_finite(influence.effect)
