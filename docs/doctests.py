"""Doctests in docstrings as code: without a fence Markdown takes lists of them for links."""

from __future__ import annotations

from typing import Any

from griffe import Extension


class FenceDoctests(Extension):
    """Puts a fence around every run of lines that begins with a prompt."""

    def on_object(self, *, obj: Any, **given: Any) -> None:
        del given
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    """
    >>> fence("One.\\n>>> 1 + 1\\n2\\n").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    made: list[str] = []
    indent: str | None = None
    for line in [*text.splitlines(), ""]:
        bare = line.lstrip()
        if indent is None and bare.startswith(">>> "):
            indent = line[: len(line) - len(bare)]
            made += ["", f"{indent}```pycon"]
        if indent is not None and not bare:
            made.append(f"{indent}```")
            indent = None
        made.append(line)
    return "\n".join(made[:-1] if not made[-1] else made)
