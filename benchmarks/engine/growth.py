"""How the price of a private step grows: a transformer encoder on a GPU over batch, sequence and depth.

python -m benchmarks.engine.growth
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.engine.__main__ import measure
from benchmarks.engine.workloads import Encoder, Workload, tokens

START = {"batch": 64, "sequence": 128, "depth": 6}
WAYS = ("dpilot", "dpilot launched", "opacus hooks")
GRID = {"batch": (16, 64, 256), "sequence": (32, 128, 512), "depth": (2, 6, 18)}


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for axis, values in GRID.items():
        for value in values:
            at = START | {axis: value}
            work = Workload(
                partial(Encoder, 512, at["depth"]), tokens(at["sequence"], 1000), at["batch"], peers=axis == "sequence"
            )
            found = measure(work, "cuda", False, 7, WAYS)
            base = found["plain"]
            assert isinstance(base, tuple)
            cells = [
                f"{way} {value[0] * 1e3:.1f} ms x{value[0] / base[0]:.2f} m{value[1] / base[1]:.2f}"
                for way, value in found.items()
                if isinstance(value, tuple)
            ]
            print(f"{axis} {at[axis]}: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
