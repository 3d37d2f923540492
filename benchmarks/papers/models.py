"""The models of the papers by name, and who measures a cell of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise

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


def cnn_2(classes: int) -> nn.Module:
    """LeNet-style, 26,010 parameters: Papernot et al. 2021, used by Zou et al."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, classes)),
    )


def cnn_4(classes: int) -> nn.Module:
    """Four convolutions, average pooling, global average pooling: Zou et al. for CIFAR-10."""
    widths = (3, 32, 64, 64)
    blocks = [
        layer for a, b in pairwise(widths) for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2))
    ]
    return nn.Sequential(
        *blocks,
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def two_layer_cnn(classes: int) -> nn.Module:
    """Two convolutions of 64 filters, three linear layers: Zhao et al., A.3."""
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Flatten(), nn.Linear(1024, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, classes)),
    )


def linear(width: int, classes: int) -> nn.Module:
    """A head without bias, started at zero."""
    model = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(model.weight)
    return model


_NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "cnn-2": cnn_2,
    "cnn-4": cnn_4,
    "two-layer-cnn": two_layer_cnn,
    "char-lstm": partial(Recurrent, 59),
    "mean-of-words": partial(MeanOfWords, 30_522),
}
_LINEAR: dict[str, Callable[[int, int], nn.Module]] = {"linear": linear, "logistic": nn.Linear}
_OTHERS = {"head": "heads", "least-squares": "regression"}


def make(name: str, inputs: Tensor, classes: int) -> nn.Module:
    """A fresh network for such inputs."""
    return _LINEAR[name](inputs.shape[1], classes) if name in _LINEAR else _NETWORKS[name](classes)


def measure(cell: Cell, device: str) -> Figures:
    """The figures of one cell."""
    place = _OTHERS.get(cell.model, "networks")
    found: Figures = import_module(f"benchmarks.papers.{place}").measure(cell, device)
    return found
