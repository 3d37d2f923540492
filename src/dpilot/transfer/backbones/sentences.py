"""A backbone for text: strings in, features out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import _validate
from dpilot.sampling import blocks

_STEP: Final = 16
_LEAST: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class TextBackbone:
    """A pretrained encoder of text with its tokenizer.

    Guarantee:
        The features of a text are a function of that text alone: it is padded by its own length, never to the longest
        text of a batch, and read in blocks whose sizes follow from its place among texts of its length.
    """

    name: str
    model: nn.Module
    width: int
    length: int
    tokenizer: Any

    @property
    def preprocessing(self) -> str:
        """What is done to a text before the network sees it, and to what it says."""
        return f"the first {self.length} tokens; features are their mean, scaled to length 1"

    def features(self, texts: Sequence[str], *, chunk: int = 64) -> Tensor:
        """The mean of each text's last hidden states, scaled to length 1: (n, width) float32 on the CPU.

        Texts of about one length are read ``chunk`` at a time. The model is put in evaluation mode for it, and back.

        Edge cases:
            not a string, one that is no Unicode text, or has no token    features that are not a number, silently: the
                                                                          null record
        """
        step, before = _validate.count(chunk=chunk), self.model.training
        values = torch.full((len(texts), self.width), torch.nan)
        self.model.eval()
        try:
            with torch.inference_mode():
                for padded, rows in self._by_length(texts).items():
                    for start, size in blocks(len(rows), min(_LEAST, step), step):
                        part = rows[start : start + size]
                        tokens = [ids for _, ids in part] + [part[0][1]] * (size - len(part))
                        values[[place for place, _ in part]] = self._read(tokens, padded)[: len(part)]
        finally:
            self.model.train(before)
        return values

    def _by_length(self, texts: Sequence[str]) -> dict[int, list[tuple[int, list[int]]]]:
        """Place and tokens of each text, by the length it is padded to."""
        found = [(place, text) for place, text in enumerate(texts) if _is_text(text)]
        places, strings = [place for place, _ in found], [text for _, text in found]
        tokens = self.tokenizer(strings, truncation=True, max_length=self.length)["input_ids"] if strings else []
        groups: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for place, ids in zip(places, tokens, strict=True):
            if ids:
                groups[min(-(-len(ids) // _STEP) * _STEP, self.length)].append((place, ids))
        return groups

    def _read(self, rows: list[list[int]], padded: int) -> Tensor:
        device = next(self.model.parameters()).device
        ids = torch.tensor([row + [0] * (padded - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (padded - len(row)) for row in rows], device=device)
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(mean, dim=1).cpu()


def _is_text(value: object) -> bool:
    """Whether a tokenizer takes a value: half of a surrogate pair, which Python's strings may hold, makes it raise."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
