"""``dpilot doctor MODULE:MODEL``: every layer, every problem, every remedy. Nothing private is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpilot.cli import console
from dpilot.cli.named import load_object
from dpilot.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpilot.engine import Problem

_SIDE, _LENGTH, _TIMED = 32, 8, 16


def doctor(
    model: Annotated[str, typer.Argument(help="MODULE:MODEL, a module, a class or a function without arguments.")],
    shape: Annotated[
        str | None, typer.Option("--input", help="Shape of one sample, such as 3x32x32; guessed if left out.")
    ] = None,
    integers: Annotated[bool, typer.Option("--integers", help="The input is whole numbers, such as tokens.")] = False,
    size: Annotated[int | None, typer.Option(help="Declared number of records: says whether noise drowns it.")] = None,
    epsilon: Annotated[float, typer.Option(help="What the run may cost, with --size.")] = 1.0,
    batch_size: Annotated[float | None, typer.Option(help="Expected batch, with --size; without it a tenth.")] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the records, with --size.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check a model layer by layer, then numerically on made-up samples. Exit code 2 if there is a problem.

    Also what would train nothing, in silence: parameters that cannot move and, with --size, noise that drowns all.
    """
    from dpilot import engine

    module = _load(model)
    sample, how = made_up_sample(module, shape, integers)
    problems = engine.check(module) or engine.self_check(module, _loss, (sample, sample.new_zeros(1)))
    rows, way = _rows(module, problems), None if problems else _measure_engine(module, sample)
    silent = [] if problems else _silent(module, sample, size, epsilon, batch_size, epochs)
    if json:
        told = {"model": model, "input": how, "ready": not problems, "engine": way, "silent": silent, "layers": rows}
        console.json(told)
    else:
        console.table(
            f"{model} on {how}", ["layer", "kind", "trained", "problem", "remedy"], [list(row.values()) for row in rows]
        )
        console.line("Ready for private training." if not problems else f"{len(problems)} problem(s) found.")
        if way is not None:
            console.line(f"Engine: {way['name']} ({way['reason']}), {way['times_plain']} times a plain step here.")
        if way is not None and way["name"] != "single-backward":
            console.line("Records are computed one by one: change the line above, if you can, to have them together.")
        for sentence in silent:
            console.note(f"this model may learn nothing: {sentence}")
    return 2 if problems else 0


def _measure_engine(model: nn.Module, sample: Tensor) -> dict[str, Any]:
    """The engine that would train the model, why, and what it costs beside a plain step, on made-up samples."""
    import torch

    from dpilot import engine

    shape = (_TIMED, *sample.shape[1:])
    whole = sample.dtype == torch.long
    x = torch.randint(0, 2, shape) if whole else torch.randn(shape, dtype=sample.dtype)
    batch = (x, torch.zeros(_TIMED))

    def private() -> engine.PerSample:
        gradients = engine.per_sample(model, _loss, batch)
        gradients.weighted_sum(torch.ones_like(gradients.norms))
        return gradients

    def plain() -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        torch.autograd.grad(_loss(model(x), batch[1]).sum(), trained, allow_unused=True)

    gradients = private()
    times = [_seconds(private) / max(_seconds(plain), 1e-9) for _ in range(3)]
    return {"name": gradients.engine, "reason": gradients.reason, "times_plain": round(sorted(times)[1], 1)}


def _silent(
    model: nn.Module, sample: Tensor, size: int | None, epsilon: float, batch_size: float | None, epochs: float
) -> list[str]:
    """What would train nothing, from made-up samples and declared numbers."""
    from functools import partial

    from dpilot.engine.api import per_sample
    from dpilot.privacy.budget import Budget, default_delta
    from dpilot.train.dry_run import squares, synthetic_records
    from dpilot.train.plan import Plan
    from dpilot.train.silent import TRIED, Outlook, still_parameters, what_moves
    from dpilot.train.step import count_trained

    made_up = synthetic_records((sample, sample.new_zeros(1).float()), TRIED, per_batch=False)
    gradients = partial(per_sample, model, _loss)
    found = list(what_moves(model, still_parameters(model, lambda: squares(gradients, made_up, model))))
    if size is None:
        return found
    plan = Plan.calibrate(
        Budget(epsilon, default_delta(size)), size=size, batch_size=batch_size or max(1, size / 10), epochs=epochs
    )
    outlook = Outlook.of(plan, count_trained(model))
    return [*found, outlook.sentence()] if outlook.hopeless else found


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _load(name: str) -> nn.Module:
    from torch import nn

    found = load_object(name)
    try:
        module = found if isinstance(found, nn.Module) else found()
    except TypeError as problem:
        raise InvalidInput(
            f"model is {name!r}: it cannot be loaded ({problem}). Give what needs no arguments."
        ) from None
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"model is a {type(module).__name__}: expected a torch.nn.Module.")
    return module


def made_up_sample(model: nn.Module, shape: str | None, integers: bool) -> tuple[Tensor, str]:
    """One made-up sample of the given or the guessed shape, and how to say so."""
    import torch

    sizes, whole = _parse(shape), integers
    if sizes is None:
        sizes, guessed = _guess(model)
        whole = integers or guessed
    kind = torch.long if whole else next((p.dtype for p in model.parameters()), torch.float32)
    words = "x".join(map(str, sizes)) + (" whole numbers" if whole else " numbers")
    return torch.zeros(1, *sizes, dtype=kind), words + ("" if shape else " (guessed)")


def _parse(shape: str | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    try:
        sizes = tuple(int(size) for size in shape.lower().split("x"))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise InvalidInput(f"input is {shape!r}: expected sizes like 784 or 3x32x32, without the batch.")
    return sizes


def _guess(model: nn.Module) -> tuple[tuple[int, ...], bool]:
    """The shape of a sample from the first layer that says something about it, and whether it is whole numbers."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return (_LENGTH,), True
        if isinstance(module, nn.Linear):
            return (module.in_features,), False
        if isinstance(module, nn.LSTM | nn.GRU | nn.RNN):
            return (_LENGTH, module.input_size), False
        for dimensions, kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), start=1):
            if isinstance(module, kind):
                return (module.in_channels, *[_SIDE] * dimensions), False
    raise InvalidInput("the shape of a sample cannot be guessed from the layers. Give it with --input.")


def _loss(output: Any, _: Tensor) -> Tensor:
    """A loss that any output has: half its squared length."""
    import torch

    first = output if isinstance(output, torch.Tensor) else next(iter(_tensors(output)))
    half: Tensor = first.float().flatten(1).square().sum(1) / 2
    return half


def _tensors(output: Any) -> list[Tensor]:
    import torch

    values = output.values() if hasattr(output, "values") else output
    return [value for value in values if isinstance(value, torch.Tensor)]


def _rows(model: nn.Module, problems: list[Problem]) -> list[dict[str, Any]]:
    """A row for every layer that trains something or has a problem."""
    by_layer = {problem.where.split(" (")[0]: problem for problem in problems}
    rows = []
    for name, module in model.named_modules():
        trained = sum(p.numel() for p in module.parameters(recurse=False) if p.requires_grad)
        problem = by_layer.pop(name or "model", None)
        if trained or problem:
            rows.append(_row(name or "model", type(module).__name__, trained, problem))
    return rows + [_row(where, "", 0, problem) for where, problem in by_layer.items()]


def _row(layer: str, kind: str, trained: int, problem: Problem | None) -> dict[str, Any]:
    return {
        "layer": layer,
        "kind": kind,
        "trained": trained,
        "problem": problem.what if problem else "",
        "remedy": problem.remedy if problem else "",
    }
