"""Eight questions of somebody who must sign for the data, each answered in a few sentences from the record alone."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from dpilot.records import FitRecord
from dpilot.report import words
from dpilot.report.about import About
from dpilot.report.figures import NOT_KNOWN, headline
from dpilot.report.groups import NO_GROUPS, groups
from dpilot.report.kinds import kind
from dpilot.report.promise import Promise, belief
from dpilot.report.verdict import verdict

__all__ = ["QUESTIONS", "Answer", "answers", "baseline_sentence", "ledger_sentences"]

QUESTIONS: Final = (
    "What is protected?",
    "How strongly?",
    "Is the tuning inside?",
    "How good is it, and against what?",
    "Is it worse for a group, and is that real?",
    "What is left of the budget, and where?",
    "What is not protected?",
    "How can it be checked?",
)
_TUNING: Final = {
    "inside": "Yes. Every setting that was tried on the records, and every score it got, is inside the total.",
    "none": "Yes. No setting was tried on the records: all follow from numbers declared beforehand, so there is "
    "nothing else to count.",
    "given": "Not known. The settings were given to this run. If they were chosen by trying others on the same "
    "records, those tries count only if they stand in the same ledger.",
}
_YES: Final = "Yes, there are differences that are real, that is more than chance."
_NO: Final = "Not that one could tell."
_SILENT: Final = "The record does not say. The list of costs names everything that is inside the total."


class Answer(NamedTuple):
    """A question and the sentences that answer it."""

    question: str
    sentences: tuple[str, ...]


def answers(record: FitRecord, promise: Promise, about: About) -> tuple[Answer, ...]:
    """Every question with its answer, in the order of ``QUESTIONS``; each has one for every kind of run."""
    found = groups(record.metrics)
    said = (
        _protected(record),
        _strength(record, promise),
        (_TUNING.get(str(record.privacy.get("tuning")), _SILENT), *_tuning_share(record)),
        _quality(record, about),
        (NO_GROUPS,) if found is None else (_YES if found.real else _NO, *found.sentences, *_compared(record)),
        ledger_sentences(record, about),
        _unprotected(record),
        _checks(record),
    )
    return tuple(Answer(*each) for each in zip(QUESTIONS, said, strict=True))


def _protected(record: FitRecord) -> tuple[str, ...]:
    name, rows = record.privacy.get("unit_name"), record.privacy.get("rows_per_unit")
    seen = (
        "It holds against anybody who sees what was released, whatever else they know, now or later, but for what is "
        "not protected, below."
    )
    if name is None:
        return (
            "Every single record, which is one row of the data: whether it is in the data, and what it says.",
            "A person with several rows is protected for each row, not as a whole: with k rows epsilon counts k times. "
            "Find out whether people have several rows here.",
            seen,
        )
    return (
        f"Every {name} with all their rows, of which at most {words.number(rows)} count: whether they are in the data, "
        "and what their rows say.",
        seen,
    )


def who(record: FitRecord) -> str:
    return str(record.privacy.get("unit_name") or "record")


def unit_text(record: FitRecord) -> str:
    """Whom one promise is about, in a few words."""
    name, rows = record.privacy.get("unit_name"), record.privacy.get("rows_per_unit")
    return "one record (a row)" if name is None else f"one {name} with all rows, of which {words.number(rows)} count"


def _strength(record: FitRecord, promise: Promise) -> tuple[str, ...]:
    epsilon, one = float(record.privacy["epsilon"]), who(record)
    content = words.at_most(belief(0.5, 2 * epsilon).most)
    return (
        f"Somebody who thinks it an even chance that a certain {one} is in the data may become at most {promise.even} "
        f"sure of it (epsilon {promise.epsilon}: the odds move by a factor of at most {promise.factor}).",
        f"Somebody who knows that the {one} is there, and doubts evenly between two things it may say, may become at "
        f"most {content} sure (a factor of at most {promise.squared}).",
        f"For each {one} there is a chance of {promise.delta_in} (delta) that this does not hold.",
        "At this epsilon the promise alone rules out little."
        if promise.weak
        else "Up to epsilon 1 is a common aim where a disclosure would harm; above 5 the promise alone rules out "
        "little.",
    )


def _tuning_share(record: FitRecord) -> tuple[str, ...]:
    share = record.plan.get("tuning_share")
    if record.privacy.get("tuning") != "inside" or not words.is_finite(share) or not share:
        return ()
    return (
        f"About {words.number(round(100 * float(share), 1))} % of what the training may cost went on trying settings; "
        "their scores were read on records kept apart, whose own part of the budget is inside the total too.",
    )


def _quality(record: FitRecord, about: About) -> tuple[str, ...]:
    top, found = headline(record.metrics), verdict(record.metrics)
    if top is None:
        first = ("No figure was released for this run: how good it is cannot be told from this page.",)
    elif top.sampling == NOT_KNOWN:
        first = (f"{top.label}: {top.value}, exact, on data declared public.",)
    else:
        first = (f"{top.label}: {top.value} (in the population {top.sampling}).",)
    return (*first, *(() if found is None else (found.sentence,)), baseline_sentence(record, about))


def baseline_sentence(record: FitRecord, about: About) -> str:
    """How good a model without privacy is, as far as somebody supplied it."""
    if about.baseline is None:
        return (
            "This page cannot say what privacy cost, that is how good the same model would be without it: nobody "
            "supplied such a figure, and it must not be computed from these records, which would reveal them. Whoever "
            "knows one from public or similar data can add it: dpilot report RUN --baseline FIGURE."
        )
    first = next((metric for metric in record.metrics if metric.of == ""), None)
    say = kind(first.name).say if first is not None else words.number
    source = f" ({about.baseline_source})" if about.baseline_source else ""
    return (
        f"Without privacy: {say(about.baseline)}, a figure from data declared public{source}, supplied by the writer "
        "of this page and not computed from the records."
    )


def ledger_sentences(record: FitRecord, about: About) -> tuple[str, ...]:
    """What is left of which ledger, where it is and who keeps it."""
    ledger: Any = record.privacy.get("ledger")
    if not isinstance(ledger, dict) or not _is_balance(ledger):
        return (
            "What the run wrote down names no ledger of the data set, so what is left of it is not known here. "
            "Ask whoever keeps it: dpilot ledger show DATA.",
        )
    total, spent, left = (ledger[name]["epsilon"] for name in ("total", "spent", "left"))
    rest = left_text(left, total)
    amounts = f"of its total of epsilon {words.number(total)}, {words.upward(spent)} is spent and {rest} is left"
    if ledger.get("own"):
        more = float(record.privacy["epsilon"]) - ledger["spent"]["epsilon"]
        apart = f"The figures on this page were paid apart: epsilon {words.upward(more, 3)} more."
        return (
            f"The run was paid in a ledger of its own: {amounts}. It lies in the run's folder, where there is one.",
            *([apart] if more > 1e-6 else []),
            "It counts this run alone. What else is done with the same data adds up only in a ledger that all share.",
        )
    keeper = about.texts.get("ledger_keeper") or "not filled in"
    where = f"at {ledger['where']}" if ledger.get("where") else "not named"
    return (
        f"The ledger of the data set {ledger.get('dataset')!r}, when this run ended: {amounts}.",
        f"The ledger is {where}. Who keeps it: {keeper}. What is left today: dpilot ledger show, with that path.",
        "Where nothing is left, nothing more may be computed from these data under this total.",
    )


def _is_balance(ledger: dict[str, Any]) -> bool:
    parts = [ledger.get(name) for name in ("total", "spent", "left")]
    return all(isinstance(part, dict) and words.is_finite(part.get("epsilon")) for part in parts)


def _down(value: float) -> str:
    return words.number(float(value), 4, "ROUND_FLOOR")


def _compared(record: FitRecord) -> tuple[str, ...]:
    """What was compared, where the columns are named."""
    named = record.data.get("protected")
    if not named:
        return ()
    names = [named] if isinstance(named, str) else list(named)
    were = " and ".join([", ".join(names[:-1]), names[-1]]) + " were" if len(names) > 1 else f"{names[0]} was"
    return (f"Only {were} compared; intervals, and the errors of each group within each class, are further down.",)


def _unprotected(record: FitRecord) -> tuple[str, ...]:
    named = [each.partition(" (size=")[0] for each in record.unprotected]  # without the words of a program
    listed = "; ".join([*named, "what is true of people in general, and of groups"])
    digits = (
        "Noise is not hardened: somebody who sees released numbers to their last digit may learn more than promised.",
    )
    return (
        f"Not protected: {listed}; the data themselves, from those who hold them or run the training.",
        *(digits if any("not hardened" in stamp for stamp in record.stamps) else ()),
        "May be published: the model, this page, the files of the run's folder and the lines of the ledger. To be kept "
        "secret: the data, and the secret file of a run until the run has ended, when it is removed. The promise has "
        "no end, and what is published cannot be called back.",
    )


def left_text(left: float, total: float) -> str:
    """What is left of a total, rounded down; "nothing" where it is a mere rounding."""
    return _down(left) if left > 1e-6 * total else "nothing"


def _checks(record: FitRecord) -> tuple[str, ...]:
    head = str(record.privacy.get("head") or "")
    return (
        "Ask for the run's folder (called RUN here), and let somebody who has dpilot type these commands.",
        "Where the folder holds a statement.json, as those of fits and trained models do, dpilot verify RUN compares "
        "every file with its fingerprint of when the run ended, recomputes epsilon from the list of what was paid for, "
        "and says who signed, if anybody did: it ends with an error if anything differs.",
        "dpilot report RUN writes this page anew from the run's record: it must be the same.",
        *_head(head),
        "All this shows that the page, the files and the ledger agree, not that nothing else was done with the data: "
        "for that you must trust whoever ran it, and for the noise the program, whose source is open.",
    )


def _head(head: str) -> tuple[str, ...]:
    """What the head of a ledger is, and what it is for."""
    rows, _, mark = head.partition(":")
    if not mark:
        return ("dpilot ledger verify FILE, with the ledger's path, shows that no line of the ledger was altered.",)
    return (
        f"The ledger had {rows} lines when this run ended, and their common fingerprint (its head) begins with "
        f"{mark[:8]}: if one of these lines were altered, removed or put in later, the fingerprint "
        "would be another. dpilot ledger verify compares it; command and head stand in full at the end of this page.",
    )
