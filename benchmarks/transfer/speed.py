"""A step of linear heads beside the two products it cannot do without, on 50,000 x 1,280 features and ten classes.

Products are taken in the precision of the heads': float32 on a CPU, TF32 on a GPU.

On a CPU with one thread times are processor seconds, which a busy machine does not stretch. With more threads they are
wall seconds, as threads that wait for each other count as processor time: run that on a quiet machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from dpilot.numerics import precision
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import grade_of
from dpilot.transfer.probe import Head, fit_heads
from dpilot.transfer.scattering import Scattering

RECORDS, WIDTH, CLASSES = 50_000, 1_280, 10


def heads_beside_products(device: str, steps: int, rounds: int = 5, records: int = RECORDS) -> list[str]:
    """Rows of a table: one and seven heads; medians over rounds in which contenders take turns."""
    values = torch.nn.functional.normalize(torch.randn(records, WIDTH))
    features = Features(values, torch.randint(CLASSES, (records,)), CLASSES).to(device)
    _fit(features, 7, 2)  # warm-up
    lines, one, place = [], 0.0, f"{device} {grade_of(features.values.device).name}"
    for count in (1, 7):
        rows = [_round(features, count, steps, device) for _ in range(rounds)]
        step, plain, turned = (statistics.median(column) * 1e3 for column in zip(*rows, strict=True))
        one = step if count == 1 else one
        share = min(plain, turned) / step
        lines.append(
            f"| {place} | {count} | {step:.2f} | {plain:.2f} | {turned:.2f} | {share:.0%} | {step / one:.2f} |"
        )
    return lines


def scattering_rate(device: str, images: int) -> float:
    """Images of 28 x 28 scattered in a second."""
    transform, pixels = Scattering((28, 28)), torch.rand(images, 1, 28, 28, device=device)
    transform(pixels[:64])
    return images / _seconds(lambda: transform(pixels), device)


def _round(features: Features, count: int, steps: int, device: str) -> tuple[float, float, float]:
    short, long = (_seconds(lambda n=n: _fit(features, count, n), device) for n in (11, 11 + steps))
    x, columns = features.values, count * CLASSES
    weights, sums = torch.randn(WIDTH, columns, device=device), torch.randn(len(x), columns, device=device)
    flat, tall = weights.T.contiguous(), sums.T.contiguous()
    with precision.use_grade(grade_of(x.device)):
        plain = _seconds(lambda: [(x @ weights, x.T @ sums) for _ in range(steps)], device)
        turned = _seconds(lambda: [(flat @ x.T, tall @ x) for _ in range(steps)], device)
    return (long - short) / steps, plain / steps, turned / steps


def _fit(features: Features, count: int, steps: int) -> None:
    heads = [Head(lr=1.0 + j, steps=steps, noise_multiplier=10.0 + j) for j in range(count)]
    fit_heads(features, heads, receipts=[Receipt(head.event) for head in heads], size=len(features))


def _seconds(work: Callable[[], object], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    wait()
    started = clock()
    work()
    wait()
    return clock() - started
