"""The wide residual network WRN-16-4 with GroupNorm."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn import functional

_GROUPS: Final = 16
_WIDTHS: Final = (16, 64, 128, 256)


class Block(nn.Module):
    """Pre-activation: norm, ReLU, convolution, twice; short names, as the stored tensors have them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(_GROUPS, before), nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.n2, self.c2 = nn.GroupNorm(_GROUPS, after), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.sc = nn.Conv2d(before, after, 1, stride, 0, bias=False) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.n1(x))
        short = x if self.sc is None else self.sc(active)
        return self.c2(functional.relu(self.n2(self.c1(active)))) + short  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-16-4 with GroupNorm(16) for BatchNorm: 2,748,890 parameters with 10 classes.

    Reference: Zagoruyko and Komodakis 2016; De et al. 2022 and Rehn et al. 2026 train it from scratch.
    """

    width = 256

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        blocks = []
        for group in range(3):
            before, after = _WIDTHS[group], _WIDTHS[group + 1]
            blocks += [Block(before, after, 1 if group == 0 else 2), Block(after, after, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.GroupNorm(_GROUPS, self.width), nn.Linear(self.width, classes)

    def hidden(self, x: Tensor) -> Tensor:
        """What the head sees, (n, 256)."""
        return functional.relu(self.norm(self.blocks(self.conv(x)))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))  # type: ignore[no-any-return]
