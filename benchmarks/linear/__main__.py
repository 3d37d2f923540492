"""python -m benchmarks linear [PART ...] [--quick]; the parts are ``PARTS``."""

from __future__ import annotations

import sys
from importlib import import_module

PARTS = ("published", "synthetic", "questions", "real", "bounds", "adult", "stream", "persons")


def main() -> None:
    quick = "--quick" in sys.argv
    asked = [name for name in sys.argv[1:] if not name.startswith("--")] or list(PARTS)
    for name in asked:
        if name not in PARTS:
            print(f"part is {name!r}: expected one of {', '.join(PARTS)}.", file=sys.stderr)
            raise SystemExit(2)
    for name in asked:
        import_module(f"benchmarks.linear.{name}").main(quick)


if __name__ == "__main__":
    main()
