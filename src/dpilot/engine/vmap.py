"""torch.func.vmap over the whole model: for what single-backward has no rule for."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction, NoRule, PerSample, accumulator, trainable
from dpilot.engine.loop import materialised
from dpilot.engine.quiet import no_batching_warnings
from dpilot.engine.state import StateSnapshot, preserve
from dpilot.engine.vmap_leaks import refuse_leaks


class BatchLoss(nn.Module):
    """Model and loss as one module, so that one functional call swaps the parameters for both call styles."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction, per_batch: bool) -> None:
        super().__init__()
        self.model, self.loss_fn, self.per_batch = model, loss_fn, per_batch

    def forward(self, batch: Any) -> Tensor:
        return batches.check_losses(batches.losses(self.model, self.loss_fn, batch, self.per_batch), 1).sum()


def run(model: nn.Module, loss_fn: LossFunction, batch: Any, *, n: int, per_batch: bool, reason: str) -> PerSample:
    """Gradients of every sample at once, each sample seen as a batch of one.

    Raises NoRule where vmap cannot run the model, or where the model may have seen more than one sample (vmap_leaks).

    Edge cases: random layers draw independently for every sample (randomness="different"); recurrent layers, data
    dependent branches and in-place writes into fresh tensors are torch.func's own limits and are refused.
    """
    whole = BatchLoss(model, loss_fn, per_batch)
    parameters = {f"model.{name}": p.detach() for name, p in trainable(model).items()}
    shared = [t.dim() == 0 or t.shape[0] != n for t in batches.tensors(batch)]
    stacked = [t if s else t.unsqueeze(1) for t, s in zip(batches.tensors(batch), shared, strict=True)]

    def loss(values: dict[str, Tensor], *sample: Tensor) -> Tensor:
        leaves = iter(sample)
        result: Tensor = functional_call(whole, values, (batches.rebuild(batch, lambda _: next(leaves)),))
        return result

    dims = (None, *(None if s else 0 for s in shared))
    before = StateSnapshot.of(model, loss_fn, batch)
    try:
        with preserve(before), no_batching_warnings(), refuse_leaks(before.generators):
            found = vmap(grad(loss), in_dims=dims, randomness="different")(parameters, *stacked)
    except (RuntimeError, NotImplementedError) as error:
        raise NoRule(f'vmap cannot run this model: {error} Use engine="single-backward" or "loop".') from error
    return materialised(
        "vmap", reason, {k.removeprefix("model."): g.detach().to(accumulator(g)) for k, g in found.items()}
    )
