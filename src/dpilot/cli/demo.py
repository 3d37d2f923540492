"""``dpilot demo``: the main job on bundled data: a private model that tunes itself, its figures and its report."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dpilot.cli import console
from dpilot.cli.fit import REPORT, show_metrics

if TYPE_CHECKING:
    from dpilot.fit.model import FittedModel
    from dpilot.records import FitRecord

LEDGER: Final = "ledger"
MARK: Final = "dpilot-demo.txt"


def demo(
    folder: Annotated[Path, typer.Option(help="Where the report and the run folder go.")] = Path("out/demo"),
    epsilon: Annotated[float, typer.Option(help="Total epsilon, tuning and figures included.")] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learn who earns more than 50,000 dollars from the bundled census table, privately, and report on it."""
    from dpilot.data.bundled import adult

    started = time.perf_counter()
    path, schema = adult()
    run = _prepare_folder(folder / "run", path.stem)
    if not json:
        console.line("UCI Adult, 48,842 people: who earns more than 50,000 dollars; women and men are compared.")
        console.line(f"One budget for everything, tuning and figures included: epsilon {epsilon:g}.\n")
    fitted = _fit(path, schema, epsilon, run, quiet=json)
    report = _report(fitted.record, folder / REPORT)
    seconds = time.perf_counter() - started
    if json:
        console.json(_plain(fitted.record, report, run, seconds))
    else:
        _show(fitted.record, report, run, seconds)


def _fit(path: Path, schema: Any, epsilon: float, run: Path, *, quiet: bool) -> FittedModel:
    from dpilot.fit.learners.base import silent
    from dpilot.fit.table import fit_table

    tell = silent if quiet else lambda text: console.line(f"  {text}")
    return fit_table(path, schema, model="additive", epsilon=epsilon, ledger=run / LEDGER, run_folder=run, tell=tell)


def _prepare_folder(run: Path, dataset: str) -> Path:
    """The run folder, marked as a demo's, without the last demo: its records may be spent again, yours may not."""
    from dpilot.errors import InvalidInput

    if _is_demo(run, dataset):
        shutil.rmtree(run)
    elif run.is_symlink() or (run.exists() and (not run.is_dir() or any(run.iterdir()))):
        raise InvalidInput(f"{run} holds something else than a demo: expected no such folder. Name another --folder.")
    elif (run.parent / REPORT).exists():
        raise InvalidInput(f"{run.parent} holds a report that is no demo's: expected none. Name another --folder.")
    run.mkdir(parents=True, exist_ok=True)
    (run / MARK).write_text("Made by dpilot demo, which removes this folder when it is run again.\n")
    return run


def _is_demo(run: Path, dataset: str) -> bool:
    """Whether a demo marked the folder, and its ledger, if it came to that, is of the bundled records."""
    from dpilot.errors import DpilotError
    from dpilot.privacy.ledger import Ledger

    if run.is_symlink() or not (run / MARK).is_file():
        return False
    if not (run / LEDGER).exists():
        return [each.name for each in run.iterdir()] == [MARK]
    try:
        return Ledger.read(run / LEDGER).dataset == dataset
    except DpilotError:
        return False


def _report(record: FitRecord, path: Path) -> Path:
    from dpilot.report import page

    return page.write(record, path, title="Adult, learned privately")


def _show(record: FitRecord, report: Path, run: Path, seconds: float) -> None:
    from dpilot.metrics.figures import LONG

    privacy = record.privacy
    console.line()
    total = f"epsilon {privacy['epsilon']:.4g}, delta {privacy['delta']:.3g}"
    detail = (*LONG, "recall", "precision", "group against others")
    show_metrics(record, f"Held-out figures at {total}, everything included", "figure", without=detail)
    for what in record.unprotected:
        console.line(f"not protected: {what}")
    console.line(f"\nReport {report}, run folder {run}, {seconds:.0f} s.")


def _plain(record: FitRecord, report: Path, run: Path, seconds: float) -> dict[str, Any]:
    return {
        "epsilon": record.privacy["epsilon"],
        "delta": record.privacy["delta"],
        "metrics": [{"name": each.name, "of": each.of, "value": each.value} for each in record.metrics],
        "decisions": list(record.decisions),
        "report": str(report),
        "run": str(run),
        "seconds": round(seconds, 1),
    }
