"""python -m benchmarks forecast [--quick] [--seeds N] [--fits FILE]: fits, then how often intervals hold."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.forecast.collect import DEVELOPED, JUDGED, fits


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks forecast")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fits", type=Path, default=Path("forecast_fits.jsonl"))
    given = parser.parse_args()
    with given.fits.open("a") as out:
        for name, make in {**DEVELOPED, **JUDGED}.items():
            for line in fits(name, make, given.seeds):
                out.write(json.dumps(line) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
