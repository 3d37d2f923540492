"""Pages that the site makes itself: the reference of every public name, and tutorials from their scripts.

A tutorial is a script in the percent format (``# %% [markdown]`` and ``# %%`` begin cells): tests run it, the site
shows it as a page and hands it out as a notebook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
INTEGRATIONS = sorted(
    f"dpilot.integrations.{path.stem}"
    for path in (ROOT / "src/dpilot/integrations").glob("*.py")
    if path.stem not in ("__init__", "fields")
)
"""Read and not imported: each needs a package of its own."""
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
REFERENCE = (
    "dpilot", "dpilot.linear", "dpilot.clipping", "dpilot.engine", "dpilot.privacy", "dpilot.statistics",
    "dpilot.transfer", "dpilot.tune", "dpilot.export", "dpilot.audit", "dpilot.diagnose",
)  # fmt: skip


def on_config(config: Any) -> Any:
    """The navigation of the reference is that of the packages; pages that nobody placed are in the guide, or proofs."""
    placed = set(paths(config.nav))
    for section, folder in (("Guide", "."), ("Proofs", "proofs")):
        (pages,) = [each[section] for each in config.nav if section in each]
        found = sorted((Path(config.docs_dir) / folder).glob("*.md"))
        names = [path.relative_to(config.docs_dir).as_posix() for path in found]
        pages += [name for name in names if name not in placed]
    (place,) = [place for place, each in enumerate(config.nav) if "Reference" in each]
    config.nav[place] = {"Reference": [{name: f"reference/{name}.md"} for name in (*REFERENCE, *INTEGRATIONS)]}
    return config


def paths(nav: Any) -> Iterator[str]:
    """Every page that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from paths(each)


def on_files(files: Files, config: Any) -> Files:
    shown: dict[str, str] = {}
    for name in REFERENCE:
        files.append(File.generated(config, f"reference/{name}.md", content=reference(name, shown)))
    for name in INTEGRATIONS:
        files.append(File.generated(config, f"reference/{name}.md", content=f"# {name}\n\n::: {name}"))
    for path in [*sorted((ROOT / "benchmarks").rglob("*")), *(ROOT / each for each in BESIDE)]:
        if path.suffix in (".md", ".svg", ".png", ".csv"):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for script in sorted((Path(config.docs_dir) / "tutorials").glob("*.py")):
        cells = cells_of(script.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"tutorials/{script.stem}.md", content=page(cells, script.stem)))
        files.append(File.generated(config, f"tutorials/{script.stem}.ipynb", content=notebook(cells)))
    return files


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """Links to what lies beside docs/ in the repository, and in it here."""
    del given
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri.startswith("benchmarks/"):
        return markdown.replace("](../../docs/", f"]({up}")
    if page.file.src_uri in BESIDE:
        return markdown.replace("](docs/", "](")
    return markdown.replace(f"]({up}../", f"]({up}")


def reference(name: str, shown: dict[str, str]) -> str:
    """A page of every name that a package declares, each where it is defined; a link where an earlier page has it.

    Names without an example of their own are in that of the page (docs/examples), which tests run.
    """
    module = import_module(name)
    homes = [found for each in public_names(module) if (found := home(module, each))]
    made = [f"See [{each}]({shown[each]}.md)." if each in shown else f"::: {each}" for each in homes]
    shown.update({each: name for each in homes if each not in shown})
    example = ROOT / "docs/examples" / f"{name}.md"
    text = example.read_text(encoding="utf-8").rstrip() if example.exists() else ""
    return "\n\n".join([f"# {name}", summary(module), text, *made])


def summary(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().split("\n\n")[0]


def public_names(module: ModuleType) -> list[str]:
    return [each for each in module.__all__ if not each.startswith("__")]


def home(module: ModuleType, name: str) -> str | None:
    """The path of a class or a function, where it is defined; a constant or alias is one of the package itself."""
    found = getattr(module, name)
    if isinstance(found, ModuleType):
        return None if found.__name__ in REFERENCE else found.__name__
    defined = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return ".".join(defined) if all(defined) and defined[0].startswith("dpilot") else f"{module.__name__}.{name}"


def cells_of(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each cell of a script."""
    cells: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("# %%"):
            cells.append(("markdown" if "[markdown]" in line else "code", []))
        elif cells:
            kind, lines = cells[-1]
            lines.append(line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line)
    return [(kind, "\n".join(lines).strip()) for kind, lines in cells]


def page(cells: list[tuple[str, str]], name: str) -> str:
    shown = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells]
    return "\n\n".join([*shown, f"[This tutorial as a notebook]({name}.ipynb)"])


def notebook(cells: list[tuple[str, str]]) -> str:
    more: dict[str, dict[str, Any]] = {"markdown": {}, "code": {"execution_count": None, "outputs": []}}
    made = [
        {"cell_type": kind, "id": f"cell-{place}", "metadata": {}, "source": text, **more[kind]}
        for place, (kind, text) in enumerate(cells)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1)
