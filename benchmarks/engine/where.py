"""Where time and memory of a step go on a GPU: its longest kernels, and what is alive when most memory is taken.

python -m benchmarks.engine.where vit-full resnet18+half ...
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.steps import ours, plain
from benchmarks.engine.workloads import GPU

WAYS: dict[str, Callable[..., Callable[[], None]]] = {
    "plain": plain,
    "dpilot": partial(ours, chunks=1),
    "launched": ours,
}
MIB = 2**20


def kernels(step: Callable[[], None], most: int) -> None:
    """Print the sum of all kernels, the number of launches, and the longest kernels."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    rows = found.key_averages()
    on_gpu = sorted((r for r in rows if r.device_type.name == "CUDA"), key=lambda r: -r.self_device_time_total)
    launches = sum(r.count for r in rows if "LaunchKernel" in r.key or "GraphLaunch" in r.key)
    print(f"  kernels {sum(r.self_device_time_total for r in on_gpu) / 1e3:.2f} ms, launches {launches}")
    for r in on_gpu[:most]:
        print(f"  {r.self_device_time_total / 1e3:9.3f} ms x{r.count:5d} {r.key[:110]}")


def memory(step: Callable[[], None], most: int) -> None:
    """Print the peak of a step and who had asked for what is alive then; and what each pool of memory holds."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    seen: Any = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    events = [e for e in seen["device_traces"][0] if e["action"] in ("alloc", "free_completed")]
    alive, top, peak, now = {}, {}, 0, 0
    for event in events:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            now += event["size"]
            if now > peak:
                peak, top = now, dict(alive)
        elif event["addr"] in alive:
            now -= alive.pop(event["addr"])["size"]
    print(
        f"  before {before / MIB:.0f} MiB, peak over it {peak / MIB:.0f}, held {torch.cuda.memory_reserved() / MIB:.0f}"
    )
    whose: dict[str, list[int]] = defaultdict(list)
    for event in top.values():
        whose[asked_by(event.get("frames", []))].append(event["size"])
    for place, sizes in sorted(whose.items(), key=lambda item: -sum(item[1]))[:most]:
        print(f"  {sum(sizes) / MIB:9.0f} MiB in {len(sizes):4d}, largest {max(sizes) / MIB:6.0f}: {place}")
    pools: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for segment in seen["segments"]:
        pool = pools[segment["segment_pool_id"]]
        pool[0] += segment["total_size"]
        pool[1] += segment["allocated_size"]
    for key, (total, used) in pools.items():
        print(f"  pool {key}: held {total / MIB:.0f} MiB, in use {used / MIB:.0f}")


def asked_by(frames: list[Any]) -> str:
    """The innermost places outside torch."""
    own = [f for f in frames if "/torch/" not in f["filename"] and f["filename"].endswith(".py")]
    chosen = own[:3] or frames[:2]
    return " < ".join(f"{f['filename'].rsplit('/', 1)[-1]}:{f['line']} {f['name']}" for f in chosen) or "backward pass"


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    wanted = [item for item in sys.argv[1:] if not item.startswith("--")]
    for item in wanted:
        name, half = item.removesuffix("+half"), item.endswith("+half")
        for way, make in WAYS.items():
            torch.manual_seed(0)
            step = make(GPU[name], "cuda", half)
            for _ in range(3):
                step()
            print(f"== {item} {way}", flush=True)
            if "--no-time" not in sys.argv:
                kernels(step, 30)
            if "--no-memory" not in sys.argv:
                memory(step, 24)
            del step
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
