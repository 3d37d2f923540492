"""A private step over the plain step, in the same run: medians of interleaved repetitions, peers beside us.

python -m benchmarks engine [--quick] [--device cuda] [--only NAME] [--way WAY] [--half]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.engine.steps import WAYS
from benchmarks.engine.workloads import CPU, GPU, Workload

SHORT = 5e-3
"""Seconds of a step below which it is repeated ten times as often: the processor's moods weigh more."""


def clock(step: Callable[[], None], device: str) -> float:
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def held(step: Callable[[], None], device: str) -> float:
    """Memory in MiB that the process holds on the GPU for a step: what lives on between steps, graphs included.

    The least of three: cuDNN takes more working memory where more is free.
    """
    if device != "cuda":
        return float("nan")

    def once() -> float:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        step()
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved() / 2**20

    return min(once() for _ in range(3))


def forget() -> None:
    """Leave the GPU as a fresh process finds it: working memory of libraries would count for whoever comes next."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def measure(
    work: Workload, device: str, half: bool, repeats: int, wanted: Sequence[str] = ()
) -> dict[str, tuple[float, float] | str]:
    """Median seconds and memory of every way; a peer that fails says why in a word."""
    found: dict[str, tuple[float, float] | str] = {}
    steps = {}
    for name, make in WAYS.items():
        if name.startswith("opacus") and not work.peers:
            continue
        if wanted and name not in ("plain", *wanted):
            continue
        try:
            torch.manual_seed(0)
            step = make(work, device, half)
            for _ in range(3):
                clock(step, device)
            if device == "cuda":  # one at a time: memory is measured too
                short = clock(step, device) < SHORT
                times = [clock(step, device) for _ in range(10 * repeats if short else repeats)]
                found[name] = (statistics.median(times), held(step, device))
                del step
                forget()
            else:
                steps[name] = step
        except Exception as problem:
            if not name.startswith("opacus"):
                raise
            found[name] = f"fails: {type(problem).__name__}: {str(problem)[:200]}"
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats if steps else 0):
        for name, step in steps.items():  # interleaved, so that a busy moment hits all
            taken[name].append(clock(step, device))
    return found | {name: (statistics.median(times), float("nan")) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", action="append")
    parser.add_argument("--way", action="append", default=[])
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as one trains on such a machine
    works = GPU if options.device == "cuda" else CPU
    print(f"torch {torch.__version__}, {options.device}, {'bf16 autocast' if options.half else 'float32'}")
    for name, work in works.items():
        if options.only and name not in options.only:
            continue
        found = measure(work, options.device, options.half, 7 if options.quick else 31, options.way)
        base = found["plain"]
        assert isinstance(base, tuple)
        for way, value in found.items():
            if isinstance(value, str):
                print(f"{name:10} {way:14} {value}", flush=True)
                continue
            print(
                f"{name:10} {way:14} {value[0] * 1e3:9.2f} ms  x{value[0] / base[0]:6.2f}  "
                f"memory {value[1]:8.0f} MiB x{value[1] / base[1]:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
