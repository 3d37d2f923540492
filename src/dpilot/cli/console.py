"""All that dpilot shows on a terminal goes through here; the only file that imports the terminal library."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

    from dpilot.train.progress import Progress, Update


def line(text: str = "") -> None:
    """One line of plain text; nothing in it is read as markup."""
    print(text)


def note(text: str) -> None:
    """A remark beside the result, on standard error, so that piped output stays clean."""
    print(f"note: {text}", file=sys.stderr)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with a title; numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    filled = [[Text(_cell(value)) for value in row] for row in rows]
    view = Table(title=Text(title), title_justify="left", header_style="bold")
    for name in columns:
        view.add_column(Text(name), justify="right")
    for row in filled:
        view.add_row(*row)
    width = None if sys.stdout.isatty() else 140
    Console(width=width).print(view)


def json(data: Any) -> None:
    """One JSON document on standard output."""
    print(_json.dumps(data, indent=2, allow_nan=False))


@dataclass(frozen=True)
class FitBars:
    """Bars of a fit: called with each update of a training, and with how many records of how many were read."""

    show: Progress
    read: Callable[[int, int], None]

    def __call__(self, update: Update) -> None:
        self.show(update)


@contextmanager
def training_bar() -> Iterator[FitBars]:
    """A bar for ``Trainer(progress=...)``: steps, threshold, epsilon spent and left, time left; released values."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        tasks: list[TaskID] = []  # none before the first step: what tunes itself has stages, not one row of steps
        read_so_far: list[TaskID] = []

        def read(done: int, total: int) -> None:
            if not read_so_far:
                read_so_far.append(bar.add_task("reading", total=total, text="records"))
            bar.update(read_so_far[0], completed=done)

        def show(update: Update) -> None:
            if not tasks:
                tasks.append(bar.add_task("training", total=update.steps, text=""))
            text = (
                f"threshold {update.record.threshold:.3g}, epsilon {update.epsilon:.3g} spent, "
                f"{update.epsilon_left:.3g} left, {_clock(update.seconds_left)} to go"
            )
            bar.update(tasks[0], completed=update.record.step + 1, total=update.steps, text=text)

        yield FitBars(show, read)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def fail(message: str) -> None:
    """An error, in one line on standard error."""
    print("error: " + " ".join(str(message).split()), file=sys.stderr)


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
