"""An image model in a folder, as transformers saves it: a vision transformer, a ResNet, a ConvNeXt."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dpilot.errors import InvalidInput
from dpilot.transfer.backbones.images import ImageBackbone

_HALF: Final = (0.5, 0.5, 0.5)


def load(folder: Path, *, side: int | None = None) -> ImageBackbone:
    """The model of ``config.json`` and ``model.safetensors``; nothing is downloaded, and no code of the folder runs.

    Its features are the mean of what its last layer says, over tokens or over places. Images are resized to the side
    that ``preprocessor_config.json`` names (or the model's own, or ``side``), and scaled by its mean and deviation.

    Edge cases:
        A weight that is not in the file is refused: it would be drawn anew each time. A pooling layer on top is not
        looked at, and may be missing.
    """
    try:
        import transformers
    except ImportError:
        raise InvalidInput(f"the backbone {str(folder)!r} needs transformers: install dpilot[transfer].") from None
    try:
        model, found = transformers.AutoModel.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError) as problem:
        raise InvalidInput(
            f"the backbone is {str(folder)!r}: expected a folder with config.json and model.safetensors of an image "
            f"model ({' '.join(str(problem).split())[:200]})."
        ) from None
    absent = sorted(name for name in found["missing_keys"] if not name.startswith("pooler"))
    if absent or "pixel_values" not in (model.main_input_name,):
        wrong = f"{absent[0]} is not in its file" if absent else f"it reads {model.main_input_name}"
        raise InvalidInput(f"the backbone {str(folder)!r} cannot be used ({wrong}): expected an image model, whole.")
    how = _preprocessing(folder)
    size = side or _side(how.get("size")) or _side(getattr(model.config, "image_size", None)) or 224
    mean, scale = (tuple(map(float, how.get(key) or _HALF)) for key in ("image_mean", "image_std"))
    hidden = partial(_hidden, model.eval())
    with torch.no_grad():
        width = int(hidden(torch.zeros(1, 3, size, size)).shape[1])
    return ImageBackbone(folder.name, model, width, size, mean, scale, hidden)  # type: ignore[arg-type]


def _hidden(model: Any, images: Tensor) -> Tensor:
    last: Tensor = model(pixel_values=images).last_hidden_state
    return last.mean(1) if last.dim() == 3 else last.mean((2, 3))


def _preprocessing(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _side(size: Any) -> int | None:
    """The pixels a side, of the forms in which such files say it."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    if isinstance(size, list | tuple) and size:
        size = size[0]
    return size if isinstance(size, int) and size > 0 else None
