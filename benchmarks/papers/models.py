"""The models of the papers by name, and who measures a cell of each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from torch import Tensor, nn

from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Figures


class Recurrent(nn.Module):
    """Letters, an LSTM, and a linear layer on its last step."""

    def __init__(self, letters: int, classes: int, width: int = 128) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.steps = nn.LSTM(width, width, batch_first=True)
        self.classes = nn.Linear(width, classes)

    def forward(self, names: Tensor) -> Tensor:
        return self.classes(self.steps(self.letters(names))[0][:, -1])  # type: ignore[no-any-return]


class MeanOfWords(nn.Module):
    """The mean of a text's word vectors, and two linear layers."""

    def __init__(self, words: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, texts: Tensor) -> Tensor:
        known = (texts != 0).float()
        mean = self.words(texts).sum(1) / known.sum(1, keepdim=True).clamp_min(1.0)
        return self.last(self.first(mean).relu())  # type: ignore[no-any-return]


def cnn_2(inputs: Tensor, classes: int) -> nn.Module:
    """LeNet-style, 26,010 parameters: Papernot et al. 2021, used by Zou et al."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, classes)),
    )


def cnn_4(inputs: Tensor, classes: int) -> nn.Module:
    """Four convolutions, average pooling, global average pooling: Zou et al. for CIFAR-10."""
    widths = (3, 32, 64, 64)
    blocks = [
        layer
        for a, b in zip(widths, widths[1:], strict=False)
        for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2))
    ]
    return nn.Sequential(
        *blocks,
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def two_layer_cnn(inputs: Tensor, classes: int) -> nn.Module:
    """Two convolutions of 64 filters, three linear layers: Zhao et al., A.3."""
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Flatten(), nn.Linear(1024, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, classes)),
    )


NETWORKS: dict[str, Callable[[Tensor, int], nn.Module]] = {
    "cnn-2": cnn_2,
    "cnn-4": cnn_4,
    "two-layer-cnn": two_layer_cnn,
    "char-lstm": lambda inputs, classes: Recurrent(59, classes),
    "mean-of-words": lambda inputs, classes: MeanOfWords(30_522, classes),
    "logistic": lambda inputs, classes: nn.Linear(inputs.shape[1], classes),
}
_OTHERS = {"head": "heads", "least-squares": "regression"}


def measure(cell: Cell, device: str) -> Figures:
    """The figures of one cell."""
    place = "networks" if cell.model in NETWORKS else _OTHERS[cell.model]
    found: Figures = import_module(f"benchmarks.papers.{place}").measure(cell, device)
    return found
