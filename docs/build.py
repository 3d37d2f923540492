"""Render the pages under docs/ to out/docs, and fail on a link that leads nowhere.

Run by ``make docs``.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from jinja2 import Template
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent
OUT = ROOT.parent / "out" / "docs"
PAGE = Template(
    """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title><style>body{font:16px/1.5 system-ui;max-width:52rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{border:1px solid #999;padding:.2rem .5rem;vertical-align:top}
code,pre{background:#f2f2f2}pre{padding:.6rem;overflow-x:auto}img{max-width:100%}</style>
<main>{{ body }}</main></html>"""
)


def broken_links(page: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    return [f"{page.relative_to(ROOT)} -> {t}" for t in targets if "://" not in t and not (page.parent / t).exists()]


def render(page: Path) -> None:
    text = re.sub(r"\]\(([^):]+)\.md(#[^)]*)?\)", r"](\1.html\2)", page.read_text())
    title = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), page.stem)
    target = OUT / page.relative_to(ROOT).with_suffix(".html")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(PAGE.render(title=title, body=MarkdownIt("commonmark").enable("table").render(text)))


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    pages = sorted(ROOT.rglob("*.md"))
    for page in pages:
        render(page)
    for picture in [*ROOT.rglob("*.svg"), *ROOT.rglob("*.png")]:
        target = OUT / picture.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    broken = [link for page in pages for link in broken_links(page)]
    print(f"{len(pages)} pages written to {OUT.relative_to(ROOT.parent)}")
    for link in broken:
        print(f"broken link: {link}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
