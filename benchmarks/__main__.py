"""Run one benchmark by its name: python -m benchmarks NAME [--quick] [its own options]."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path


def names() -> list[str]:
    """Every folder here that can be run."""
    return sorted(folder.parent.name for folder in Path(__file__).parent.glob("*/__main__.py"))


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in names():
        print(f"usage: python -m benchmarks NAME [--quick]; NAME is one of {', '.join(names())}", file=sys.stderr)
        raise SystemExit(2)
    name = sys.argv.pop(1)
    sys.argv[0] = f"benchmarks {name}"
    warnings.filterwarnings("ignore", message="no ledger was given")  # the records are public
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
