"""``dpilot account``: epsilon from a noise multiplier, or a noise multiplier from a budget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpilot.cli import console
from dpilot.errors import InvalidInput


def account(
    steps: Annotated[int, typer.Option(help="Number of steps.")],
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise multiplier; gives epsilon.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Total epsilon; gives the noise multiplier.")] = None,
    delta: Annotated[float | None, typer.Option(help="delta; without it min(1e-5, 1/(10 size)).")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="Chance of each record to be in a batch.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size; with --size, instead of a rate.")] = None,
    size: Annotated[int | None, typer.Option(help="Number of records, declared.")] = None,
    allow_large_delta: Annotated[bool, typer.Option(help="Accept delta >= 1/size, which protects little.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Epsilon from (noise multiplier, rate, steps), or the noise multiplier from a budget."""
    from dpilot.privacy import Budget, check_delta, default_delta

    rate = _rate(sample_rate, batch_size, size)
    chosen = default_delta(size) if delta is None else delta
    remark = None if size is None else check_delta(chosen, size, allow_large=allow_large_delta)
    if noise_multiplier is not None and epsilon is None:
        result = _epsilons(noise_multiplier, rate, steps, chosen)
    elif epsilon is not None and noise_multiplier is None:
        result = _noise(Budget(epsilon, chosen), rate, steps)
    else:
        raise InvalidInput("expected one of --noise-multiplier (gives epsilon) and --epsilon (gives the noise).")
    if json:
        console.json(result)
    else:
        console.table("Cost of the run, one record added or removed", ["what", "value"], list(result.items()))
    if remark:
        console.note(remark)


def _rate(sample_rate: float | None, batch_size: int | None, size: int | None) -> float:
    from dpilot import _validate

    if sample_rate is not None and batch_size is None:
        return _validate.rate("It is batch_size / size.", sample_rate=sample_rate)
    if sample_rate is None and batch_size is not None and size is not None:
        count = _validate.count(size=size)
        batch = _validate.count(batch_size=batch_size)
        if batch > count:
            _validate.refuse("batch_size", batch, f"at most the size, {count}", "Lower it.")
        return batch / count
    raise InvalidInput("expected either --sample-rate, or --batch-size with --size.")


def _epsilons(noise_multiplier: float, rate: float, steps: int, delta: float) -> dict[str, Any]:
    from dpilot import privacy

    names = ["pld", "rdp", *(["gdp"] if rate == 1 else [])]
    result: dict[str, Any] = {"noise_multiplier": noise_multiplier, "sample_rate": rate, "steps": steps, "delta": delta}
    for name in names:
        value = privacy.epsilon(
            noise_multiplier=noise_multiplier, sample_rate=rate, steps=steps, delta=delta, accountant=name
        )
        result["epsilon" if name == "pld" else f"epsilon_{name}"] = value
    return result


def _noise(budget: Any, rate: float, steps: int) -> dict[str, Any]:
    from dpilot import privacy

    sigma = privacy.noise_multiplier(budget, sample_rate=rate, steps=steps)
    return {"epsilon_target": budget.epsilon, **_epsilons(sigma, rate, steps, budget.delta)}
