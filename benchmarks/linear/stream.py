"""Out of core: rows a second of the Gram pass at 51 columns, and peak memory against the number of rows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.linear.common import table

_FIT = """
import sys
from dpilot.linear import LinearRegression
LinearRegression(delta=1e-9, method=sys.argv[2]).fit_parquet(sys.argv[1], target="y")
print([int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def write(path: Path, rows: int, columns: int) -> None:
    """A synthetic table in row groups of 131,072: never held at once."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    names = [*(f"x{place}" for place in range(columns)), "y"]
    schema = pa.schema([(name, pa.float64()) for name in names])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, 131_072):
            X = rng.normal(size=(min(131_072, rows - start), columns))
            y = X.sum(axis=1) / np.sqrt(columns) + rng.normal(size=X.shape[0])
            arrays = [*(pa.array(column) for column in X.T), pa.array(y)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def gram_rate(path: Path, rows: int, times: int) -> float:
    """Rows a second of one pass: read, drop nulls, clip to the radius, sum the products."""
    from dpilot.linear.gram_matrix import GramPlan, gram
    from dpilot.linear.streaming import parquet_rows
    from dpilot.mechanism import SYSTEM
    from dpilot.privacy.events import Gaussian
    from dpilot.privacy.receipt import Receipt

    source = parquet_rows(path, "y")[0]
    taken = []
    for _ in range(times):
        receipt = Receipt(Gaussian(1.0))
        start = time.perf_counter()
        gram(source, GramPlan(None, 1.0), size=float(rows), receipt=receipt, noise=SYSTEM)
        taken.append(time.perf_counter() - start)
    return rows / float(np.median(taken))


def peak(path: Path, method: str) -> str:
    done = subprocess.run([sys.executable, "-c", _FIT, str(path), method], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(quick: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wide.parquet"
        rows = 200_000 if quick else 1_000_000
        write(path, rows, 50)
        rate = gram_rate(path, rows, 5)
        print(f"\n### Streaming\n\nGram pass, 51 columns, {rows:,} rows: {rate:,.0f} rows/s (median of 5)\n")
        path.unlink()
        lines = []
        for count in (100_000, 1_000_000) if quick else (100_000, 1_000_000, 10_000_000):
            path = Path(folder) / f"{count}.parquet"
            write(path, count, 10)
            for method in ("adassp", "auto") if count <= 1_000_000 else ("adassp",):
                start = time.perf_counter()
                memory = peak(path, method)
                lines.append([f"{count:,}", method, memory, f"{time.perf_counter() - start:.0f}"])
            path.unlink()
        print(table(["rows, 11 columns", "method", "peak memory, MiB", "seconds, start included"], lines), flush=True)
