"""A small network that learns from images of random processes alone: two views of one image alike, of others not.

Reference:
    NT-Xent: Chen et al., "SimCLR", ICML 2020; from random processes: Baradad et al. 2021, Tang et al. 2023 (DP-RandP).
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpilot.transfer import random_images
from dpilot.transfer.features import Features

SIDE = 32  # of a view; images are generated larger
WIDTHS = (64, 256, 512)
POOLED = (4, 2, 1)  # places a side that the maps of each block are averaged to, as features
TEMPERATURE = 0.2


class Network(nn.Module):
    """Three blocks of two convolutions, each halving the image: 4.7 million parameters, the projection counted.

    BatchNorm is allowed here: its statistics come from generated images, and are frozen before any record is seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.GELU())
        before = (32, *WIDTHS[:-1])
        self.blocks = nn.ModuleList(_block(*sizes) for sizes in zip(before, WIDTHS, strict=True))
        last = WIDTHS[-1]
        self.projection = nn.Sequential(
            nn.Linear(last, last, bias=False), nn.BatchNorm1d(last), nn.ReLU(), nn.Linear(last, 128)
        )

    def maps(self, pixels: Tensor) -> list[Tensor]:
        """What each block says of images in [0, 1], (n, width, side, side)."""
        x, found = self.stem((pixels - 0.5) * 4), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        return found

    def forward(self, pixels: Tensor) -> Tensor:
        return self.projection(self.maps(pixels)[-1].mean((2, 3)))


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.GELU(),
        nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.GELU(),
    )  # fmt: skip


def pretrained(
    pool: Tensor, seconds: float, *, seed: int = 0, pairs: int = 2048, lr: float = 2e-3
) -> tuple[Network, int]:
    """A network trained on views of the pool for so many seconds, step sizes down a cosine of time; and its steps."""
    torch.manual_seed(seed)
    network = Network().to(pool.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=1e-4)
    started, steps, passed = time.perf_counter(), 0, 0.0
    while passed < 1:
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (steps + 1) / 100) * (1 + math.cos(math.pi * passed)) / 2
        loss = _step(network, optimizer, pool[torch.randint(len(pool), (pairs,), device=pool.device)])
        steps += 1
        if steps % 20 == 0:
            shown = float(loss)  # waits for the device, so that time is time
            passed = (time.perf_counter() - started) / seconds
            if steps % 400 == 0:
                print(f"<!-- step {steps}: loss {shown:.3f}, {passed:.0%} of the time -->", flush=True)
    return network.eval(), steps


def untrained(pool: Tensor, *, seed: int = 0) -> Network:
    """The network as it starts, but for the statistics of its BatchNorms, which are those of the pool."""
    torch.manual_seed(seed)
    network = Network().to(pool.device, memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(5):  # the statistics of a batch count a tenth: by then little of the start is left
            for rows in pool.split(512):
                network(views(rows))
    return network.eval()


def views(images: Tensor) -> Tensor:
    """Crops of bytes (n, 3, side, side) to 32 x 32 floats in [0, 1], mirrored and with other colours by coins."""
    n, device = len(images), images.device
    area, shape = _uniform(n, 0.2, 1.0, device), _uniform(n, -0.3, 0.3, device).exp()
    wide, high = ((area * shape).sqrt().clamp(max=1), (area / shape).sqrt().clamp(max=1))
    mirrored = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)
    zero = torch.zeros(n, device=device)
    right, down = (_uniform(n, -1.0, 1.0, device) * (1 - size) for size in (wide, high))
    frames = torch.stack([torch.stack([wide * mirrored, zero, right], 1), torch.stack([zero, high, down], 1)], 1)
    places = functional.affine_grid(frames, [n, 3, SIDE, SIDE], align_corners=False)
    cropped = functional.grid_sample(images.float() / 255, places, padding_mode="reflection", align_corners=False)
    return _recoloured(cropped).contiguous(memory_format=torch.channels_last)


def _recoloured(pixels: Tensor) -> Tensor:
    """Brightness, contrast, saturation and a turn of hue around grey; one image in five becomes grey."""
    n, device = len(pixels), pixels.device
    light, contrast = (_uniform(n, 0.6, 1.4, device).view(n, 1, 1, 1) for _ in range(2))
    colour = torch.where(torch.rand(n, device=device) < 0.2, 0.0, _uniform(n, 0.4, 1.6, device))
    angle = _uniform(n, -0.6, 0.6, device)
    grey = torch.full((3, 3), 1 / 3, device=device)
    cross = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], device=device) / math.sqrt(3)
    rest, cos, sin = torch.eye(3, device=device) - grey, angle.cos().view(n, 1, 1), angle.sin().view(n, 1, 1)
    mixing = grey + colour.view(n, 1, 1) * (cos * rest + sin * cross)
    mixed = torch.einsum("nkc,nchw->nkhw", mixing, pixels)
    mean = mixed.mean((1, 2, 3), keepdim=True)
    return ((mixed - mean) * contrast + mean * light).clamp(0, 1)


def _step(network: Network, optimizer: torch.optim.Optimizer, images: Tensor) -> Tensor:
    both = torch.cat([views(images), views(images)])
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(both.device.type, dtype=torch.bfloat16):
        found = network(both)
    loss = contrast(functional.normalize(found.float()))
    loss.backward()
    optimizer.step()
    return loss.detach()


def contrast(rows: Tensor) -> Tensor:
    """NT-Xent of unit rows, the first half one view of each image and the second half the other."""
    n = len(rows) // 2
    alike = (rows @ rows.T / TEMPERATURE).fill_diagonal_(-1e9)
    partner = torch.arange(2 * n, device=rows.device).roll(n)
    return functional.cross_entropy(alike, partner)


@torch.no_grad()
def features(network: Network, images: Tensor, labels: Tensor, classes: int, *, chunk: int = 2000) -> Features:
    """Averages of every block's maps, each block brought to mean 0 and variance 1 a record; unit rows."""
    device, parts = next(network.parameters()).device, []
    for some in images.split(chunk):
        pixels = (some.to(device).float() / 255).contiguous(memory_format=torch.channels_last)
        pooled = [functional.adaptive_avg_pool2d(m, s) for m, s in zip(network.maps(pixels), POOLED, strict=True)]
        blocks = [functional.layer_norm(m.flatten(1), m.flatten(1).shape[1:]) for m in pooled]
        parts.append(torch.cat(blocks, 1))
    return Features.of(torch.cat(parts), labels, classes).unit()


def pool_of(count: int, seed: int, device: str) -> Tensor:
    """Generated images, half as large again as a view."""
    return random_images.generate(count, SIDE * 3 // 2, seed=seed, device=device)


def _uniform(n: int, low: float, high: float, device: torch.device) -> Tensor:
    return low + (high - low) * torch.rand(n, device=device)
