"""One training step, several ways: plain PyTorch, dpilot, Opacus with hooks, Opacus with ghost clipping.

dpilot replays a CUDA graph (on a GPU), the batch whole or in two halves; launches its kernels as usual; or runs the
backward pass twice to keep no records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.engine.workloads import Workload
from dpilot import clipping, engine
from dpilot.mechanism import release
from dpilot.privacy.events import Gaussian, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.train.graphed_clip import GraphedClip

Step = Callable[[], None]
RATE = 1e-3


def casts(device: str, half: bool) -> Any:
    return torch.autocast(device, torch.bfloat16) if half else nullcontext()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)


def plain(work: Workload, device: str, half: bool) -> Step:
    model, (x, y) = _made(work, device), _on(work.batch(work.size), device)
    optimizer, loss_fn = sgd(model), work.loss(reduction="mean")

    def step() -> None:
        with casts(device, half):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(work: Workload, device: str, half: bool, *, low_memory: bool = False, chunks: int = 0) -> Step:
    """dpilot's step; with ``chunks`` the batch is replayed in so many chunks, without it is launched as usual."""
    model, batch = _made(work, device), _on(work.batch(work.size), device)
    optimizer, loss_fn = sgd(model), work.loss(reduction="none")
    rule = clipping.get("constant", threshold=1.0)
    state = rule.init(noise_multiplier=1.0, expected_batch_size=work.size, dimension=1, device=device)
    receipt = Receipt(Repeated(Gaussian(1.0), 10**9))
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = work.size // max(chunks, 1)
    parts = [tuple(t[start : start + rows] for t in batch) for start in range(0, work.size, rows)]
    launched = partial(engine.per_sample, model, loss_fn, engine="single-backward", low_memory=low_memory)
    per_sample = engine.Graphed(model, loss_fn, rows=rows, engine="single-backward") if chunks else launched
    clip = GraphedClip(rule, rows) if chunks else rule.clip

    def summed(part: Any) -> dict[str, torch.Tensor]:
        with casts(device, half):
            gradients = per_sample(part)
        return gradients.weighted_sum(clip(gradients.norms, state)[0])

    def all_of_them() -> dict[str, torch.Tensor]:
        total = summed(parts[0])
        for part in parts[1:]:
            total = dict(zip(total, torch._foreach_add(list(total.values()), list(summed(part).values())), strict=True))
        return total

    def step() -> None:
        total = all_of_them()
        released = release(total, bound=1.0, noise_multiplier=1.0, receipt=receipt)
        torch._foreach_div_(list(released.values()), float(work.size))
        for name, parameter in parameters.items():
            parameter.grad = released[name].to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_hooks(work: Workload, device: str, half: bool) -> Step:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(_made(work, device))
    optimizer = DPOptimizer(sgd(model), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=work.size)
    (x, y), loss_fn = _on(work.batch(work.size), device), work.loss(reduction="mean")

    def step() -> None:
        with casts(device, half):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(work: Workload, device: str, half: bool) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = GradSampleModuleFastGradientClipping(_made(work, device), max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        sgd(module), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=work.size
    )
    loss_fn = DPLossFastGradientClipping(module, optimizer, work.loss(reduction="mean"))
    x, y = _on(work.batch(work.size), device)

    def step() -> None:
        with casts(device, half):
            loss = loss_fn(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


WAYS: dict[str, Callable[..., Step]] = {
    "plain": plain,
    "dpilot": partial(ours, chunks=1),
    "dpilot halves": partial(ours, chunks=2),
    "dpilot launched": ours,
    "dpilot 2 passes": partial(ours, low_memory=True),
    "opacus hooks": opacus_hooks,
    "opacus ghost": opacus_ghost,
}
warnings.filterwarnings("ignore", module="opacus")
warnings.filterwarnings("ignore", message=".*backward hook.*")


def _made(work: Workload, device: str) -> nn.Module:
    with torch.device(device):  # drawn there: large models take long on a processor
        return work.make().to(device)


def _on(batch: Any, device: str) -> Any:
    return tuple(part.to(device) for part in batch)
