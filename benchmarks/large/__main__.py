"""python -m benchmarks large [--rows N ...] [--models NAME ...] [--quick] [--trainer N]: time and peak memory.

Fits: Adult, repeated in random order, each row with the id of a random person (four rows a person on average), as a
csv file, or with ``--narrow`` three of its numbers as parquet; with units (at most 8 rows) and without; each fit in a
process of its own. ``--memory`` holds everything in memory instead, where it fits. ``--ids`` says whose rows lie where;
``--wide 30`` has so many constructed numbers in place of Adult. Peak memory is the most that was resident at a time
(VmHWM), code included; that of loading code alone is the line of 0 rows. "own" is that without mapped files, sampled.

Trainer: records of 20 bytes in a file, steps of an expected 10,000 records by true Poisson sampling.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpilot.data.bundled import adult

_TRAIN = """
import json, os, sys, time
import numpy as np
import torch
from torch import nn
from dpilot import Budget, Plan, Trainer
from dpilot.data import MappedDataset
from dpilot.sampling import PoissonSampler
folder, rows, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
data = MappedDataset(folder + "/x.npy", folder + "/y.npy")
sampler, rate = PoissonSampler(1e4 / rows, steps), 1e4 / rows
start = time.perf_counter(), time.process_time()
drawn = [batch.indices for batch in sampler.batches(rows)]
drawing = time.perf_counter() - start[0], time.process_time() - start[1]
start = time.perf_counter(), time.process_time()
for places in drawn:
    data.read(places)
reading = time.perf_counter() - start[0], time.process_time() - start[1]
records = sum(map(len, drawn))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 2)
    def forward(self, x):
        return self.layer(x.float() / 255)
plan = Plan.calibrate(Budget(1.0, 1e-10), size=rows, batch_size=10_000, steps=steps, clipping="constant")
start = time.perf_counter(), time.process_time()
run = Trainer(Model(), nn.CrossEntropyLoss(reduction="none"), plan, optimizer="sgd", lr=0.5, chunk_size=2048).fit(data)
training = time.perf_counter() - start[0], time.process_time() - start[1]
peak = [int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")]
each = {"drawing": drawing, "reading": reading, "training": training}
told = {
    name: {"rows a second": round(records / clock), "of a processor": round(records / own)}
    for name, (clock, own) in each.items()
}
print(json.dumps({"peak_MiB": peak[0], "records": records, **told}))
"""

NARROW = ("age", "education-num", "hours-per-week")

_FIT = """
import json, os, sys, threading, time
import torch
from dpilot.data.schema import Schema
from dpilot.fit import on_disk
from dpilot.fit.table import fit_table
path, how = sys.argv[1], json.loads(sys.argv[2])
torch.set_num_threads(how.pop("threads"))
if how.pop("memory"):
    on_disk._VALUES = 1 << 60
own = [0]
def watch():
    while True:
        facts = dict(line.split(":") for line in open("/proc/self/status"))
        own[0] = max(own[0], sum(int(facts[name].split()[0]) // 1024 for name in ("RssAnon", "RssShmem")))
        time.sleep(0.02)
if os.path.exists("/proc/self/status"):
    threading.Thread(target=watch, daemon=True).start()
loaded = time.process_time()
start = time.perf_counter()
metrics = {}
if path:
    schema = Schema.from_dict(how.pop("schema"))
    fitted = fit_table(path, schema, epsilon=1.0, delta=1e-9, **how)
    metrics = {each.name: round(each.value, 4) for each in fitted.record.metrics if not each.of}
seconds, processor = time.perf_counter() - start, time.process_time() - loaded
peak = [int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")]
import resource
peak = peak or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]
used = {"peak_MiB": peak[0], "own_MiB": max(own), "seconds": round(seconds), "processor": round(processor)}
print(json.dumps({**used, **metrics}))
"""


def write(path: Path, rows: int, source: str | None) -> None:
    """Adult, repeated in random order, with a random person for each row; never held at once."""
    frame = pd.read_csv(source, dtype=str, keep_default_na=False) if source else pd.read_parquet(adult()[0]).astype(str)
    lines = frame.to_csv(index=False, header=False).encode().splitlines()
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(",".join(["person", *frame.columns]).encode() + b"\n")
        for start in range(0, rows, 1 << 16):
            count = min(1 << 16, rows - start)
            which, who = rng.integers(len(lines), size=count), rng.integers(rows // 4, size=count)
            file.write(b"".join(b"p%d,%s\n" % (w, lines[k]) for w, k in zip(who.tolist(), which.tolist(), strict=True)))


IDS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "random": lambda rng, rows: rng.integers(rows // 4, size=rows),
    "sorted": lambda rng, rows: np.sort(rng.integers(rows // 4, size=rows)),
    "crowded": lambda rng, rows: np.where(rng.random(rows) < 0.1, -1, rng.integers(rows // 4, size=rows)),
    "different": lambda rng, rows: rng.permutation(rows),
    "text": lambda rng, rows: np.char.add("patient-", rng.integers(rows // 4, size=rows).astype(str)),
}
"""Whose each row is: four rows a person on average, a tenth of all rows one person's, or one row a person."""


def write_narrow(path: Path, rows: int, source: str | None, ids: str) -> None:
    """Three numbers and the class of Adult, and persons: what reading costs least of."""
    frame = pd.read_csv(source) if source else pd.read_parquet(adult()[0])
    columns = {name: frame[name].astype(np.int64).to_numpy() for name in NARROW}
    columns["income"] = frame["income"].astype(str).str.contains(">").to_numpy().astype(np.int64)
    rng = np.random.default_rng(0)
    whose = IDS[ids](rng, rows)

    def draw(place: slice) -> dict[str, Any]:
        which = rng.integers(len(frame), size=len(whose[place]))
        return {"person": whose[place], **{name: values[which] for name, values in columns.items()}}

    _write_parquet(path, rows, draw)


def write_wide(path: Path, rows: int, columns: int) -> None:
    """Numbers from 0 to 100, of which five decide the class: one by itself, two by an interaction, two by a wave."""
    rng = np.random.default_rng(0)

    def draw(place: slice) -> dict[str, Any]:
        x = (rng.random((place.stop - place.start, columns), dtype=np.float32) * 100).round(1)
        pull = (x[:, 0] - 50) / 25 + ((x[:, 1] > 50) ^ (x[:, 2] > 50)) * 2 - 1 + np.sin(x[:, 3] / 15) * (x[:, 4] > 30)
        labels = (pull + 0.7 * rng.logistic(size=len(x)) > 0).astype(np.int8)
        return {**{f"x{k}": x[:, k] for k in range(columns)}, "y": labels}

    _write_parquet(path, rows, draw)


def _write_parquet(path: Path, rows: int, draw: Callable[[slice], dict[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    for start in range(0, rows, 1 << 16):
        batch = pa.table(draw(slice(start, min(start + (1 << 16), rows))))
        writer = writer or parquet.ParquetWriter(path, batch.schema)
        writer.write_table(batch)
    if writer is not None:
        writer.close()


def narrow_schema() -> dict[str, Any]:
    columns = {name: {"type": "numeric", "bounds": [0, 100], "missing": "null"} for name in NARROW}
    target = {"type": "categorical", "categories": ["0", "1"], "role": "target"}
    return {"columns": {"person": {"role": "ignored"}, **columns, "income": target}}


def wide_schema(columns: int) -> dict[str, Any]:
    numbers = {f"x{k}": {"type": "numeric", "bounds": [0, 100], "missing": "null"} for k in range(columns)}
    return {"columns": {**numbers, "y": {"type": "categorical", "categories": ["0", "1"], "role": "target"}}}


def fit(path: Path | str, timeout: float, **how: Any) -> dict[str, Any]:
    """One fit in a process of its own."""
    start = time.perf_counter()
    command = [sys.executable, "-c", _FIT, str(path), json.dumps(how)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"stopped after": round(time.perf_counter() - start)}
    if done.returncode:
        return {"failed": done.stderr[-2000:]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def fits(chosen: argparse.Namespace) -> None:
    schema = narrow_schema() if chosen.narrow else adult()[1].to_dict()
    schema["columns"]["person"] = {"role": "ignored"}
    if chosen.wide:
        schema, chosen.units = wide_schema(chosen.wide), [0]
    options = {"threads": chosen.threads, "memory": chosen.memory, "schema": schema, "epochs": chosen.epochs}
    print(json.dumps({"rows": 0, **fit("", 600.0, threads=chosen.threads, memory=False)}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for rows in chosen.rows:
            path = Path(folder) / ("table.parquet" if chosen.narrow or chosen.wide else "adult.csv")
            if chosen.wide:
                write_wide(path, rows, chosen.wide)
            elif chosen.narrow:
                write_narrow(path, rows, chosen.source, chosen.ids)
            else:
                write(path, rows, chosen.source)
            for model in chosen.models:
                for unit in chosen.units:
                    named = {"unit": "person"} if unit else {}
                    persons = rows if chosen.ids == "different" else rows // 4
                    size = {"size": persons if unit else rows} if chosen.declared else {}
                    found = fit(path, chosen.timeout, model=model, **options, **named, **size)
                    facts = {"rows": rows, "model": model, "unit": bool(unit), "memory": chosen.memory}
                    print(json.dumps({**facts, **found}), flush=True)
            path.unlink()


def trainer(rows: list[int], steps: int) -> None:
    """Steps of an expected 10,000 of ``rows`` records of 20 bytes and a label."""
    with tempfile.TemporaryDirectory() as folder:
        for count in rows:
            rng = np.random.default_rng(0)
            for name, shape in (("x", (count, 20)), ("y", (count,))):
                path = Path(folder) / f"{name}.npy"
                made = np.lib.format.open_memmap(
                    path, mode="w+", dtype=np.uint8 if name == "x" else np.int64, shape=shape
                )
                for start in range(0, count, 1 << 20):
                    some = made[start : start + (1 << 20)]
                    some[:] = rng.integers(0, 256 if name == "x" else 2, some.shape, dtype=made.dtype)
                del made
            command = [sys.executable, "-c", _TRAIN, folder, str(count), str(steps)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(
                json.dumps({"trainer": count, **json.loads(done.stdout.strip().splitlines()[-1])})
                if not done.returncode
                else done.stderr,
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--models", nargs="+", default=["additive", "logistic"])
    parser.add_argument("--units", type=int, nargs="+", default=[1])
    parser.add_argument("--epochs", type=float, default=None)
    parser.add_argument("--timeout", type=float, default=6 * 3600.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--source", help="Adult as csv, where parquet cannot be read")
    parser.add_argument("--narrow", action="store_true", help="three numbers as parquet")
    parser.add_argument("--ids", choices=IDS, default="random", help="of the three numbers: whose each row is")
    parser.add_argument(
        "--wide", type=int, help="so many constructed numbers as parquet (5 at least), rows by themselves"
    )
    parser.add_argument("--trainer", type=int, nargs="*", help="numbers of records")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--declared", action="store_true", help="the size is declared, not counted")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rows, chosen.models = [100_000], ["logistic"]
    if chosen.trainer:
        trainer(chosen.trainer, chosen.steps)
    else:
        fits(chosen)


if __name__ == "__main__":
    main()
