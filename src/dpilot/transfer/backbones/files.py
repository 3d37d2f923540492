"""Reading stored weights: tensors only, and only those that a definition expects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from dpilot.errors import InvalidInput

VARIABLE: Final = "DPILOT_WEIGHTS"


def weights_folder() -> Path:
    """The folder that DPILOT_WEIGHTS names."""
    if not os.environ.get(VARIABLE):
        raise InvalidInput(f"{VARIABLE} is not set: expected the folder of pretrained weights, or give folder=.")
    return Path(os.environ[VARIABLE])


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a state dict that torch.save wrote; never anything executable."""
    if not path.is_file():
        raise InvalidInput(f"no file {path.name!r} in {str(path.parent)!r}: expected the weights there. Give folder=.")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:
        raise InvalidInput(f"{path.name} is not a state dict of tensors alone ({problem}): expected one.") from None
    if not isinstance(stored, Mapping) or not all(isinstance(value, Tensor) for value in stored.values()):
        raise InvalidInput(f"{path.name} holds a {type(stored).__name__}: expected a state dict of tensors.")
    return dict(stored)


def fill(model: nn.Module, tensors: Mapping[str, Tensor], source: str, *, unused: tuple[str, ...] = ()) -> nn.Module:
    """Copy the tensors into a model whose definition has just these names and shapes; in evaluation mode.

    Halves become the model's floats. Names in ``unused`` may be in the file without being in the model.

    Example:
        >>> fill(nn.Linear(2, 1), {"weight": torch.ones(1, 3)}, "file")
        Traceback (most recent call last):
        dpilot.errors.InvalidInput: file does not fit Linear: missing bias; weight is (1, 3), expected (1, 2). Expected
        the weights of this very architecture.
    """
    wanted = model.state_dict()
    given = {name: tensor for name, tensor in tensors.items() if name in wanted or name not in unused}
    faults = [f"missing {name}" for name in wanted if name not in given]
    faults += [f"unknown {name}" for name in given if name not in wanted]
    faults += [
        f"{name} is {tuple(given[name].shape)}, expected {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in given and given[name].shape != value.shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise InvalidInput(
            f"{source} does not fit {type(model).__name__}: {'; '.join(faults[:5])}{more}. "
            "Expected the weights of this very architecture."
        )
    model.load_state_dict({name: given[name].to(value.dtype) for name, value in wanted.items()})
    return model.eval()
