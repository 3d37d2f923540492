"""Several runs beside one another, cards and registry records: from records alone, escaped, with the commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpilot.cli.main import main
from dpilot.errors import InvalidInput
from dpilot.noise import seeded_noise
from dpilot.records import FitRecord
from dpilot.report import page
from dpilot.report.about import About
from dpilot.report.card import model_card, registry_entry, to_yaml
from dpilot.report.comparison import compare
from tests.report.samples import fitted, metrics
from tests.report.test_page import TRICKS, Elements, poisoned, seen

GROUPS = ("Female", "Male")


def better(epsilon: float = 3.0) -> FitRecord:
    """Another run, of a larger epsilon, with another step size and better figures."""
    figures = tuple(
        replace(each, value=min(each.value + 0.05, 1.0), sampling=tuple(min(end + 0.05, 1.0) for end in each.sampling))
        for each in metrics(("<=50K", ">50K"), GROUPS)
    )
    record = fitted()
    return replace(
        record, privacy={**record.privacy, "epsilon": epsilon}, metrics=figures, plan={**record.plan, "lr": 1.6}
    )


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    return str(fitted().save(tmp_path / "a")), str(better().save(tmp_path / "b"))


def test_what_differs_is_told_and_what_is_equal_is_not() -> None:
    found = compare({"a": fitted(), "b": better()})
    assert found.settings == {"Learning rate": {"a": "0.8", "b": "1.6"}}
    assert found.text("Accuracy", "a") == "85.1 % (83.7 to 86.5 %)"
    assert "than: a, b." in found.best[0]
    assert len(found.best) == 1  # their intervals lie apart


def test_a_run_that_is_beaten_in_both_is_not_named_and_overlaps_are() -> None:
    dear = fitted(privacy={**fitted().privacy, "epsilon": 5.0})
    found = compare({"a": fitted(), "dear": dear})
    assert "than: a." in found.best[0]
    assert "may be chance" in found.best[1]
    with pytest.raises(InvalidInput, match="two or more"):
        compare({"a": fitted()})


def test_the_page_has_a_table_a_pareto_and_nothing_that_acts() -> None:
    text = page.render_comparison(compare({TRICKS[0]: poisoned(TRICKS[1]), TRICKS[3]: poisoned(TRICKS[4])}))
    found = Elements(text)
    assert found.open == []
    assert not {"script", "img", "iframe"} & {tag for tag, _ in found.found}
    words = seen(page.render_comparison(compare({"a": fitted(), "b": better()})))
    for told in ("Accuracy against epsilon", "Accuracy against Worst group", "Learning rate", "85.1 %"):
        assert told in words


def test_what_noise_hides_is_not_drawn_and_what_is_public_is_called_so() -> None:
    hidden = tuple(replace(each, sampling=(0.0, 1.0)) if "parity" in each.name else each for each in fitted().metrics)
    exact = replace(fitted().metrics[0], exact=True)
    found = compare({"a": replace(fitted(), metrics=hidden), "b": better(), "c": fitted(metrics=(exact,))})
    assert [each.across for each in found.pareto] == ["epsilon", "Worst group"]
    assert found.text("Accuracy", "c") == "85.1 %, exact, on data declared public"


def test_the_command_prints_a_table_json_and_a_page(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *runs, "--out", str(tmp_path / "compare.html")]) == 0
    assert "Learning rate" in capsys.readouterr().out
    assert (tmp_path / "compare.html").exists()
    assert main(["compare", *runs, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"]["b"]["epsilon"] == 3.0
    assert told["runs"]["a"]["figures"]["Accuracy"]["value"] == 0.8514
    assert main(["compare", runs[0]]) == 2


def parsed(text: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(text)


def test_a_card_has_front_matter_and_says_what_is_missing() -> None:
    text = model_card(fitted(), "Ward 7", About.of({"controller": "St. Mary"}))
    _, front, body = text.split("---\n", 2)
    about = parsed(front)
    assert about["library_name"] == "dpilot"
    assert about["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.8514
    assert "(epsilon 0.9994, delta 3.08 × 10⁻⁶)" in body
    assert "- **Controller**: St. Mary" in body
    assert "- **Contact**: TO BE FILLED IN" in body
    assert "**Is the tuning inside?**" in body


def test_a_run_that_is_not_private_has_a_card_that_says_so() -> None:
    text = model_card(fitted(stamps=(seeded_noise(7).stamp,)), "x", About.of())
    assert "NOT PRIVATE: do not publish" in text
    assert "Trained with dpilot under" not in text


def test_a_registry_record_holds_what_a_registry_asks() -> None:
    entry = registry_entry(replace(fitted(), privacy={**fitted().privacy, "tuning": "inside"}), "Ward 7", About.of())
    assert parsed(to_yaml(entry)) == entry
    assert entry["unit_of_privacy"]["neighbours"] == "one record, added or removed"
    assert entry["privacy_loss"]["epsilon"] == 0.99931
    assert entry["privacy_loss"]["tuning_included"] is True
    assert entry["mechanism"]["sampling"] == "Poisson"
    assert entry["mechanism"]["name"] == "Gaussian"
    assert entry["contact"]["contact"] == "TO BE FILLED IN"


@pytest.mark.parametrize("trick", [*TRICKS, "a: b", "- x", "# y", "", "null", "2026-01-01"])
def test_yaml_reads_back_whatever_was_typed(trick: str) -> None:
    from dpilot.report.words import printable

    shown = printable(trick)
    assert parsed(to_yaml({"a": [trick, {"b": trick}], "c": {"d": []}, "e": 1.5e-7, "f": 2e-6})) == {
        "a": [shown, {"b": shown}],
        "c": {"d": []},
        "e": 1.5e-7,
        "f": 2e-6,
    }


def test_the_command_writes_both_and_names_what_is_to_be_filled_in(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["card", runs[0]]) == 0
    assert "to be filled in: controller, contact" in capsys.readouterr().err
    assert {"card.md", "deployment.yaml"} <= {path.name for path in Path(runs[0]).iterdir()}
    assert main(["card", runs[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deployment"]["deployment"] == "a"
