"""Linear heads on public features, FiLM on WRN-16-4, and features learned from images of random processes.

DPILOT_DATA=folder DPILOT_WEIGHTS=folder python -m benchmarks transfer [--quick] [--only WORD] [--speed|--film|--random]

The step size and the number of steps are the best of a grid by test accuracy: an oracle, not a private result. What is
private is every fit of it: exact Gaussian DP at delta 1e-5, the center included where it is bought.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.datasets import Missing
from benchmarks.transfer import film, fitting, processes, speed, tasks


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks transfer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few records and a coarse grid")
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    parser.add_argument("--speed", action="store_true", help="the time of a step instead of accuracies")
    parser.add_argument("--film", action="store_true", help="FiLM on WRN-16-4 instead of heads")
    parser.add_argument("--epochs", type=float, default=8.0, help="of FiLM")
    parser.add_argument("--epsilon", type=float, nargs="+", default=(1.0, 8.0), help="of FiLM")
    parser.add_argument("--lr", type=float, nargs="+", default=film.LRS, help="of FiLM: the grid of step sizes")
    parser.add_argument("--threshold", type=float, nargs="+", default=film.THRESHOLDS, help="of FiLM: the grid of C")
    parser.add_argument("--random", action="store_true", help="features from random processes instead of backbones")
    parser.add_argument("--seconds", type=float, default=90.0, help="of pretraining on random processes")
    parser.add_argument("--network", type=Path, help="a file for the pretrained network: read if it is there")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 on a GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    print(f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads")
    if options.speed:
        report_speed(options)
    elif options.film:
        report_film(options)
    elif options.random:
        report_random(options)
    else:
        report_accuracy(options)


def report_accuracy(options: argparse.Namespace) -> None:
    print("| data, features | epsilon | private | sd of 5 fits | lr, steps (oracle) | non-private |")
    print("|---|---|---|---|---|---|")
    size = 2000 if options.quick else None
    kept: dict[tuple[str, str], tuple[fitting.Features, fitting.Features, float]] = {}
    for task in tasks.TASKS:
        if options.only not in task.name:
            continue
        try:
            key = (task.data, task.features)
            if key not in kept:
                started = time.perf_counter()
                train, test = tasks.load(task, options.device, size)
                seconds = time.perf_counter() - started
                kept = {key: (train, test, fitting.plain(train, test))}
                print(f"<!-- {task.name}: features {tuple(train.values.shape)} in {seconds:.0f} s -->", flush=True)
            train, test, plain = kept[key]
        except Missing as missing:
            print(f"| {task.name} | skipped: {missing} | | | | |")
            continue
        grid = {"lrs": (4.0, 16.0), "steps": (20,)} if options.quick else fitting.MORE if task.more else {}
        for epsilon in task.epsilons:
            found = fitting.oracle(train, test, epsilon, centres=task.centres, **grid)
            print(
                f"| {task.name} | {epsilon:g} | {found.mean:.2%} | {found.spread:.2%} "
                f"| {found.lr:g}, {found.steps} | {plain:.2%} |",
                flush=True,
            )


def report_film(options: argparse.Namespace) -> None:
    images = film.load(options.device, 64 if options.quick else None)
    setting = film.Setting(epochs=options.epochs, batch=16) if options.quick else film.Setting(epochs=options.epochs)
    choices = {"lrs": options.lr, "thresholds": options.threshold, "repeats": 2 if options.quick else film.REPEATS}
    print(f"<!-- {film.rate(images, setting):.0f} records a second -->", flush=True)
    print("| method | epsilon | private | sd | lr, C (oracle) | batch, steps, noise multiplier | seconds a run |")
    print("|---|---|---|---|---|---|---|")
    for epsilon in options.epsilon:
        for line in film.row(images, epsilon, setting, **choices):
            print(line, flush=True)
    for lr in (0.008, 0.002):
        print(f"| film, non-private | | {film.plain(images, lr, setting):.2%} | | {lr:g} | 512 | |", flush=True)


def report_random(options: argparse.Namespace) -> None:
    print("| CIFAR-10 features | width | epsilon | private | sd of 5 fits | lr, steps (oracle) | non-private |")
    print("|---|---|---|---|---|---|---|")
    size, grid = (100, {"lrs": (4.0,), "steps": (20,)}) if options.quick else (None, processes.GRID)
    pool, seconds = (256, 2.0) if options.quick else (processes.POOL, options.seconds)
    network = processes.network(options.device, seconds, pool, options.network)
    for name, train, test in processes.contenders(options.device, network, size):
        for line in processes.rows(name, train, test, grid):
            print(line, flush=True)


def report_speed(options: argparse.Namespace) -> None:
    print("| device | heads | step, ms | X W and X^T G, ms | transposed, ms | of the faster's speed | times one head |")
    print("|---|---|---|---|---|---|---|")
    steps, records = (3, 5000) if options.quick else (200 if options.device == "cuda" else 4, speed.RECORDS)
    print("\n".join(speed.heads_beside_products(options.device, steps, records=records)))
    images = 200 if options.quick else 20_000 if options.device == "cuda" else 2_000
    rate = speed.scattering_rate(options.device, images)
    print(f"\nscattering: {rate:.0f} images of 28 x 28 a second, 70,000 in {70_000 / rate:.0f} s")


if __name__ == "__main__":
    main()
