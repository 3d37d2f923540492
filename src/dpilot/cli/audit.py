"""``dpilot audit replay | run | mechanism | ledger``: what was tried, what held, with which confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpilot.cli import console
from dpilot.cli.named import load_object
from dpilot.errors import InvalidInput

if TYPE_CHECKING:
    from dpilot.audit.check import Check

FAILED = 1
"""The exit code of an audit that found something."""

app = typer.Typer(help="Try to prove a run, a model, this machine or a ledger wrong.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("run")
def audit_run(
    run: Annotated[Path, typer.Argument(help="The folder of a run with audit=Canaries(..).", show_default=False)],
    confidence: Annotated[float, typer.Option(help="With which the lower bound holds.")] = 0.95,
    json: Json = False,
) -> int:
    """The lower bound on epsilon that a run's canaries prove, beside the epsilon that is claimed. Costs nothing."""
    from dpilot.audit.canaries import audit_record
    from dpilot.records import RUN, RunRecord

    file = run / RUN
    if not file.exists():
        raise InvalidInput(f"{run} holds no {RUN}: expected the folder of a Trainer's run, as run.save wrote it.")
    record = RunRecord.from_json(file.read_text())
    bound, checks = audit_record(record, confidence=confidence)
    return _show(checks, {"claimed": record.epsilon, "lower_bound": bound.to_dict()}, json=json)


@app.command("replay")
def audit_replay(
    model: Annotated[str, typer.Argument(help="MODULE:NAME, a model, or a function data -> run of your own.")],
    data: Annotated[
        str | None, typer.Option(help="MODULE:NAME of made-up records for a function: an array, or a tuple of arrays.")
    ] = None,
    unit: Annotated[
        int | None, typer.Option(help="Which array of the tuple holds the ids of persons; one person more or less.")
    ] = None,
    shape: Annotated[str | None, typer.Option("--input", help="Shape of one sample, such as 3x32x32.")] = None,
    integers: Annotated[bool, typer.Option("--integers", help="The input is whole numbers, such as tokens.")] = False,
    classes: Annotated[int | None, typer.Option(help="Classes of the made-up labels; the width of the output.")] = None,
    clipping: Annotated[str, typer.Option(help="The clipping rule of the made-up run.")] = "slack",
    json: Json = False,
) -> int:
    """Run on made-up records and on each neighbour, all releases frozen: does one record move more than the bound?

    Exit code 1 if one does. Nothing private is read. It shows violations, and does not prove that there is none.
    """
    from torch import nn

    from dpilot.audit.neighbours import neighbours
    from dpilot.audit.own_model import model_data, train_made_up
    from dpilot.audit.replay import audit_replays
    from dpilot.cli.doctor import made_up_sample

    found = load_object(model)
    made = found() if isinstance(found, type) and issubclass(found, nn.Module) else found
    if isinstance(made, nn.Module):
        run = train_made_up(lambda: made, clipping=clipping)
        records: Any = model_data(made, made_up_sample(made, shape, integers)[0], classes)
    elif data is None:
        raise InvalidInput(f"{model} is a function: expected --data MODULE:NAME, the made-up records it runs on.")
    else:
        run, records = found, load_object(data)
        records = records() if callable(records) else records
    return _show(audit_replays(run, neighbours(records, unit=unit)), {"model": model}, json=json)


@app.command("mechanism")
def audit_machine(
    samples: Annotated[int, typer.Option(help="Numbers drawn from each noise source.")] = 200_000,
    confidence: Annotated[float, typer.Option(help="With which a failure is no accident.")] = 0.999,
    json: Json = False,
) -> int:
    """Test the noise, the choices and the Poisson batches of this machine against the laws that are priced."""
    from dpilot.audit.mechanism import audit_mechanism

    return _show(audit_mechanism(samples=samples, confidence=confidence), {"confidence": confidence}, json=json)


@app.command("ledger")
def audit_books(
    ledger: Annotated[str, typer.Argument(help="A ledger: a file, or postgresql://...")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders on its data set.")] = None,
    json: Json = False,
) -> int:
    """Recompute every price by a second accountant, and look for what runs did in the ledger's rows."""
    from dpilot.audit.books import audit_ledger

    return _show(audit_ledger(ledger, runs or ()), {"ledger": ledger}, json=json)


def _show(checks: Sequence[Check], more: dict[str, Any], *, json: bool) -> int:
    from dpilot.audit.check import all_held, plain_checks

    held = all_held(checks)
    if json:
        console.json({"held": held, **more, "checks": plain_checks(checks)})
    else:
        words = {True: "held", False: "FAILED", None: "-"}
        rows = [[each.name, words[each.held], each.found] for each in checks]
        console.table("what was tried", ["what", "outcome", "found"], rows)
        failed = sum(each.held is False for each in checks)
        console.line("Nothing was found." if held else f"{failed} of {len(checks)} failed.")
    return 0 if held else FAILED
