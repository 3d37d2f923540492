"""Everything that can be wrong with model, loss, device and options, found before anything is spent."""

from __future__ import annotations

import torch
from torch import nn

from dpilot import _validate, engine
from dpilot.errors import InvalidInput, UnsupportedModel
from dpilot.train.optimizers import remembers
from dpilot.train.options import Options
from dpilot.train.plan import Plan


def check_plan(plan: object) -> None:
    """Refuse what is not a plan."""
    if not isinstance(plan, Plan):
        raise InvalidInput(f"plan is a {type(plan).__name__}: expected a Plan, such as Plan.calibrate(...) makes.")


def check_model(model: object) -> None:
    """Raise one error that lists every problem of the model, each with its remedy."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is a {type(model).__name__}: expected a torch.nn.Module.")
    if problems := engine.check(model):
        raise UnsupportedModel(f"{len(problems)} problem(s). " + " ".join(str(problem) for problem in problems))


def check_loss(loss_fn: object) -> None:
    """Refuse a loss that says of itself that it adds up the samples."""
    if not callable(loss_fn):
        raise InvalidInput(f"loss_fn is a {type(loss_fn).__name__}: expected a callable.")
    reduction = getattr(loss_fn, "reduction", "none")
    if reduction != "none":
        _validate.refuse("the loss's reduction", reduction, "'none', one loss a sample", 'Use reduction="none".')


def check_together(options: Options, optimizer: torch.optim.Optimizer, *, two_passes: bool) -> None:
    """Refuse options that contradict each other."""
    if options.free_step and not remembers(optimizer):
        raise InvalidInput('free_step is True without a momentum to step along: use optimizer="momentum".')
    if options.amp and two_passes:
        raise InvalidInput("amp and low_memory are both on: expected one, so that both passes compute the same.")


def placed(model: nn.Module, device: str | None) -> torch.device:
    """Move the model where it shall train, in place, and say where that is; by default it stays where it is."""
    if device is None:
        return next(model.parameters()).device
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise InvalidInput(f"device is {device!r}: expected one of torch's, such as 'cpu' or 'cuda'.") from None
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device is {device!r}, but no CUDA device is there: use device='cpu', or leave it out.")
    model.to(wanted)
    return next(model.parameters()).device
