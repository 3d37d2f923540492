"""Small convolutional networks: CNN-2, CNN-4 and the 64-64-500-500 network."""

from __future__ import annotations

from torch import nn


def cnn_2(classes: int = 10) -> nn.Sequential:
    """Two convolution-ReLU-max-pool blocks and two linear layers for 28 x 28 grey images: 26,010 parameters.

    Reference: Papernot et al. 2021 and the MNIST examples of Opacus and TensorFlow Privacy; the form that Zou et al.
    2026, appendix A, describe ("LeNet-style", without sizes).
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, classes),
    )  # fmt: skip


def cnn_2_wide(classes: int = 10) -> nn.Sequential:
    """The same form with the sizes of the code that goes with Zou et al. 2026: 421,642 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip


def cnn_4(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Four 3 x 3 convolutions with average pooling, a global average and one linear layer: 131,466 parameters.

    Reference: Zou et al. 2026, appendix A ("CNN-4"); the sizes are those of the CIFAR-10 example of Opacus.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, classes),
    )  # fmt: skip


def cnn_64_64_500_500(channels: int = 1, side: int = 28, classes: int = 10) -> nn.Sequential:
    """Two 3 x 3 convolutions of 64 filters, each with max-pooling 3 of stride 2, and 500-500: 805,578 parameters.

    The paper says nothing of padding: there is none here.

    Reference: Zhao et al. 2026, appendix A.3, after Koskela and Honkela 2020.
    """
    left = ((side - 2 - 1) // 2 - 2 - 1) // 2  # a convolution takes 2, pooling leaves (s - 3) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(64 * left * left, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(),
        nn.Linear(500, classes),
    )  # fmt: skip
