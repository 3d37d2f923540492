"""Does each sample's gradient depend on that sample alone? Asked once of every model, on made-up samples.

The single-backward engine trusts that samples lie on the first dimension and never meet. Here that trust is tested: the
weighted sum with random weights must equal the one of the loop oracle, in which samples cannot meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine import loop, precision, single_backward
from dpilot.engine.base import LossFunction, NoRule, trainable
from dpilot.engine.masking import LookingFirst, Made, looked_at, on_accelerator, unwatched
from dpilot.engine.recorder import Recorder
from dpilot.engine.state import preserve_state, tops
from dpilot.errors import DpilotError, UnsupportedModel

SAMPLES = 3
SCALES = (10.0, 1e2, 1e4, 1e6)
"""How much larger samples are when they are made up again: a buffer may keep only what is large."""
MIXES = (
    "the gradient of one sample depends on the others, or samples are not first in the input of every layer. "
    "Remedy: batch_first=True, no batch statistics, no loss divided by a count over the batch."
)


def verify(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> str:
    """Say how the model was found to keep samples apart, or raise UnsupportedModel.

    Shapes and dtypes of the batch are read, not its values. Random layers are off while the engine is compared with the
    oracle; with them on, two weaker tests remain: the backward pass of a combination of the losses is that combination
    of the records, and changing one sample moves no other. A model that cannot run on made-up samples cannot be
    tested without looking at records, so there is no verdict (NoRule) and ``auto`` takes an engine that needs none.
    """
    made_up = batches.synthetic(batch, n, SAMPLES, torch.Generator().manual_seed(0))
    with untouched(model, loss_fn), unwatched():
        try:
            refuse_leaking_state(model, loss_fn, made_up, per_batch)
            random = is_random(model, loss_fn, made_up, per_batch)
            with evaluating(model, random):
                same = carefully(model, made_up, partial(agrees_with_loop, model, loss_fn, made_up, per_batch))
                same = same and masked_samples_agree(model, loss_fn, made_up, per_batch)
                right = same or (random and is_random(model, loss_fn, made_up, per_batch))
            right = right and (not random or stays_apart(model, loss_fn, made_up, SAMPLES, per_batch))
        except DpilotError:
            raise
        except Exception as error:  # whatever a user's model does with made-up samples
            raise NoRule(
                f"{type(model).__name__} cannot run on made-up samples (normal floats, whole numbers 0 and 1): "
                f"{type(error).__name__}: {error} Keep samples first, let the model accept such samples, or use "
                'engine="auto", which falls back.'
            ) from error
        if not right:
            raise UnsupportedModel(f"{type(model).__name__}: {MIXES}")
    return "its samples stay apart" if random else "agrees with one sample at a time on made-up samples"


def stays_apart(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> bool:
    """Neither the backward nor the forward pass carries anything from one sample to another."""
    changed = batches.rebuild(batch, lambda t: first_for_last(t, n))
    return combines(model, loss_fn, batch, n, per_batch) and unmoved(model, loss_fn, batch, changed, n, per_batch)


def masked_samples_agree(model: nn.Module, loss_fn: LossFunction, made_up: Any, per_batch: bool) -> bool:
    """The same where samples differ in what is masked or ignored; a variant that does not run says nothing.

    On an accelerator -100 is tried where places are looked at first. A model that cannot run so at all raises: what
    the CPU would have found is then not known. Masks are tried without, if need be.
    """
    accelerated = on_accelerator(model, made_up)
    for variant in batches.variants(made_up):
        work = partial(agrees_with_loop, model, loss_fn, variant, per_batch)
        looking = accelerated and ignores(made_up, variant)
        if looking:
            with LookingFirst():
                agrees_with_loop(model, loss_fn, made_up, per_batch)
        try:
            with LookingFirst() if looking else nullcontext():
                same = work() if looking else carefully(model, variant, work)
        except Exception:  # an id or a label that this model does not know
            continue
        if not same:
            return False
    return True


def ignores(made_up: Any, variant: Any) -> bool:
    """Whether whole numbers were made -100, not booleans false."""
    both = zip(batches.tensors(made_up), batches.tensors(variant), strict=True)
    return any(old is not new and new.dtype != torch.bool for old, new in both)


def agrees_with_loop(model: nn.Module, loss_fn: LossFunction, made_up: Any, per_batch: bool) -> bool:
    """The weighted sum of single-backward equals the loop's, which is added up sample by sample."""
    ours = single_backward.run(model, loss_fn, made_up, n=SAMPLES, per_batch=per_batch, reason="")
    weights = mixing_weights(ours.norms)
    sums = ours.weighted_sum(weights)
    oracle = {name: torch.zeros_like(g) for name, g in sums.items()}
    alones = loop.gradients(model, loss_fn, made_up, SAMPLES, per_batch)
    for weight, alone in zip(weights, alones, strict=True):
        for name, g in alone.items():
            oracle[name] += weight * g
    return not far(sums, oracle, tolerance(model))


def combines(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> bool:
    """sum r_i g_i from the records equals the gradient of sum r_i loss_i, on one graph (so dropout may stay on)."""
    parameters = trainable(model)
    recorder = Recorder(parameters, n)
    losses = single_backward.forward(recorder, model, loss_fn, batch, per_batch)
    first = single_backward.finish(recorder, losses, parameters, "", retain=True)
    weights = mixing_weights(first.norms)
    second = single_backward.finish(recorder, losses, parameters, "", scale=weights.to(losses))
    return not far(first.weighted_sum(weights), second.weighted_sum(torch.ones_like(weights)), tolerance(model))


def unmoved(model: nn.Module, loss_fn: LossFunction, batch: Any, changed: Any, n: int, per_batch: bool) -> bool:
    """All but the last sample have the same gradients in both batches, drawn with the same random numbers."""

    def others(chosen: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)  # the generators are put back by ``untouched``
        ps = single_backward.run(model, loss_fn, chosen, n=n, per_batch=per_batch, reason="")
        weights = mixing_weights(ps.norms)
        weights[-1] = 0.0
        return ps.weighted_sum(weights)

    return not far(others(batch), others(changed), tolerance(model))


def first_for_last(t: Tensor, n: int) -> Tensor:
    """The batch with a copy of its first sample in the place of the last: another valid batch."""
    return torch.cat([t[:-1], t[:1]]) if t.dim() and t.shape[0] == n else t


def is_random(model: nn.Module, loss_fn: LossFunction, made_up: Any, per_batch: bool) -> bool:
    """Whether the same samples give other losses the second time; with gradients on, as some models need them."""
    first, second = (batches.losses(model, loss_fn, made_up, per_batch).detach() for _ in range(2))
    return not torch.equal(first, second)


def refuse_leaking_state(model: nn.Module, loss_fn: LossFunction, made_up: Any, per_batch: bool) -> None:
    """A buffer that remembers the samples is a release without noise: all samples must leave the same in it.

    So is a frozen parameter.
    """

    def left(samples: Any) -> dict[tuple[int, str], Tensor]:
        with preserve_state(model, loss_fn):
            batches.losses(model, loss_fn, samples, per_batch)
            return {name: t.detach().clone() for name, t in named_state(model, loss_fn).items()}

    first, *others = (carefully(model, s, partial(left, s)) for s in (made_up, scaled(made_up, -1.0)))
    again = batches.synthetic(made_up, SAMPLES, SAMPLES, torch.Generator().manual_seed(1))
    for factor in SCALES:
        with suppress(Exception), careful(model, made_up):  # numbers of a size that this model does not take
            others.append(left(scaled(again, factor)))
    for key in {key: None for found in (first, *others) for key in found}:
        if not all(key in first and key in found and torch.equal(first[key], found[key]) for found in others):
            raise UnsupportedModel(
                f"buffer or frozen parameter {key[1]!r} keeps statistics of the samples, without noise. Remedy: put "
                "that layer in eval mode, or switch its running statistics off."
            )


def named_state(*roots: Any) -> dict[tuple[int, str], Tensor]:
    """Buffers and frozen parameters, by the place of their root and their name."""
    return {
        (place, f"{path}.{name}" if path else name): t
        for place, top in enumerate(tops(*roots))
        for path, module in top.named_modules()
        for held in (module._buffers, module._parameters)
        for name, t in held.items()
        if t is not None and (held is module._buffers or not t.requires_grad)
    }


def careful(model: nn.Module, made_up: Any) -> AbstractContextManager[Any]:
    """Look at places first on an accelerator, where a number too large for one would end the process."""
    return LookingFirst() if on_accelerator(model, made_up) else nullcontext()


def carefully(model: nn.Module, samples: Any, work: Callable[[], Made]) -> Made:
    """What the work with the samples gives; on an accelerator looked at first, where the model can be."""
    return looked_at(work) if on_accelerator(model, samples) else work()


def scaled(samples: Any, factor: float) -> Any:
    """The samples with every float multiplied."""
    return batches.rebuild(samples, lambda t: t * factor if t.is_floating_point() else t)


@contextmanager
def evaluating(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Evaluation mode for a while, if wanted; every module's own mode is put back."""
    modes = {module: module.training for module in model.modules()}
    if wanted:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def untouched(model: nn.Module, loss_fn: LossFunction) -> Iterator[None]:
    """Leave all but trained parameters as it was; compute in full precision, so that only mistakes differ.

    cuDNN picks other algorithms for other batch sizes, whose rounding differs more than a mistake may: it is off.
    """
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    steady = torch.backends.cudnn.flags(enabled=False) if devices else nullcontext()
    with torch.random.fork_rng(devices=devices), precision.full(), steady, preserve_state(model, loss_fn):
        yield


def mixing_weights(norms: Tensor) -> Tensor:
    """Different public weights, so that exchanged or mixed samples show."""
    return torch.linspace(0.5, 2.0, norms.shape[0], device=norms.device, dtype=norms.dtype).cos() + 1.5


def tolerance(model: nn.Module) -> float:
    """How far two right answers may differ in this model's precision."""
    kinds = {p.dtype for p in model.parameters()}
    if kinds & {torch.float16, torch.bfloat16}:
        return 0.2
    return 1e-8 if kinds == {torch.float64} else 2e-3


def far(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], relative: float) -> list[str]:
    """Parameters that differ by more than is allowed, relative to their size; not a number is far."""
    whole = max((float(t.abs().max()) for t in theirs.values() if t.numel()), default=0.0)

    def close(a: Tensor, b: Tensor) -> bool:
        return float((a - b).abs().max()) <= relative * (float(b.abs().max()) + 0.01 * whole) + 1e-12

    return [name for name, b in theirs.items() if b.numel() and not close(ours[name], b)]
