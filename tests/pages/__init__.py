"""Pages as sessions: their Python, commands and schemas in order, in one process and folder.

``tests/pages/NAME.py`` is what a page takes for granted (data, a model, a server): its first cell runs before the page,
a cell ``# %% before "TEXT"`` before the block, or the command, that holds TEXT.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMANDS = ("dpilot ", "torchrun ")
PAGES = ["README.md", *sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))]
NOT_RUN = {
    "--install-completion": "changes the shell it is typed in; tests/test_package.py asks for what it completes",
}


def text_of(name: str) -> str:
    return (ROOT / name if name == "README.md" else DOCS / name).read_text(encoding="utf-8")


def blocks(name: str) -> Iterator[tuple[str, str]]:
    """(language, text) of each block of a page; each command of a block without a language is a block of its own."""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", text_of(name), re.DOTALL | re.MULTILINE):
        if language:
            yield language, text
        else:
            yield from (("console", line) for line in text.splitlines() if line.startswith(COMMANDS))


def python(name: str) -> list[str]:
    return [text for language, text in blocks(name) if language == "python"]


def given(name: str) -> dict[str, str]:
    """The cells of what a page takes for granted, by the text that they are before; "" is before all."""
    path = Path(__file__).with_name(name.removesuffix(".md").lower().replace("/", "_") + ".py")
    first, *others = re.split(r'^# %% before "(.*)"\n', path.read_text() if path.exists() else "", flags=re.MULTILINE)
    return {"": first, **dict(zip(others[::2], others[1::2], strict=True))}


def session(name: str) -> str:
    """The page as one program."""
    cells = given(name)
    made, schema = ["from tests.pages import console, declare, ranks", cells.pop("")], None
    for language, text in blocks(name):
        made += [cells.pop(marker) for marker in list(cells) if marker in text]
        if language == "python":
            made.append(f"ranks({text!r})" if "fully_shard" in text else text)
        elif language == "console" and not any(part in text for part in NOT_RUN):
            made.append(f"console({text!r})")
            schema = next(iter(re.findall(r"> (\S+\.toml)", text)), None)
        elif language == "toml" and "[columns" in text:
            made.append(f"declare({text!r}, {schema!r})")
    assert not cells, f"{name} has no {list(cells)}"
    return "\n".join(made)


def console(line: str) -> None:
    """Run a command as a shell would."""
    words = shlex.split(line, comments=True)
    if words[0] == "torchrun":
        subprocess.run([sys.executable, "-m", "torch.distributed.run", *words[1:]], check=True)
        return
    from dpilot.cli.main import main

    if ">" in words:
        *words, _, target = words
        with open(target, "w") as file, redirect_stdout(file):
            code = main(words[1:])
    else:
        code = main(words[1:])
    assert code == 0, line


def declare(text: str, file: str | None) -> None:
    """Read a schema as it stands on a page; it is what a reader makes of the skeleton that was just written."""
    from dpilot import Schema

    place = Path(file or "schema-of-the-page.toml")
    place.write_text(text)
    Schema.from_toml(place)


def ranks(code: str) -> None:
    """Run a block on two processes, after ``ranks.py``, which the page takes for granted."""
    Path("on_ranks.py").write_text(Path("ranks.py").read_text() + code)
    console("torchrun --nproc-per-node 2 on_ranks.py")
