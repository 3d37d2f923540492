"""A tiny sentence encoder, made on the spot and saved as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = ["the", "film", "was", "good", "bad", "fine", "great", "poor", "dull", "a", "of", "word"]


def save_encoder(folder: Path, *, seed: int = 0, width: int = 8, places: int = 64) -> Path:
    """A BERT of one layer with random weights and a vocabulary of a dozen words."""
    import tokenizers
    import transformers

    vocabulary = {each: code for code, each in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=width, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=2 * width, max_position_embeddings=places,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformers.BertModel(config).save_pretrained(folder)
    return folder
