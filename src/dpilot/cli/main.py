"""The command line: one file a command, loaded when it is asked for.

Exit codes: 0 done, 2 wrong usage or bad input, 3 budget refused, 4 stopped by the health of the data or for want of
classes, 130 interrupted. An error is one line: value, rule, remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import typer

from dpilot import __version__
from dpilot.cli import (
    account,
    audit,
    card,
    compare,
    console,
    demo,
    doctor,
    fit,
    forecast,
    ledger,
    plan,
    predict,
    report,
    schema,
    verify,
)
from dpilot.errors import BudgetExceeded, DpilotError

app = typer.Typer(
    name="dpilot",
    help="Train models under differential privacy, tuned inside one privacy budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        console.line(f"dpilot {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train models under differential privacy, tuned inside one privacy budget."""


app.command("plan")(plan.plan)
app.command("account")(account.account)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("sign")(verify.sign)
app.command("verify")(verify.verify)
app.add_typer(verify.keys, name="key")
app.command("compare")(compare.compare)
app.command("forecast")(forecast.forecast)
app.command("card")(card.card)
app.add_typer(audit.app, name="audit")
app.add_typer(ledger.app, name="ledger")
app.add_typer(schema.app, name="schema")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    try:
        result = command.main(args=given, prog_name="dpilot", standalone_mode=False)
    except DpilotError as problem:
        console.fail(" ".join([str(problem), *getattr(problem, "__notes__", ())]))
        return 3 if isinstance(problem, BudgetExceeded) else 2
    except Exception as problem:
        return _usage(problem, given)
    return result if isinstance(result, int) else 0


def _usage(problem: Exception, given: list[str]) -> int:
    """One line for what the parser refuses, the value named; anything else is ours and is shown in full."""
    message = getattr(problem, "format_message", None)
    if message is None:
        raise problem
    if type(problem).__name__ == "NoArgsIsHelpError":
        console.line(message())
        return 2
    options = getattr(getattr(problem, "param", None), "opts", [])
    values = [value for option, value in pairwise(given) if option in options]
    values += [text.partition("=")[2] for text in given if text.partition("=")[0] in options and "=" in text]
    value = f" (given: {', '.join(map(repr, values))})" if values else ""
    console.fail(f"{message().rstrip('.') or 'no command was given'}{value}. See dpilot --help.")
    return 2


if __name__ == "__main__":
    sys.exit(main())
