"""``dpilot card RUN``: a model card and a record for a deployment registry. Reads no data, spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpilot.cli import console


def card(
    run: Annotated[Path, typer.Argument(help="A run folder, of a fit, a Trainer or a tuner.", show_default=False)],
    title: Annotated[str, typer.Option(help="The name of the model; without it that of the folder.")] = "",
    about: Annotated[Path | None, typer.Option(help="A toml file: controller, contact, purpose, ...")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the registry record as JSON.")] = False,
) -> None:
    """Write RUN/card.md (with the front matter of Hugging Face) and RUN/deployment.yaml, for a registry."""
    from dpilot.report import page
    from dpilot.report.about import About
    from dpilot.report.card import TO_FILL, model_card, registry_entry, to_yaml

    record, told, name = page.read(run), About.of(about), title or run.resolve().name
    entry = registry_entry(record, name, told)
    markdown = page.write_page(model_card(record, name, told), run / "card.md")
    yaml = page.write_page(to_yaml(entry), run / "deployment.yaml")
    if json:
        console.json({"card": str(markdown), "record": str(yaml), "deployment": entry})
    else:
        console.line(f"{markdown}: the model card; {yaml}: the record of the deployment")
    missing = [field for field, text in entry["contact"].items() if text == TO_FILL]
    if missing:
        console.note(f"to be filled in: {', '.join(missing)}, in a toml file for --about")
    if not entry["private"]:
        console.note("this run is not private: do not publish it")
