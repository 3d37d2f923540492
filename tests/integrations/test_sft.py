"""Records for supervised fine-tuning: what is learned of a row, from the row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpilot.integrations.sft import SFTDataset


class Letters:
    """A tokenizer of single letters; "ab" is one token, as where tokens merge."""

    pad_token_id, eos_token, eos_token_id = None, "$", ord("$")

    def __call__(self, text: str, *, verbose: bool) -> dict[str, list[int]]:
        assert not verbose  # a warning would tell the length of one record
        return {"input_ids": [ord(each) for each in text.replace("ab", "#")]}

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool, **how: Any) -> dict[str, list[int]]:
        text = "".join(f"{each['role'][0]}{each['content']}" for each in messages)
        return self(text + ("r" if add_generation_prompt else ""), **how["tokenizer_kwargs"])


def learned(row: Any, length: int = 8) -> str:
    record = SFTDataset([row], Letters(), length)[0]
    assert {len(each) for each in record.values()} == {length}
    assert torch.equal(record["labels"] != -100, (record["labels"] == record["input_ids"]) & (record["labels"] >= 0))
    assert not (record["labels"][record["attention_mask"] == 0] != -100).any()
    return "".join(chr(each) for each in record["labels"].tolist() if each >= 0)


def test_what_is_learned_of_each_format() -> None:
    assert learned({"text": "xyz"}) == "xyz$"
    assert learned({"prompt": "xy", "completion": "z"}) == "z$"
    assert (
        learned({"prompt": "xa", "completion": "bz"}) == "#z$"
    )  # the tokens of the prompt merge with the completion's
    turns = [{"role": "q", "content": "x"}], [{"role": "r", "content": "y"}]
    assert learned({"messages": turns[0] + turns[1]}) == "qxry"
    assert learned({"prompt": turns[0], "completion": turns[1]}) == "y"
    assert learned({"text": "x" * 20}) == "x" * 8
    assert learned({"prompt": "x" * 20, "completion": "y"}) == ""


def test_a_row_is_read_when_it_is_asked_for_and_by_itself() -> None:
    class Rows(list[Any]):
        reads: list[int] = []  # noqa: RUF012

        def __getitem__(self, index: Any) -> Any:
            self.reads.append(index)
            return super().__getitem__(index)

    data = SFTDataset(Rows([{"text": "a"}, {"other": 1}]), Letters(), 4)
    assert len(data) == 2
    assert not Rows.reads
    assert data[0]["input_ids"].tolist()[0] == ord("a")
    with pytest.raises(KeyError):
        data[1]
    assert Rows.reads == [0, 1]
