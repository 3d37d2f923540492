"""Networks for text: an average of word embeddings, and a recurrent network over characters.

Number 0 is padding, and only a record's own tokens count: how far a batch was padded, which is a matter of the other
records, changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class AverageOfWords(nn.Module):
    """The mean of a text's 16-d embeddings, and two linear layers: 464,242 parameters with 28,996 words.

    Reference: Zou et al. 2026, appendix A ("IMDB-MLP", a deep averaging network); 28,996 words are those of the cased
    BERT tokenizer in the code that goes with it, and of the IMDB example of Opacus.
    """

    def __init__(self, vocabulary: int = 28_996, width: int = 16, classes: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        own = (ids != 0).unsqueeze(-1)
        mean = (self.words(ids) * own).sum(1) / own.sum(1).clamp_min(1)
        return self.head(functional.relu(self.hidden(mean)))  # type: ignore[no-any-return]


class CharacterLSTM(nn.Module):
    """128-d character embeddings, an LSTM of 128, and a linear layer on its last own step.

    141,970 parameters with 59 characters (the 57 of the PyTorch tutorial on names, padding and unknown) and 18 classes.

    Reference: Zou et al. 2026, appendix A ("Char-RNN"); the hidden size is that of the code that goes with it.
    """

    def __init__(self, vocabulary: int = 59, width: int = 128, hidden: int = 128, classes: int = 18) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        last = (ids != 0).sum(1).clamp_min(1) - 1
        steps, _ = self.encoder(self.characters(ids))
        return self.head(steps[torch.arange(len(ids), device=ids.device), last])  # type: ignore[no-any-return]
