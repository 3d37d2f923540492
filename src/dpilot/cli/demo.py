"""``dpilot demo``: a plan with its plot, one private release, and its receipt, on made-up records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpilot.cli import console

if TYPE_CHECKING:
    from dpilot import Ledger

SIZE = 1_000


def demo(
    folder: Annotated[Path, typer.Option(help="Where the plot and the ledger go.")] = Path("out/demo"),
) -> None:
    """Plan a run for free, release one private mean, and show what the ledger says of it."""
    from dpilot import Budget, Ledger
    from dpilot.cli.plan import plan
    from dpilot.privacy import default_delta

    folder.mkdir(parents=True, exist_ok=True)
    console.line("1. A plan: declared numbers only, nothing is read and nothing is spent.\n")
    plan(size=50_000, epochs=8, epsilon=[0.5, 8.0], delta=1e-5, plot=str(folder / "plan.png"))
    console.line("2. A private mean of 1,000 made-up ages, declared to lie in [0, 100].\n")
    path = folder / "toy.ledger"
    path.unlink(missing_ok=True)  # made-up records may be spent again at every demo; yours may not
    ledger = Ledger.open(path, dataset="made-up ages", budget=Budget(1.0, default_delta(SIZE)))
    _release(ledger)
    console.line("3. The receipt, on disk before the first record was read.\n")
    console.table(
        f"{path}: data set {ledger.dataset!r}",
        ["entry", "purpose", "event", "epsilon", "delta", "state"],
        [[e.seq, e.purpose, str(e.event), e.cost.epsilon, e.cost.delta, e.state] for e in ledger.entries()],
    )
    left = ledger.remaining()
    console.line(f"Left of the budget: epsilon {left.epsilon:.3f}. Look again with: dpilot ledger show {path}")


def _release(ledger: Ledger) -> None:
    import numpy as np

    from dpilot import statistics

    ages = np.random.default_rng(0).normal(44, 18, SIZE)
    noise_multiplier = 12.0
    with ledger.reserve(statistics.mean_event(noise_multiplier), purpose="mean age") as receipt:
        domain = statistics.Box(0.0, 100.0)
        (noisy,) = statistics.mean(ages, domain=domain, size=SIZE, noise_multiplier=noise_multiplier, receipt=receipt)
    exact = ages.clip(0, 100).mean()
    spread = noise_multiplier * domain.bound(1) / SIZE
    console.line(f"released {noisy:.2f}, noise of standard deviation {spread:.2f}")
    console.line(f"(the exact mean is {exact:.2f}: shown here because nobody was asked for these ages)\n")
