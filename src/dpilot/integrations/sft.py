"""Records for supervised fine-tuning, in the formats of TRL: texts, prompts with completions, conversations.

::

    from trl import SFTConfig                                       # or TrainingArguments: TRL itself is not needed
    from dpilot.integrations.hf import PrivateTrainer
    from dpilot.integrations.sft import SFTDataset

    records = SFTDataset(rows, tokenizer, max_length=256)           # rows: {"prompt": .., "completion": ..}, ...
    PrivateTrainer(model, SFTConfig("out", ...), train_dataset=records, budget=Budget(3.0, 1e-5)).train()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpilot import _validate
from dpilot.train.sequences import IGNORED

__all__ = ["SFTDataset"]

_QUIET: Final = {"verbose": False}  # a tokenizer warns of a long record, with its exact number of tokens


class SFTDataset(Dataset[dict[str, Tensor]]):
    """One record a row, tokenized by itself as it is read, padded and cut to ``max_length``.

    ::

        {"text": ..}                          all its tokens are learned
        {"messages": [{"role": .., ..}, ..]}  the same, through the tokenizer's chat template
        {"prompt": .., "completion": ..}      the completion's tokens are learned, texts or messages both

    Guarantee:
        A record is a function of its row alone, and is not read before it is asked for. Nothing is packed: two rows
        never lie in one record.

    Edge cases:
        longer than ``max_length``             cut at its end
        a row that is none of these, or fails  raises as it is read: a null record in training
        a tokenizer without a padding token    pads with its end of text, masked
    """

    def __init__(self, rows: Sequence[Any], tokenizer: Any, max_length: int) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._length = _validate.count(max_length=max_length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        prompt, ids = self._tokens(self._rows[index])
        ids = ids[: self._length]
        filler, missing = self._tokenizer.pad_token_id, self._length - len(ids)
        filler = self._tokenizer.eos_token_id if filler is None else filler
        learned = [IGNORED] * min(prompt, len(ids)) + ids[prompt:]
        return {
            "input_ids": torch.tensor(ids + [filler] * missing),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * missing),
            "labels": torch.tensor(learned + [IGNORED] * missing),
        }

    def _tokens(self, row: Any) -> tuple[int, list[int]]:
        """How many tokens are not learned, and all of them."""
        if "prompt" not in row:
            return 0, self._encode(row["messages"] if "messages" in row else row["text"], ends=True)
        prompt, whole = (
            self._encode(row["prompt"], answers=True),
            self._encode(row["prompt"] + row["completion"], ends=True),
        )
        shared = 0  # tokens may merge where the completion begins
        while shared < min(len(prompt), len(whole)) and prompt[shared] == whole[shared]:
            shared += 1
        return shared, whole

    def _encode(self, part: Any, *, ends: bool = False, answers: bool = False) -> list[int]:
        """A text, or messages through the chat template; a text that ``ends`` has its end marked."""
        if not isinstance(part, str):
            how = {"tokenize": True, "return_dict": True, "add_generation_prompt": answers, "tokenizer_kwargs": _QUIET}
            return list(self._tokenizer.apply_chat_template(part, **how)["input_ids"])
        end = self._tokenizer.eos_token or ""
        return list(self._tokenizer(part + end if ends and not part.endswith(end) else part, **_QUIET)["input_ids"])
