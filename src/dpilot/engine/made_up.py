"""What made-up samples show of a model before any record is read.

A pass over records is judged by its own operations (record/). Made-up samples come first, so that a model that
combines samples is refused before anything is spent, and are a second line: compared with one sample at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpilot.engine import batch as batches
from dpilot.engine import loop, single_backward
from dpilot.engine.base import LossFunction, NoRule, PerSample
from dpilot.engine.draws import GeneratorStates, keep_draws, sow
from dpilot.engine.masking import Made, check_values_first, on_accelerator, without_checks
from dpilot.engine.record import judge
from dpilot.engine.state import modules_of, preserve_state, preserve_structure
from dpilot.errors import DpilotError, UnsupportedModel
from dpilot.numerics import precision

DEPENDS = "the gradient of one sample depends on the others"
Run = Callable[..., PerSample]
REMEDY = (
    "Remedy: no statistics, ranks or counts over the batch, nothing kept of a batch for the next, and losses that are "
    'neither reduced (reduction="none") nor divided by the size of the batch.'
)
ALONE = 'Use engine="auto", which then computes one sample at a time.'


def examine(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> bool:
    """Find that the model keeps samples apart; whether it draws random numbers.

    Shapes and dtypes of the batch are read, not its values. Tried are chunks of the batch's own size and of a size that
    divides no width. Random layers are off while the engine is compared with one sample at a time; with them on,
    changing one sample must move no other.

    Raises:
        UnsupportedModel: the gradient of one sample depends on the others.
        NoRule: it is not known which rows belong to which sample, or the model does not run on made-up samples. Then
            ``auto`` takes an engine that computes samples one by one.
    """
    return examine_sizes(model, loss_fn, batch, n, per_batch, sizes(model, loss_fn, batch, n))


def examine_sizes(
    model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool, tried: Iterable[int]
) -> bool:
    """``examine`` with made-up chunks of given sizes."""
    random = False
    with untouched(model, loss_fn), without_checks():
        try:
            for size in tried:
                made_up = batches.synthetic(batch, n, size, torch.Generator().manual_seed(0))
                require_apart(model, loss_fn, made_up, size, per_batch)
                random = compare(model, loss_fn, made_up, size, per_batch)
        except DpilotError:
            raise
        except Exception as error:  # whatever a user's model does with made-up samples
            raise NoRule(
                f"{type(model).__name__} cannot run on made-up samples (normal floats, whole numbers 0 and 1): "
                f"{type(error).__name__}: {error} Keep samples first, let the model accept such samples, or use "
                'engine="auto", which falls back.'
            ) from error
    return random


def refuse_mixing(model: nn.Module, loss_fn: LossFunction, batch: Any, *, per_batch: bool = False) -> None:
    """Raise UnsupportedModel if made-up samples, in the form and number of the batch's, depend on each other.

    For whoever knows in what chunks a model will be trained, before anything is spent. What cannot be told, or does not
    run on made-up samples, is computed one sample at a time.
    """
    n = batches.size(batch, per_batch)
    with suppress(NoRule):
        examine_sizes(model, loss_fn, batch, n, per_batch, [max(n, 2)])


def sizes(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int) -> list[int]:
    """Sizes of made-up chunks: a free one, and the batch's own where it is more than one."""
    free = free_size(model, loss_fn, batch, n, 3)
    return [free] if n in (1, free) else [free, n]


def free_size(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, least: int) -> int:
    """The least size of a chunk that is coprime to every length in parameters, buffers and the batch but its own.

    So nothing of that size, or of a multiple of it, is taken for samples, in a part of the batch that all share either.
    """
    held = (t for m in modules_of(model, loss_fn) for t in (*m._parameters.values(), *m._buffers.values()))
    lengths = {size for t in held if t is not None and not is_lazy(t) for size in t.shape}
    for t in batches.tensors(batch):
        lengths.update(t.shape[1:] if t.dim() and t.shape[0] == n else t.shape)
    return next(k for k in count(least) if all(math.gcd(k, size) == 1 for size in lengths if size))


def require_apart(model: nn.Module, loss_fn: LossFunction, made_up: Any, n: int, per_batch: bool) -> None:
    """Refuse a model whose operations combine samples; NoRule if it is not known which rows belong to which."""
    verdict = carefully(model, made_up, partial(judge, model, loss_fn, made_up, n, per_batch))
    if verdict.kind == "mixed":
        raise UnsupportedModel(f"{type(model).__name__}: {DEPENDS}: {verdict.why}. {REMEDY}")
    if verdict.kind == "unknown":
        raise NoRule(f"{verdict.why}. {ALONE}")


def require_loss_each(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool) -> None:
    """Refuse losses that are not one a sample: for engines that see samples alone, where a mean over one passes.

    A model that does not run on made-up samples is not judged.
    """
    size, found = free_size(model, loss_fn, batch, n, 2), list[Any]()
    made_up = batches.synthetic(batch, n, size, torch.Generator().manual_seed(0))
    with untouched(model, loss_fn), preserve_state(model, loss_fn), without_checks(), suppress(Exception):
        found.append(carefully(model, made_up, partial(batches.losses, model, loss_fn, made_up, per_batch)))
    for losses in found:
        batches.check_losses(losses, size)


def compare(model: nn.Module, loss_fn: LossFunction, made_up: Any, n: int, per_batch: bool) -> bool:
    """Refuse where single-backward and one sample at a time differ; whether the model draws random numbers."""
    random = is_random(model, loss_fn, made_up, per_batch)
    with evaluating(model, random):
        same = carefully(model, made_up, partial(agrees_with_loop, model, loss_fn, made_up, n, per_batch))
        same = same or (random and is_random(model, loss_fn, made_up, per_batch))
    if random:
        with keep_draws():
            same = same and unmoved(model, loss_fn, made_up, n - 1, n, per_batch)
    if not same:
        raise UnsupportedModel(f"{type(model).__name__}: {DEPENDS}, or on how many there are. {REMEDY}")
    return random


def agrees_with_loop(model: nn.Module, loss_fn: LossFunction, made_up: Any, n: int, per_batch: bool) -> bool:
    """The weighted sum of three samples in single-backward equals the loop's, which is added up sample by sample."""
    chosen = sorted({0, n // 2, n - 1})
    ours = single_backward.run(model, loss_fn, made_up, n=n, per_batch=per_batch, reason="")
    weights = torch.zeros_like(ours.norms)
    weights[chosen] = mixing_weights(ours.norms)[chosen]
    sums = ours.weighted_sum(weights)
    oracle = {name: torch.zeros_like(g) for name, g in sums.items()}
    alones = loop.gradients(model, loss_fn, made_up, n, per_batch, chosen)
    for i, alone in zip(chosen, alones, strict=True):
        for name, g in alone.items():
            oracle[name] += weights[i] * g
    return not far(sums, oracle, tolerance(model))


def refuse_company(model: nn.Module, loss_fn: LossFunction, batch: Any, n: int, per_batch: bool, run: Run) -> None:
    """Refuse a model whose samples meet although an engine computes them one by one.

    They meet in state that is not restored between samples (limits of StateSnapshot): the last is changed, which is
    computed after all others, and the first.
    """
    size = free_size(model, loss_fn, batch, n, 3)
    made_up = batches.synthetic(batch, n, size, torch.Generator().manual_seed(0))
    works = [partial(unmoved, model, loss_fn, made_up, place, size, per_batch, run) for place in (0, size - 1)]
    with untouched(model, loss_fn), without_checks(), keep_draws():
        try:
            same = all(carefully(model, made_up, work) for work in works)
        except Exception:  # whatever a user's model does with made-up samples
            return
    if not same:
        raise UnsupportedModel(f"{type(model).__name__}: {DEPENDS}, also where each is computed alone. {REMEDY}")


def unmoved(
    model: nn.Module, loss_fn: LossFunction, batch: Any, place: int, n: int, per_batch: bool,
    run: Run = single_backward.run,
) -> bool:  # fmt: skip
    """All but one sample have the same gradients if that one is another, drawn with the same random numbers."""

    def others(chosen: Any) -> dict[str, Tensor]:
        sow(0)  # the generators are restored by ``keep_draws``
        ps = run(model, loss_fn, chosen, n=n, per_batch=per_batch, reason="")
        weights = mixing_weights(ps.norms)
        weights[place] = 0.0
        return ps.weighted_sum(weights)

    changed = batches.rebuild(batch, lambda t: with_neighbour(t, place, n))
    return not far(others(batch), others(changed), tolerance(model))


def with_neighbour(t: Tensor, place: int, n: int) -> Tensor:
    """The batch with a copy of the sample before it in one place (of the last in the first): another valid batch."""
    return torch.cat([t[:place], t[[place - 1]], t[place + 1 :]]) if t.dim() and t.shape[0] == n else t


def is_random(model: nn.Module, loss_fn: LossFunction, made_up: Any, per_batch: bool) -> bool:
    """Whether random numbers are drawn; with gradients on, as some models need them."""
    before = GeneratorStates.now()
    with preserve_state(model, loss_fn):
        batches.losses(model, loss_fn, made_up, per_batch)
    return before.moved()


def carefully(model: nn.Module, samples: Any, work: Callable[[], Made]) -> Made:
    """What the work with the samples gives; on an accelerator looked at first, where the model can be."""
    return check_values_first(work) if on_accelerator(model, samples) else work()


@contextmanager
def evaluating(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Evaluation mode for a while, if wanted; every module's own mode is restored."""
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
    """Leave model, loss and generators as they were; compute in full precision, so that only mistakes differ.

    cuDNN picks other algorithms for other batch sizes, whose rounding differs more than a mistake may: it is off.
    """
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    steady: AbstractContextManager[Any] = torch.backends.cudnn.flags(enabled=False) if devices else nullcontext()
    with (
        torch.random.fork_rng(devices=devices),
        precision.use_full_precision(),
        steady,
        preserve_structure(model, loss_fn),
    ):
        yield


def mixing_weights(norms: Tensor) -> Tensor:
    """Different public weights, so that exchanged or mixed samples show."""
    return torch.linspace(0.5, 2.0, norms.shape[0], device=norms.device, dtype=norms.dtype).cos() + 1.5


def tolerance(model: nn.Module) -> float:
    """How far two right answers may differ in this model's precision."""
    kinds = {p.dtype for p in model.parameters()}
    if kinds & {torch.float16, torch.bfloat16}:
        return 0.2
    return 1e-8 if kinds <= {torch.float64, torch.complex128} else 5e-3


def far(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], relative: float) -> list[str]:
    """Parameters that differ by more than is allowed, relative to their size; not a number is far."""
    whole = max((float(t.abs().max()) for t in theirs.values() if t.numel()), default=0.0)

    def close(a: Tensor, b: Tensor) -> bool:
        return float((a - b).abs().max()) <= relative * (float(b.abs().max()) + 0.01 * whole) + 1e-12

    return [name for name, b in theirs.items() if b.numel() and not close(ours[name], b)]
