"""The page in a real browser: silent, alone, readable by everybody, and no wider than its window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpilot.noise import NOT_HARDENED
from dpilot.records import FitRecord, MetricRecord
from dpilot.report import page
from dpilot.report.comparison import compare
from tests.report.samples import complete, fitted, metrics
from tests.report.test_page import TRICKS, poisoned

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: pages were not opened")

LONG = "Krankenhausbehandlungsfallnummernverzeichnis" * 4


def blurred(figure: MetricRecord) -> MetricRecord:
    """The figure, unknown where it is of the rare class or of a group."""
    return (
        replace(figure, sampling=(0.0, 1.0))
        if figure.of.startswith(("rare", "sex")) or figure.of.endswith("predicted rare")
        else figure
    )


RECORDS = {
    "complete": complete(),
    "not private": fitted(stamps=(NOT_HARDENED, "test noise (seed 7): not private")),
    "hostile and long": poisoned(TRICKS[1] + TRICKS[3] + LONG),
    "12 classes": fitted(
        metrics=tuple(map(blurred, metrics((*(f"class {i}" for i in range(11)), "rare"), ("a", "b", "c"))))
    ),
    "a rare class": fitted(metrics=tuple(map(blurred, metrics(("a", "b", "rare"), ("x", "y"))))),
    "empty names": poisoned(""),
    "nothing": FitRecord({"epsilon": 0, "delta": 0}, {}, {}, (), (), (), (), (), ()),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Any, record: FitRecord, folder: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page of a record, open, and what it said or asked for besides itself."""
    path = page.write(record, folder / "report.html")
    tab = browser.new_page(**options)
    heard: list[str] = []
    tab.on("console", lambda message: heard.append(f"console: {message.text}"))
    tab.on("pageerror", lambda problem: heard.append(f"error: {problem}"))
    tab.on("dialog", lambda dialog: (heard.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda request: heard.append(f"request: {request.url}") if request.url != path.as_uri() else None)
    tab.goto(path.as_uri())
    return tab, heard


SLOW = {"12 classes", "nothing", "not private", "a rare class", "empty names"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RECORDS]
)
def test_a_page_is_silent_fits_its_window_and_is_accessible(browser: Any, name: str, tmp_path: Path) -> None:
    tab, heard = opened(browser, RECORDS[name], tmp_path)
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        for width in (360, 1280):
            tab.set_viewport_size({"width": width, "height": 800})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, scheme
        found = axe.Axe().run(tab)
        assert found.violations_count == 0, found.generate_report()
    assert heard == []
    tab.close()


def test_a_comparison_is_accessible_and_fits_its_window(browser: Any, tmp_path: Path) -> None:
    text = page.render_comparison(compare({"a": fitted(), LONG: complete()}))
    tab = browser.new_page(viewport={"width": 360, "height": 800})
    tab.goto(page.write_page(text, tmp_path / "compare.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    tab.close()


def test_dark_and_print_change_the_colours(browser: Any, tmp_path: Path) -> None:
    tab, _ = opened(browser, fitted(), tmp_path)
    colours = []
    for options in ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"media": "print", "color_scheme": "dark"}):
        tab.emulate_media(**options)
        colours.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(colours)) == 3
    assert colours[2] == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    tab.close()


def test_what_is_folded_is_printed(browser: Any, tmp_path: Path) -> None:
    tab, _ = opened(browser, fitted(), tmp_path)
    folded = "[...document.querySelectorAll('details')].map(each => each.getBoundingClientRect().height)"
    heights = []
    for media in ("screen", "print"):
        tab.emulate_media(media=media)
        heights.append(tab.evaluate(folded))
    assert len(heights[0]) == 3
    assert all(screen < printed for screen, printed in zip(*heights, strict=True))
    tab.close()


def test_pictures_are_drawn_inside_their_frames(browser: Any, tmp_path: Path) -> None:
    tab, _ = opened(browser, complete(), tmp_path, viewport={"width": 360, "height": 800})
    outside = tab.evaluate(
        """() => [...document.querySelectorAll("svg.chart")].flatMap(chart => {
            const frame = chart.getBoundingClientRect();
            return [...chart.querySelectorAll("text, path")].map(each => each.getBoundingClientRect())
                .filter(box => box.left < frame.left - 8 || box.right > frame.right + 8 || box.top < frame.top - 8
                               || box.bottom > frame.bottom + 8).map(box => [box.left, box.right, box.top, box.bottom]);
        })"""
    )
    drawn = tab.evaluate("document.querySelectorAll('svg.chart path').length")
    assert outside == []
    assert drawn >= 4
    tab.close()


def test_an_axe_that_finds_nothing_can_find_something(browser: Any, tmp_path: Path) -> None:
    tab, _ = opened(browser, fitted(), tmp_path)
    tab.evaluate("document.querySelector('main').innerHTML = '<p style=\"color:#eee;background:#fff\">pale</p>'")
    assert axe.Axe().run(tab).violations_count > 0
    tab.close()
