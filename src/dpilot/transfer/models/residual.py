"""Residual networks: ResNet-18 with GroupNorm, and the ResNet-20 of CIFAR."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from dpilot import _validate


class Residual(nn.Module):
    """relu(body(x) + short(x)), with GroupNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(32, after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(32, after),
        )  # fmt: skip
        changes = [nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(32, after)]
        self.short = nn.Sequential(*(changes if stride != 1 or before != after else []))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        out += self.short(x)
        return functional.relu(out, inplace=True)


def resnet_18(channels: int = 3, classes: int = 10, stem: str = "large") -> nn.Sequential:
    """ResNet-18 with GroupNorm(32) for BatchNorm: 11,181,642 parameters (11,689,512 with 1,000 classes).

    ``stem`` "large" begins with a 7 x 7 convolution of stride 2 and max-pooling, as published; "small" with a 3 x 3
    convolution, for images of about 32 pixels.

    Reference: He et al. 2016; Wu and He 2018 (GroupNorm); Zhao et al. 2026 train it from scratch.
    """
    small = _validate.one_of(("large", "small"), stem=stem) == "small"
    first = nn.Conv2d(channels, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    blocks = [Residual(64, 64, 1), Residual(64, 64, 1)]
    for before, after in pairwise((64, 128, 256, 512)):
        blocks += [Residual(before, after, 2), Residual(after, after, 1)]
    pooling = [] if small else [nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(
        first, nn.GroupNorm(32, 64), nn.ReLU(inplace=True), *pooling, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(512, classes),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """A block of the CIFAR ResNet: where the size changes, the short way takes every other pixel and pads channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.stride, self.more = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        short = x[:, :, :: self.stride, :: self.stride]
        short = functional.pad(short, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + short)


class ResNet20(nn.Module):
    """The ResNet-20 of CIFAR, with BatchNorm and option A short ways; its names are those of the stored tensors.

    Reference: He et al. 2016, section 4.2.
    """

    width = 64

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = _three(16, 16, 1), _three(16, 32, 2), _three(32, 64, 2)
        self.linear = nn.Linear(64, classes)

    def hidden(self, x: Tensor) -> Tensor:
        """What the head sees, (n, 64)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.hidden(x))  # type: ignore[no-any-return]


def _three(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        ResidualBlock(before, after, stride), ResidualBlock(after, after, 1), ResidualBlock(after, after, 1)
    )
