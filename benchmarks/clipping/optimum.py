"""The rules that seek the least error beside the true optimum of Theorem 5.2, on CNN-2 and public images.

python -m benchmarks.clipping.optimum [--quick]

Exact gradients are looked at (``dpilot.diagnose``), scales are read from the data: NO PRIVACY CLAIM.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import subprocess
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.clipping import tasks
from dpilot import Budget, Plan, clipping, diagnose
from dpilot.clipping import MeanSquaredError

HERE = Path(__file__).parent
LOSS = nn.CrossEntropyLoss(reduction="none")
RULES = {
    "mse, aligned bound (before)": ("mse", {}),
    "mse, bounded": ("mse", {}),
    "mse, estimated": ("mse", {"bias": "estimated"}),
    "histogram-e": ("histogram-e", {}),
    "slack": ("slack", {}),
}


def one_run(task: tasks.Task, rule: str, epsilon: float, steps: int, seed: int) -> diagnose.RunDiagnosis:
    """A run from a first threshold of 1, in the normalized form so that one step size fits all."""
    name, options = RULES[rule]
    chosen = clipping.get(name, normalized=True, **options)
    plan = Plan.calibrate(
        Budget(epsilon, 1e-5), size=len(task.inputs), batch_size=task.batch_size, steps=steps, clipping=chosen
    )
    before = mock.patch.object(MeanSquaredError, "reads_length", False) if "before" in rule else nullcontext()
    data = TensorDataset(task.inputs, task.labels)
    with before, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return diagnose.run(
            copy.deepcopy(task.model), LOSS, plan, data, public=True, lr=task.step_size, test_seed=seed,
            chunk_size=128, every=max(1, steps // 10), most=task.batch_size,
        )  # fmt: skip


def row(task: tasks.Task, rule: str, epsilon: float, steps: int, seeds: int) -> list[str]:
    """What a rule comes to: the looks of the second half of the run, over all seeds."""
    ratios, errors, cosines, rights, sigma = [], [], [], [], 0.0
    for seed in range(seeds):
        found = one_run(task, rule, epsilon, steps, seed)
        late = found.frame().iloc[5:]
        ratios += (late["threshold"] / late["optimum"]).tolist()
        errors += (late["error"] / late["least_error"]).tolist()
        cosines += late["cosine"].tolist()
        rights.append(float((found.run.predict(task.inputs).argmax(1) == task.labels).float().mean()))
        sigma = found.run.record.plan["noise_multiplier"]
    return [
        f"{epsilon:g} ({sigma:.2f})", rule, f"{min(ratios):.1f} to {max(ratios):.1f}", f"{np.median(errors):.2f}",
        f"{np.median(cosines):.3f}", f"{np.mean(rights):.3f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping.optimum", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps, nothing written")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    task, steps, seeds = tasks.fashion(quick), 10 if quick else 60, 1 if quick else 2
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    start = time.process_time()
    lines = [
        "| epsilon (noise multiplier) | rule | threshold / optimum | error / least error | cosine | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon in (1.0, 8.0) if quick else (1.0, 3.0, 8.0, 30.0):
        for rule in RULES:
            lines.append(f"| {' | '.join(row(task, rule, epsilon, steps, seeds))} |")
            print(lines[-1], flush=True)
    text = [
        "# Least error: rules beside the true optimum\n",
        f"{datetime.date.today().isoformat()}, 2 CPU cores (shared), torch {torch.__version__}, commit "
        f"{commit.stdout.strip()}, {time.process_time() - start:.0f} processor seconds.",
        "Command: `python -m benchmarks.clipping.optimum`. **Not private**: exact gradients are looked at, scales are",
        "read from the data.\n",
        f"{task.name}, batch {task.batch_size}, {steps} steps, {seeds} seeds, normalized form, first threshold 1.",
        "The optimum is that of Theorem 5.2 (Rehn et al. 2026) on 256 records, at 6 looks in the second half of each",
        "run. Threshold over optimum is the range over looks; error and cosine are medians; accuracy is that on the",
        "training images, a mean over seeds.\n",
        *lines,
    ]
    if not quick:
        (HERE / "RESULTS_OPTIMUM.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
