"""Which line of the user's code runs at this moment: what a refusal should point at."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Final

import torch

_OURS: Final = str(Path(__file__).resolve().parents[2])
_TORCH: Final = str(Path(torch.__file__).resolve().parent)


def line_of_model() -> str:
    """The innermost line outside of torch and dpilot, with its file, number and text; empty if there is none.

    Where only torch's own modules run, the innermost one is named.
    """
    frame: FrameType | None = sys._getframe(1)
    inside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH) and not inside and frame.f_code.co_name == "forward" and "self" in frame.f_locals:
            inside = f"{type(frame.f_locals['self']).__name__}, "
        if not file.startswith((_TORCH, _OURS)):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"{inside}{Path(file).name}:{frame.f_lineno}: {text}" if text else inside.removesuffix(", ")
        if file.startswith(_OURS) and frame.f_code.co_name == "losses":  # the call of model and loss: ours from here
            break
        frame = frame.f_back
    return inside.removesuffix(", ")
