"""The page as text: everything that was released is on it, and nothing that was typed can act."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpilot.errors import InvalidInput
from dpilot.noise import NOT_HARDENED, seeded_noise
from dpilot.privacy.events import Gaussian
from dpilot.records import FitRecord, MetricRecord
from dpilot.report import page
from tests.report.samples import HEAD, entry, fitted, health, metric, metrics, noisy_share
from tests.thin import thin

TRICKS = (
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "--></svg><iframe src=//evil.example>",
    "a\u202eb\x00c\ud800",
    "&lt;script&gt;",
)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and whether they close in order."""

    VOID = frozenset({"meta", "line", "circle", "path", "br", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shape(text: str) -> list[str]:
    return [tag for tag, _ in Elements(text).found]


def seen(text: str) -> str:
    """What a reader sees, spaces evened out."""
    return " ".join(" ".join(Elements(text).text).split())


def poisoned(trick: str) -> FitRecord:
    """A record with the same text in every place where somebody may type."""
    return fitted(
        privacy={"epsilon": 1.0, "delta": 1e-6, "unit": trick, "head": trick, "versions": {trick: trick}, trick: trick},
        data={"name": trick, trick: {trick: [trick]}},
        plan={trick: trick, "clipping": {"name": trick}},
        decisions=(trick,),
        metrics=(
            metric("accuracy", 0.8),
            metric(trick, 0.7, trick),
            metric("recall", 0.6, trick),
            metric("confusion", 0.6, f"{trick} predicted {trick}"),
        ),
        ledger=(
            {**entry(1, trick, trick, Gaussian(2.0), 0.5), "state": trick},
            {"seq": trick, "event": {"type": trick, trick: trick}, "cost": {"epsilon": trick, "delta": None}},
        ),
        curves={f"{trick} against {trick}: {trick}": ((0.0, 1.0), (1.0, 2.0)), trick: ((1.0, 1.0),)},
        stamps=(trick,),
        unprotected=(trick,),
        health=health(0.4, noisy_share(trick, trick, 0.5), noisy_share(trick, trick, 0.0)),
    )


@pytest.mark.parametrize("trick", TRICKS)
def test_what_was_typed_is_text_and_nothing_else(trick: str) -> None:
    plain, tricked = page.render(poisoned("plain"), "plain"), page.render(poisoned(trick), trick)
    assert shape(tricked) == shape(plain)
    for (_, before), (_, after) in zip(Elements(plain).found, Elements(tricked).found, strict=True):
        assert before.keys() == after.keys()
        assert not any(name.startswith("on") for name in after)
    tricked.encode("utf-8")


@pytest.mark.parametrize("trick", TRICKS[:6])
def test_what_was_typed_can_be_read_in_every_place(trick: str) -> None:
    plain, tricked = (seen(page.render(poisoned(text), text)).casefold() for text in ("plain text", trick))
    assert tricked.count(trick.casefold()) == plain.count("plain text") >= 40


def test_the_page_refers_to_nothing_outside_and_runs_nothing() -> None:
    text = page.render(fitted())
    for tag, attributes in Elements(text).found:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_links_and_labels_lead_somewhere_and_names_are_unique() -> None:
    elements = Elements(page.render(fitted())).found
    names = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(names) == len(set(names))
    wanted = {str(a["href"])[1:] for _, a in elements if "href" in a}
    wanted |= {each for _, a in elements for each in str(a.get("aria-labelledby") or "").split()}
    assert wanted <= set(names)


def test_all_that_was_released_is_on_the_page() -> None:
    record = fitted()
    text = seen(page.render(record, "Ward 7"))
    told = ["Ward 7", "0.9994", "3.08 × 10⁻⁶", "1 in 325,616", "one record, added or removed", "85.1 %", HEAD, "2.13.0"]
    told += ["84.3 to 85.9 %", "83.7 to 86.5 %", "0.8963 to 0.9123", "32,561", "660", "1.37", "bounded-slack"]
    told += ["sex = Female", "93 %", "trial 2 of 2", "held-out", "0.44", "3.5 %", "from 0.11 at epsilon 0.12"]
    told += ["Most common class", "76.1 %", "surely above it", "native-country", "About 99.5 %", "5.7 %"]
    told += ["26.9 %", "73.1 %", NOT_HARDENED, *record.decisions, *record.unprotected]
    missing = [each for each in told if each not in text]
    assert missing == []


def test_the_total_stands_under_the_ledger() -> None:
    text = page.render(fitted())
    foot = re.search(r"<tfoot>.*?</tfoot>", text, re.DOTALL)
    assert foot is not None
    assert "0.9994" in foot.group()


def test_a_record_gives_the_same_page_after_a_trip_through_its_file() -> None:
    record = fitted()
    assert page.render(FitRecord.from_json(record.to_json())) == page.render(record)


def test_an_ordinary_run_has_no_alarm_and_says_not_hardened() -> None:
    text = page.render(fitted())
    assert 'role="alert"' not in text
    assert "not hardened" in text
    assert "NOT PRIVATE" not in text


@pytest.mark.parametrize("stamp", [seeded_noise(7).stamp, "oracle: chosen by exact scores", "something new"])
def test_any_other_stamp_is_an_alarm(stamp: str) -> None:
    text = page.render(fitted(stamps=(NOT_HARDENED, stamp)))
    alarm = re.search(r'role="alert".*?</div>', text, re.DOTALL)
    assert alarm is not None
    assert html.escape(stamp) in alarm.group()
    assert "<title>NOT PRIVATE" in text
    assert "Trained with dpilot under" not in text


def test_a_large_epsilon_and_a_large_delta_are_remarked() -> None:
    text = seen(page.render(fitted(privacy={"epsilon": 8.0, "delta": 1e-3})))
    assert "Hardly: at this epsilon the promise alone rules out little" in text
    assert "Delta is larger than usual for 32,561 records (usual: at most 1 in 325,610)." in text
    assert "at this epsilon the promise alone" not in seen(page.render(fitted()))
    assert "Weakly:" in seen(page.render(fitted(privacy={"epsilon": 3.5, "delta": 1e-6})))


@pytest.mark.parametrize(
    "privacy", [{}, {"epsilon": 1.0}, {"epsilon": None, "delta": 0}, {"epsilon": -1.0, "delta": 0}]
)
def test_a_record_without_a_total_is_refused(privacy: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"epsilon|delta"):
        page.render(fitted(privacy=privacy))


HUGE = MetricRecord("rmse", "", 1.7e308, (-1.7e308, 1.7e308), (-1.7e308, 1.7e308))
BROKEN = MetricRecord("accuracy", "", math.nan, (math.nan, math.inf), (-math.inf, 1.0))


def _blurred(figure: MetricRecord) -> MetricRecord:
    return replace(figure, noise=(0.0, 1.0), sampling=(0.0, 1.0))


DEGENERATE = {
    "nothing": FitRecord({"epsilon": 0, "delta": 0}, {}, {}, (), (), (), (), (), ()),
    "huge epsilon": fitted(privacy={"epsilon": 1e9, "delta": 0.999}),
    "tiny epsilon": fitted(privacy={"epsilon": 1e-300, "delta": 5e-324}),
    "one threshold": fitted(thresholds=(0.5,)),
    "equal thresholds": fitted(thresholds=(0.0,) * 50),
    "huge thresholds": fitted(thresholds=(1.7e308, -1.7e308, 5e-324)),
    "broken thresholds": fitted(thresholds=(math.nan, math.inf, 1.0)),
    "many thresholds": fitted(thresholds=tuple(float(step % 97) for step in range(100_000))),
    "no metrics": fitted(metrics=()),
    "huge metrics": fitted(metrics=(HUGE,)),
    "broken metrics": fitted(metrics=(BROKEN, replace(BROKEN, name="confusion", of="a predicted b"))),
    "200 classes": fitted(metrics=metrics(tuple(f"class {i}" for i in range(200)))),
    "12 classes": fitted(
        metrics=metrics(tuple(f"class {i}" for i in range(12)), tuple(f"group {i}" for i in range(40)))
    ),
    "odd curves": fitted(
        curves={"": (), "a": ((math.nan, 1.0),), "b": ((1.0, 1.0), (1.0, 1.0)), "c: d": ((0, 1e300),)}
    ),
    "odd entries": fitted(ledger=({}, {"cost": 3}, {"cost": {"epsilon": math.inf}}, {"event": None})),
    "deep plan": fitted(plan={"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}, "empty": {}, "list": []}),
    "10,000 columns": fitted(data={"columns": {f"c{i}": [0, 1] for i in range(10_000)}}),
    "10,000 flaws": fitted(health=health(0.5, *(noisy_share("missing", f"c{i}", i / 10_000) for i in range(10_000)))),
    "no cell of confusion is told": fitted(metrics=tuple(_blurred(each) for each in metrics(("a", "b", "c")))),
    "200 classes, blurred": fitted(metrics=tuple(map(_blurred, metrics(tuple(f"class {i}" for i in range(200)))))),
    "long names": fitted(data={"n" * 5_000: "v" * 50_000}, decisions=("w" * 50_000,)),
}


@pytest.mark.parametrize("record", thin(DEGENERATE.values(), 2), ids=DEGENERATE.keys())
def test_degenerate_records_are_drawn_without_a_wrong_number(record: FitRecord) -> None:
    text = page.render(record)
    found = Elements(text)
    assert found.open == []
    for tag, attributes in found.found:
        for name, value in attributes.items():
            if name in {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "d", "style"}:
                assert not re.search("nan|inf|e[+-]?[0-9]", str(value).removeprefix("--shade")), (tag, name, value)
                for number in re.findall(r"-?\d+\.?\d*(?=%)", str(value)):
                    assert 0 <= float(number) <= 102
    assert len(text) < 600_000


def test_writing_returns_the_path_and_refuses_a_bad_one(tmp_path: Path) -> None:
    written = page.write(fitted(), tmp_path / "report.html")
    assert written.read_text(encoding="utf-8") == page.render(fitted())
    with pytest.raises(InvalidInput, match="can be written"):
        page.write(fitted(), tmp_path / "no" / "report.html")
