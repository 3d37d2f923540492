"""Eight questions of somebody who must sign for the data, each answered in a few sentences from the record alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dpilot.records import FitRecord, MetricRecord
from dpilot.report import entries, words
from dpilot.report.about import OPEN, About
from dpilot.report.figures import NOT_KNOWN, headline
from dpilot.report.folder import RunFolder
from dpilot.report.groups import NO_GROUPS, GroupView, groups
from dpilot.report.kinds import key, kind
from dpilot.report.promise import SCALE, Promise, belief, factor
from dpilot.report.verdict import find_untold, verdict

__all__ = [
    "QUESTIONS", "Answer", "answers", "baseline_sentence", "has_reserve", "is_apart", "is_held_out", "known_fields",
    "ledger_sentences",
]  # fmt: skip

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
    "given": "No setting was tried in this run: all were given to it, so no trial is inside the total.",
}
_SILENT: Final = "The record does not say. The list of costs names everything that is inside the total."


class Answer(NamedTuple):
    """A question and the sentences that answer it, the shortest answer first."""

    question: str
    sentences: tuple[str, ...]

    @property
    def short(self) -> str:
        return self.sentences[0]

    @property
    def rest(self) -> tuple[str, ...]:
        return self.sentences[1:]


def answers(record: FitRecord, promise: Promise, about: About, folder: RunFolder | None = None) -> tuple[Answer, ...]:
    """Every question with its answer, in the order of ``QUESTIONS``; each has one for every kind of run.

    ``folder``: that of the run, where the page lies in it.
    """
    found = groups(record.metrics, about.texts.get("favourable", ""))
    said = (
        _protected(record, about),
        _strength(record, promise),
        (_TUNING.get(str(record.privacy.get("tuning")), _SILENT), *_settings(record, about), *_tuning_share(record)),
        _quality(record, about),
        (NO_GROUPS,)
        if found is None
        else (found.short, *_group_comparison(record, about, found), *_same_reserve(record, about)),
        ledger_sentences(record, about, folder),
        tuple(_unprotected(record)),
        _checks(record, about, folder),
    )
    return tuple(Answer(*each) for each in zip(QUESTIONS, said, strict=True))


def _protected(record: FitRecord, about: About) -> tuple[str, ...]:
    name, rows = record.privacy.get("unit_name"), record.privacy.get("rows_per_unit")
    seen = (
        "It holds against anybody who sees what was released, whatever else they know, now or later, but for what is "
        "not protected, below."
    )
    if name is None:
        first = ("Every single record, which is one row of the data: whether it is in the data, and what it says.",)
        epsilon, delta = (float(record.privacy[each]) for each in ("epsilon", "delta"))
        one = words.upward(epsilon)
        three = words.upward(3 * words.ceiling(epsilon))
        told = _closed(about.texts.get("rows_per_person"))
        rest: tuple[str, ...] = (
            f"Rows of one person, as whoever wrote this page says: {told}."
            if told
            else "How many rows a person may have was not filled in: ask whoever ran it.",
            f"Somebody with 3 rows would be protected less: for all of them read epsilon {three} instead of {one}, and "
            f"a chance of failure (delta) of {words.one_in(rows_delta(epsilon, delta, 3))} instead of "
            f"{words.one_in(delta)}.",
        )
    else:
        first = (
            f"Every {name} with all their rows, of which at most {words.number(rows)} count: whether they are in the "
            "data, and what their rows say.",
        )
        alone = f"A row without a {name} is protected by itself: whoever is behind several of them, one row at a time."
        rest = (alone,) * (record.privacy.get("missing_unit") == "row")
    origin = about.texts.get("data_origin")
    data = (
        f"The rows, as whoever wrote this page says: {_closed(origin)}."
        if origin
        else "What the rows are about was not filled in: ask whoever ran it.",
    )
    figures = any(entry.get("purpose") == entries.EVALUATION for entry in record.ledger)
    measured = ("The records that the figures were measured on are protected in the same way.",) * figures
    return (*first, *measured, *data, *rest, seen)


def rows_delta(epsilon: float, delta: float, rows: int) -> float:
    """The delta of somebody with several rows, at that many times the epsilon: one row after the other is taken out.

    >>> rows_delta(1.0, 1e-6, 1), round(rows_delta(1.0, 1e-6, 3) / 1e-6, 2)
    (1e-06, 11.11)
    """
    return min(1.0, delta * sum(factor(place * epsilon) for place in range(rows)))


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
        f"Somebody who thinks it an even chance (50 %) that a certain {one} is in the data may become at most "
        f"{promise.even} sure of it.",
        f"That is epsilon {promise.epsilon}: the odds move by a factor of at most {promise.factor}. {promise.grade} "
        f"{SCALE}",
        f"Somebody who knows that the {one} is there, and doubts evenly between two things it may say, may become at "
        f"most {content} sure (a factor of at most {promise.squared}).",
        f"For each {one} there is a chance of {promise.delta_in} (delta) that this does not hold.",
        *([f"{promise.large_delta}."] if promise.large_delta else []),
    )


def _tuning_share(record: FitRecord) -> tuple[str, ...]:
    share = record.plan.get("tuning_share")
    if record.privacy.get("tuning") != "inside" or not words.is_finite(share) or not share:
        return ()
    return (
        f"Trying and choosing took about {words.number(100 * float(share), 2)} % of what training could spend. (The "
        "epsilons of single trials do not add up to that: together they are cheaper.)",
    )


def _settings(record: FitRecord, about: About) -> Iterator[str]:
    """Where settings that were given come from, as far as somebody says so."""
    if record.privacy.get("tuning") != "given":
        return
    source = _closed(about.texts.get("settings_from"))
    yield (
        f"They come from this, as whoever wrote this page says: {source}. If others were tried on the same records "
        "before, that comes on top"
        if source
        else "Whether others were tried on the same records before is not known; if so, that comes on top"
    ) + ", and counts only where it stands in the same ledger."


def _closed(text: str | None) -> str:
    """What was filled in, to stand in front of a full stop."""
    return (text or "").rstrip(".")


def _quality(record: FitRecord, about: About) -> tuple[str, ...]:
    top, found = headline(record.metrics), verdict(record.metrics)
    if top is None:
        first = "No figure was released for this run: how good it is cannot be told from this page."
    elif top.sampling == NOT_KNOWN:
        first = f"{top.label}: {top.value}, exact, on data declared public."
    else:
        first = f"{top.label}: {top.value} (in the population {top.sampling})."
    verdicts = () if found is None else (found.sentence,)
    rest = (*verdicts, *_by_class(record), baseline_sentence(record, about))
    return (first, *_reserve(record, about), *_held_out(record), *rest)


def _held_out(record: FitRecord) -> Iterator[str]:
    """How many records the figures are of, where a share of them was kept apart."""
    share: Any = record.data.get("held_out")
    size: Any = record.data.get("size")
    if record.metrics and words.is_finite(share) and words.is_finite(size):
        also = ". The trials were scored on them too, which may flatter the figures a little" if record.trials else ""
        yield (
            f"Measured on about {words.number(round(share * size))} of the {words.number(size)} records, drawn in "
            f"secret, which training did not use{also}."
        )


def _reserve(record: FitRecord, about: About) -> tuple[str, ...]:
    """What the figures were measured on, where they are noisy ones and the record does not know it."""
    if not has_reserve(record):
        return ()
    source = _closed(about.texts.get("measured_on"))
    if source:
        return (
            f"The figures were measured on this, as whoever wrote this page says: {source}. If training used the same "
            "records, they are too good.",
        )
    return (
        "That holds if the figures were measured on records that training did not use, which the record does not say; "
        "if not, they are too good.",
    )


def _same_reserve(record: FitRecord, about: About) -> tuple[str, ...]:
    said = "As above: if training used the records that were measured, these differences may be wrong."
    return (said,) * (has_reserve(record) and not about.texts.get("measured_on"))


def has_reserve(record: FitRecord) -> bool:
    """Whether figures may be of training records: they are noisy ones, and the record does not rule it out."""
    top = headline(record.metrics)
    return top is not None and not top.exact and not is_held_out(record)


def is_held_out(record: FitRecord) -> bool:
    """Whether the record says that its figures are of records that training did not use."""
    return words.is_finite(record.data.get("held_out")) or is_apart(record)


def is_apart(record: FitRecord) -> bool:
    """Whether the ledger names another part of one split for the figures than for all else."""
    figures = [entry for entry in record.ledger if entry.get("purpose") == entries.EVALUATION]
    rest = [entry for entry in record.ledger if entry.get("purpose") != entries.EVALUATION]
    places = [{(entry.get("split"), entry.get("part")) for entry in some} for some in (figures, rest)]
    both = places[0] | places[1]
    named = all(part is not None for _, part in both) and len({split for split, _ in both}) == 1
    return all(places) and named and not places[0] & places[1]


def known_fields(record: FitRecord) -> tuple[str, ...]:
    """The fields of ``About`` that need not be asked for: the record knows them."""
    found = groups(record.metrics)
    sided = found is not None and found.sided
    asked = (
        record.privacy.get("unit_name") is None,
        record.privacy.get("tuning") == "given",
        has_reserve(record),
        sided,
        sided,
    )
    return tuple(name for name, open_ in zip(OPEN, asked, strict=True) if not open_)


def _by_class(record: FitRecord) -> Iterator[str]:
    """How many of each class are found; of more than two, the least and the most."""
    untold = find_untold(record.metrics)
    found = {each.of: each for each in record.metrics if key(each.name) == "recall" and each.of}
    told = {of: each for of, each in found.items() if each not in untold}
    if len(told) < 2:
        return
    if len(told) == len(found) == 2:
        (first, other), (of, second) = told.items()
        yield (
            f"Of those truly “{of}” it finds {words.percent(second.value)}, of those truly “{first}” "
            f"{words.percent(other.value)}."
        )
        return
    least, most = (pick(told.values(), key=_value) for pick in (min, max))
    missing = f"; for {len(found) - len(told)} more that cannot be told" if len(told) < len(found) else ""
    yield (
        f"By class it finds from {words.percent(least.value)} of those truly “{least.of}” to "
        f"{words.percent(most.value)} of those truly “{most.of}”{missing}."
    )


def _value(metric: MetricRecord) -> float:
    return metric.value


def baseline_sentence(record: FitRecord, about: About) -> str:
    """How good a model without privacy is, as far as somebody supplied it."""
    if about.baseline is None:
        return (
            "This page cannot say what privacy cost: a figure without privacy, from public or similar data, was not "
            "supplied (dpilot report RUN --baseline FIGURE), and it must not be computed from these records."
        )
    first = next((metric for metric in record.metrics if metric.of == ""), None)
    say = kind(first.name).say if first is not None else words.number
    source = f" ({about.baseline_source})" if about.baseline_source else ""
    return (
        f"Without privacy: {say(about.baseline)}, a figure from data declared public{source}, supplied by the writer "
        "of this page and not computed from the records: a rough comparison."
    )


def ledger_sentences(record: FitRecord, about: About, folder: RunFolder | None = None) -> tuple[str, ...]:
    """What is left of which ledger, where it is and who keeps it."""
    ledger: Any = record.privacy.get("ledger")
    if not isinstance(ledger, dict) or not _is_balance(ledger):
        return (
            "What the run wrote down names no ledger of the data set, so what is left of it is not known here. "
            f"{_whom(about)} Or run dpilot ledger show DATA.",
        )
    amounts = _amounts(ledger)
    if ledger.get("own"):
        more = float(record.privacy["epsilon"]) - ledger["spent"]["epsilon"]
        apart = (
            f"Whoever ran it paid apart for the figures on this page: epsilon {words.upward(more, 3)} more, "
            f"{words.upward(record.privacy['epsilon'])} in all, with delta {words.upward(record.privacy['delta'], 3)}: "
            "added up as if the same records had been read for both. If they were others, each counts for "
            "its own part alone."
        )
        files = {None: "", True: " It is the file ledger in the run's folder.", False: " Its file was not kept."}
        kept = files[None if folder is None else folder.ledger]
        return (
            "Not known: this run was not entered in a ledger of the data, which counts all that is done with them.",
            _whom(about),
            f"This run had a ledger of its own, which counts it alone: {amounts}.{kept}",
            *([apart] if more > 1e-6 else []),
        )
    where = ledger.get("where")
    path = f" (for whoever ran this it was {where})" if where else ""
    left, total = (ledger[name]["epsilon"] for name in ("left", "total"))
    return (
        f"Of epsilon {words.number(total)} for these data, {left_text(left, total)} was left when this run ended.",
        f"The ledger of the data set {ledger.get('dataset')!r}, which other runs may share, says so: {amounts}.",
        f"{_whom(about)} For what is left today: dpilot ledger show, with the ledger's path{path}.",
        "Where nothing is left, nothing more may be computed from these data under this total.",
    )


def _whom(about: About) -> str:
    """Whom to ask what is left."""
    keeper, contact = (_closed(about.texts.get(name)) for name in ("ledger_keeper", "contact"))
    if keeper:
        return f"Who keeps the ledger of the data, as whoever wrote this page says: {keeper}."
    return f"Who keeps a ledger of the data was not filled in; ask {contact or 'whoever ran it'}."


def _amounts(ledger: dict[str, Any]) -> str:
    """Spent and left, of epsilon and of delta."""
    total, spent, left = (ledger[name] for name in ("total", "spent", "left"))
    unused = float(total["epsilon"]) - float(spent["epsilon"]) > 1e-6 * float(total["epsilon"])
    closed = (
        ": the rest was given up when the run ended" if unused and left["epsilon"] <= 1e-6 * total["epsilon"] else ""
    )
    epsilon = (
        f"of its total of epsilon {words.number(total['epsilon'])}, {words.upward(spent['epsilon'])} is spent and "
        f"{left_text(left['epsilon'], total['epsilon'])} is left{closed}"
    )
    deltas = [part.get("delta") for part in (total, spent, left)]
    if not all(map(words.is_finite, deltas)) or not deltas[0]:
        return epsilon
    if ledger.get("bound", "basic") != "basic":  # epsilons at one delta, which is not used up
        return f"{epsilon}, all at delta {words.upward(deltas[0], 3)}"
    return f"{epsilon}; of delta {words.number(deltas[0], 3)}, {left_text(deltas[2], deltas[0], 3)} is left"


def _is_balance(ledger: dict[str, Any]) -> bool:
    parts = [ledger.get(name) for name in ("total", "spent", "left")]
    return all(isinstance(part, dict) and words.is_finite(part.get("epsilon")) for part in parts)


def left_text(left: float, total: float, digits: int = 4) -> str:
    """What is left of a total, rounded down; "nothing" where it is a mere rounding."""
    return words.number(float(left), digits, "ROUND_FLOOR") if left > 1e-6 * total else "nothing"


def _group_comparison(record: FitRecord, about: About, found: GroupView) -> Iterator[str]:
    """The verdicts, what they mean for the purpose, and what was compared, where the columns are named."""
    yield from found.sentences
    good, means = (_closed(about.texts.get(name)) for name in ("favourable", "means"))
    if found.sided:
        told = [*([f"to be predicted “{good}” is good"] if good else []), *([means] if means else [])]
        yield (
            f"As whoever wrote this page says: {'; '.join(told)}."
            if told
            else "What a prediction leads to, and which is good to get, was not filled in: ask whoever ran it."
        )
    yield (
        "Surely means 95 % sure, for all groups of a column together, with noise and chance allowed for. Whether the "
        "data or the model makes a difference cannot be read from this."
    )
    named = record.data.get("protected")
    names = [named] if isinstance(named, str) else list(named or found.attributes)
    if not names:
        yield "What the groups are was not declared."
        return
    read = record.data.get("features")
    inputs = f"Whether the model reads {'them' if len(names) > 1 else 'it'} the record does not say."
    if isinstance(read, list | tuple):
        used = [name for name in names if name in read]
        inputs = (
            f"The model reads {words.listed(used)}."
            if used
            else f"The model does not read {words.listed(names, 'or')}; other columns may stand in for them."
        )
    yield f"Only {words.listed(names)} {'were' if len(names) > 1 else 'was'} compared. {inputs}"


def _unprotected(record: FitRecord) -> Iterator[str]:
    names = [each.partition(" (size=")[0] for each in record.unprotected]  # without the words of a program
    listed = "; ".join([*names, "what is true of people in general, and of groups"])
    yield f"Not protected: {listed}; the data themselves, from those who hold them or run the training."
    size = record.data.get("size")
    if words.is_finite(size) and size == record.plan.get("size"):
        free = "added or removed" in str(record.privacy.get("unit")) and "number of records" not in listed
        yield (
            f"The number of records on this page, {words.number(size)}, was declared beforehand, as public"
            f"{'; the true number is protected like the rest' if free else ''}."
        )
    yield (
        "May be published: the model, this page, the files of the run's folder and the lines of the ledger. To be kept "
        "secret: the data, and the secret file of a run until the run has ended, when it is removed. The promise has "
        "no end, and what is published cannot be called back."
    )
    if any("not hardened" in stamp for stamp in record.stamps):
        yield (
            "One known weakness: the noise uses ordinary computer arithmetic, so the last digits of released numbers "
            "may tell more than promised. The model's file holds all digits; the risk of publishing it is believed "
            "small and is not measured here. Whoever cannot accept that keeps the file inside."
        )


def _checks(record: FitRecord, about: About, folder: RunFolder | None) -> tuple[str, ...]:
    head = str(record.privacy.get("head") or "")
    contact = about.texts.get("contact") or about.texts.get("controller")
    version = (record.privacy.get("versions") or {}).get("dpilot")
    program = f"dpilot, the Python program that made this run{f' (version {version})' if version else ''}"
    return (
        f"Get the run's folder, called RUN here, from whoever ran it (contact: {contact or 'not filled in'}), and let "
        f"somebody who has {program} type these commands.",
        _statement(folder, apart=entries.is_paid_apart(record)),
        "dpilot report RUN, with the same --about and --baseline if any were used, writes this page anew. Compare the "
        "two files: they must be the same.",
        *_head(head),
        "All this shows that the page, the files and the ledger agree, not that nothing else was done with the data: "
        "for that you must trust whoever ran it, and for the noise the program, whose source can be read.",
    )


def _statement(folder: RunFolder | None, *, apart: bool) -> str:
    also = " (that of the figures, which was paid apart, included)" if apart else ""
    what = (
        "dpilot verify RUN compares every file named there with its fingerprint (card.md and deployment.yaml, meant to "
        f"be edited, have none), recomputes epsilon from the list of what was paid for{also}, prints each check as "
        "held or FAILED, and ends with an error if one failed"
    )
    if folder is None:
        return f"If the folder holds a statement.json: {what}; it prints who signed, if anybody did."
    if not folder.statement:
        return (
            "This run's folder holds no statement.json that can be read, so there is nothing for dpilot verify RUN to "
            "check: its files bear no fingerprints and no signature."
        )
    if not folder.signer:
        return (
            f"This run's folder holds a statement.json, which nobody signed: {what}. Whoever can write to the folder "
            "could have altered both."
        )
    return (
        f"This run's folder holds a statement.json with a signature by the key {folder.signer}: {what}. Ask the "
        "signer, not the folder, for the public key (--key)."
    )


def _head(head: str) -> tuple[str, ...]:
    """What the head of a ledger is, and what it is for."""
    rows, _, mark = head.partition(":")
    if not mark:
        return ("dpilot ledger verify FILE, with the ledger's path, shows that no line of the ledger was altered.",)
    return (
        f"The ledger had {rows} lines when this run ended, and their common fingerprint (its head) begins with "
        f"{mark[:8]}. dpilot ledger verify shows whether one of them was altered, removed or put in later; command and "
        "head stand in full at the end of this page.",
    )
