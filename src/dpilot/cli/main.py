"""The command line: one file a command, loaded when it is asked for.

Exit codes: 0 done, 2 wrong usage or bad input, 3 budget refused. An error is one line: value, rule, remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from dpilot.cli import account, console, demo, ledger, plan
from dpilot.errors import BudgetExceeded, DpilotError

app = typer.Typer(
    name="dpilot",
    help="Train models under differential privacy, tuned inside one privacy budget.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("plan")(plan.plan)
app.command("account")(account.account)
app.command("demo")(demo.demo)
app.add_typer(ledger.app, name="ledger")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="dpilot", standalone_mode=False)
    except BudgetExceeded as problem:
        console.fail(str(problem))
        return 3
    except DpilotError as problem:
        console.fail(str(problem))
        return 2
    except Exception as problem:
        return _usage(problem)
    return result if isinstance(result, int) else 0


def _usage(problem: Exception) -> int:
    """One line for what the parser refuses; anything else is ours and is shown in full."""
    message = getattr(problem, "format_message", None)
    if message is None:
        raise problem
    console.fail(f"{message()} See dpilot --help." if message() else "no command given. See dpilot --help.")
    return 2


if __name__ == "__main__":
    sys.exit(main())
