"""``dpilot plan``: what a run would look like and cost. Reads no data, spends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    from dpilot.privacy import BatchAdvice


def plan(
    size: Annotated[int, typer.Option(help="Number of records, declared.")],
    epochs: Annotated[float, typer.Option(help="Passes over the records, on average.")],
    epsilon: Annotated[list[float], typer.Option(help="Total epsilon; may be repeated, one line each.")],
    delta: Annotated[float | None, typer.Option(help="Total delta; without it min(1e-5, 1/(10 size)).")] = None,
    min_steps: Annotated[int, typer.Option(help="Fewest steps a run should have.")] = 20,
    tolerance: Annotated[float, typer.Option(help="How far above the least noise still counts as flat.")] = 0.1,
    plot: Annotated[str, typer.Option(help="Draw the plot to this .png, .svg or .pdf file.")] = "",
    allow_large_delta: Annotated[bool, typer.Option(help="Accept delta >= 1/size, which protects little.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Batch size, steps and noise for a budget, with the reason, and a plot where asked. Free: needs no data."""
    from dpilot.privacy import Budget, batch_rule

    budgets = [Budget.of_size(value, delta, size, allow_large_delta=allow_large_delta) for value in epsilon]
    remark = budgets[0].check_size(size)
    advices = [
        batch_rule(budget, size=size, epochs=epochs, min_steps=min_steps, tolerance=tolerance) for budget in budgets
    ]
    if json:
        console.json([advice.to_dict() for advice in advices])
    else:
        for advice in advices:
            _show(advice, given=delta is not None)
    if remark:
        console.note(remark)
    if plot:
        _draw(advices, plot)


def _show(advice: BatchAdvice, *, given: bool) -> None:
    budget = advice.budget
    source = "" if given else " (the default, min(1e-5, 1/(10 size)))"
    total = f"epsilon {budget.epsilon:g}, delta {budget.delta:g}{source}"
    console.table(
        f"{advice.size:,} records, {advice.epochs:g} epochs, {total}",
        ["batch size", "steps", "noise multiplier", "cumulative noise", "effective noise", ""],
        [
            [
                row.batch_size,
                row.steps,
                row.noise_multiplier,
                row.cumulative_noise,
                row.effective_noise,
                "<- recommended" if row.batch_size == advice.batch_size else "",
            ]
            for row in advice.table
        ],
    )
    console.line(f"Recommended: {advice.reason}.")
    for finding in advice.findings:
        console.line(f"- {finding}")
    console.line()


def _draw(advices: list[BatchAdvice], plot: str) -> None:
    from dpilot.errors import InvalidInput
    from dpilot.report.plots import batch_plot

    try:
        written = batch_plot(advices, plot)
    except InvalidInput:  # the package that draws is missing
        raise
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"plot is {plot!r}: expected a writable .png, .svg or .pdf path ({problem}).") from None
    console.note(f"plot written to {written}")
