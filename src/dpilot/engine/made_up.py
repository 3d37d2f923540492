"""What made-up samples show of a model before any record is read.

A pass over records is judged by its own operations (trace/). Made-up samples come first, so that a model that
combines samples is refused before anything is spent, and are a second line: compared with one sample at a time.

On a GPU an index that does not exist ends the process. On the CPU it is an error, and here it is made an IndexError on
every device (``BoundsCheckMode``), so that samples run on a GPU where they run on the CPU, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

from dpilot.engine import batch as batches
from dpilot.engine import single_backward
from dpilot.engine.base import LossFunction, NoRule, PerSample
from dpilot.engine.batch import Chunk
from dpilot.engine.generators import GeneratorStates, keep_draws, sow
from dpilot.engine.isolate import loop
from dpilot.engine.state import modules_of, preserve_state, preserve_structure
from dpilot.engine.trace import judge
from dpilot.errors import DpilotError, UnsupportedModel
from dpilot.numerics import precision
from dpilot.numerics.devices import policy_of

DEPENDS = "the gradient of one sample depends on the others"
Run = Callable[..., PerSample]
Made = TypeVar("Made")
Alone = list[dict[str, Tensor]]
"""Gradients of a few samples, each computed alone."""
REMEDY = (
    "Remedy: no statistics, ranks or counts over the batch, nothing kept of a batch for the next, and losses that are "
    'neither reduced (reduction="none") nor divided by the size of the batch.'
)
ALONE = 'Use engine="auto", which then computes one sample at a time.'


def examine(chunk: Chunk) -> bool:
    """Find that the model keeps samples apart; whether it draws random numbers.

    Shapes and dtypes of the batch are read, not its values. Tried are chunks of the batch's own size and of a size that
    divides no width. Random layers are off while the engine is compared with one sample at a time; with them on,
    changing one sample must move no other.

    Raises:
        UnsupportedModel: the gradient of one sample depends on the others.
        NoRule: it is not known which rows belong to which sample, or the model does not run on made-up samples. Then
            ``auto`` takes an engine that computes samples one by one.
    """
    return examine_sizes(chunk, sizes(chunk))


def examine_sizes(chunk: Chunk, tried: Iterable[int]) -> bool:
    """``examine`` with made-up chunks of given sizes; the same few samples are compared in each of them."""
    random, first, alone = False, None, dict[bool, Alone]()
    with leave_as_found(chunk.model, chunk.loss_fn), without_checks():
        try:
            for made_up in map(chunk.made_up, tried):
                first = first or made_up
                exchange_samples(made_up, first)
                random = require_apart(made_up)
                compare(made_up, random, alone)
        except DpilotError:
            raise
        except Exception as error:  # whatever a user's model does with made-up samples
            raise NoRule(
                f"{type(chunk.model).__name__} cannot run on made-up samples (normal floats, whole numbers 0 and 1): "
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
        examine_sizes(Chunk(model, loss_fn, batch, n, per_batch), [max(n, 2)])


def sizes(chunk: Chunk) -> list[int]:
    """Sizes of made-up chunks: a free one, and the batch's own where it is more than one."""
    free = free_size(chunk, 3)
    return [free] if chunk.n in (1, free) else [free, chunk.n]


def free_size(chunk: Chunk, least: int) -> int:
    """The least size of a chunk that is coprime to every length in parameters, buffers and the batch but its own.

    So nothing of that size, or of a multiple of it, is taken for samples, in a part of the batch that all share either.
    """
    modules = modules_of(chunk.model, chunk.loss_fn)
    held = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
    lengths = {size for t in held if t is not None and not is_lazy(t) for size in t.shape}
    for t in batches.tensors(chunk.batch):
        lengths.update(t.shape[1:] if batches.holds_samples(t, chunk.n) else t.shape)
    return next(k for k in count(least) if all(math.gcd(k, size) == 1 for size in lengths if size))


def chosen_of(made_up: Chunk) -> list[int]:
    """The samples of a chunk that are also computed alone."""
    return sorted({0, made_up.n // 2, made_up.n - 1})


def exchange_samples(made_up: Chunk, first: Chunk) -> None:
    """Let the chosen samples of a chunk be those of the first, which was made up for it and has as many or more."""
    for mine, other in zip(batches.tensors(made_up.batch), batches.tensors(first.batch), strict=True):
        if mine is not other and batches.holds_samples(other, first.n):
            for here, there in zip(chosen_of(made_up), chosen_of(first), strict=False):
                mine[here] = other[there]


def require_apart(made_up: Chunk) -> bool:
    """Refuse a model whose operations combine samples; NoRule if it is not known which rows belong to which.

    Whether random numbers were drawn.
    """
    before = GeneratorStates.now()
    verdict = carefully(made_up, judge)
    if verdict.kind == "mixed":
        raise UnsupportedModel(f"{type(made_up.model).__name__}: {DEPENDS}: {verdict.why}. {REMEDY}")
    if verdict.kind == "unknown":
        raise NoRule(f"{verdict.why}. {ALONE}")
    return before.moved()


def require_loss_each(chunk: Chunk) -> None:
    """Refuse losses that are not one a sample: for engines that see samples alone, where a mean over one passes.

    A model that does not run on made-up samples is not judged.
    """
    made_up, found, held = chunk.made_up(free_size(chunk, 2)), list[Any](), (chunk.model, chunk.loss_fn)
    with leave_as_found(*held), preserve_state(*held), without_checks(), suppress(Exception):
        found.append(carefully(made_up, Chunk.losses))
    for losses in found:
        batches.check_losses(losses, made_up.n)


def compare(made_up: Chunk, random: bool, alone: dict[bool, Alone]) -> None:
    """Refuse where single-backward and one sample at a time differ.

    ``random`` says whether the model draws random numbers; ``alone`` are the chosen samples' gradients with and without
    random layers, found once for chunks of all sizes.
    """
    with evaluation_mode(made_up.model, random):
        same = carefully(made_up, partial(agrees_with_loop, random=random, known=alone))
        same = same or (random and is_random(made_up))
    if random:
        with keep_draws():
            same = same and keeps_others(made_up, made_up.n - 1)
    if not same:
        raise UnsupportedModel(f"{type(made_up.model).__name__}: {DEPENDS}, or on how many there are. {REMEDY}")


def agrees_with_loop(made_up: Chunk, *, random: bool, known: dict[bool, Alone]) -> bool:
    """The weighted sum of three samples in single-backward equals the loop's, which is added up sample by sample."""
    chosen = chosen_of(made_up)
    ours = single_backward.run(made_up, reason="")
    weights = torch.zeros_like(ours.norms)
    weights[chosen] = distinct_weights(ours.norms)[chosen]
    sums = ours.weighted_sum(weights)
    oracle = {name: torch.zeros_like(g) for name, g in sums.items()}
    if random not in known:
        known[random] = loop.gradients(made_up, chosen)
    for i, gradient in zip(chosen, known[random], strict=False):
        for name, g in gradient.items():
            oracle[name] += weights[i] * g
    return not far(sums, oracle, tolerance(made_up.model))


def refuse_company(chunk: Chunk, run: Run) -> None:
    """Refuse a model whose samples meet although an engine computes them one by one.

    They meet in state that is not restored between samples (limits of StateSnapshot): the last is changed, which is
    computed after all others, and the first.
    """
    made_up = chunk.made_up(free_size(chunk, 3))
    works = [partial(keeps_others, place=place, run=run) for place in (0, made_up.n - 1)]
    with leave_as_found(chunk.model, chunk.loss_fn), without_checks(), keep_draws():
        try:
            same = all(carefully(made_up, work) for work in works)
        except Exception:  # whatever a user's model does with made-up samples
            return
    if not same:
        raise UnsupportedModel(f"{type(chunk.model).__name__}: {DEPENDS}, also where each is computed alone. {REMEDY}")


def keeps_others(made_up: Chunk, place: int, run: Run = single_backward.run) -> bool:
    """All but one sample have the same gradients if that one is another, drawn with the same random numbers."""

    def others(chunk: Chunk) -> dict[str, Tensor]:
        sow(0)  # the generators are restored by ``keep_draws``
        ps = run(chunk, reason="")
        weights = distinct_weights(ps.norms)
        weights[place] = 0.0
        return ps.weighted_sum(weights)

    def with_neighbour(t: Tensor) -> Tensor:
        """A copy of the sample before it in one place (of the last in the first): another valid batch."""
        return torch.cat([t[:place], t[[place - 1]], t[place + 1 :]])

    return not far(others(made_up), others(made_up.changed(with_neighbour)), tolerance(made_up.model))


def is_random(made_up: Chunk) -> bool:
    """Whether random numbers are drawn; with gradients on, as some models need them."""
    before = GeneratorStates.now()
    with preserve_state(made_up.model, made_up.loss_fn):
        made_up.losses()
    return before.moved()


def carefully(chunk: Chunk, work: Callable[[Chunk], Made]) -> Made:
    """What the work with the samples gives; on an accelerator looked at first, where the model can be."""
    held = (*chunk.model.parameters(), *chunk.model.buffers(), *batches.tensors(chunk.batch))
    return check_values_first(partial(work, chunk)) if need_checks(held) else work(chunk)


@contextmanager
def evaluation_mode(model: nn.Module, wanted: bool = True) -> Iterator[None]:
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
def leave_as_found(model: nn.Module, loss_fn: LossFunction) -> Iterator[None]:
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


def distinct_weights(norms: Tensor) -> Tensor:
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


NO_PLACE = "a place that does not exist"
UNLIKELY = "numbers that are not between 0 and 1"
BAGS = (
    "offsets that do not ascend from 0 to the number of ids at most. "
    "Give ids as (n, length) rows, with padding_idx for shorter ones."
)


class Span(NamedTuple):
    """Numbers, the least and the greatest that an operation takes, and what is said of others; NaN is one of those."""

    numbers: Tensor
    least: float
    greatest: float
    trouble: str = NO_PLACE

    def holds(self) -> bool:
        return bool(((self.numbers >= self.least) & (self.numbers <= self.greatest)).all())


Spans = Iterator[Span]


def of_table(args: Any) -> Spans:
    """(table, ids, ...): rows of a table."""
    yield Span(args[1], 0, args[0].shape[0] - 1)


def bags(args: Any) -> Spans:
    """(table, ids, offsets, ...): ids from each offset to the next."""
    _, ids, offsets = args[:3]
    yield from of_table(args)
    yield Span(offsets[:1], 0, 0, BAGS)
    yield Span(offsets, 0, ids.numel(), BAGS)
    yield Span(offsets.diff(), 0, math.inf, BAGS)


def along(args: Any) -> Spans:
    """(self, dimension, places, ...)."""
    shape = args[0].shape or (1,)
    yield Span(args[2], 0, shape[args[1]] - 1)


def flat(args: Any) -> Spans:
    """(self, places, ...): numbers of elements, counted from the end where they are negative."""
    yield Span(args[1], -args[0].numel(), args[0].numel() - 1)


def subscripts(args: Any) -> Spans:
    """(self, (places or None, ...), ...): self[places]; a mask stands for as many dimensions as it has."""
    dimension = 0
    for places in args[1]:
        if places is not None and places.dtype not in (torch.bool, torch.uint8):
            yield Span(places, -args[0].shape[dimension], args[0].shape[dimension] - 1)
        dimension += 1 if places is None or places.dtype not in (torch.bool, torch.uint8) else places.dim()


def labels(args: Any) -> Spans:
    """(logarithms, labels, weight, reduction, ignored)."""
    known = args[0].shape[0] if args[0].dim() == 1 else args[0].shape[1]
    yield Span(args[1].masked_fill(args[1] == args[4], 0), 0, known - 1)


def margins(args: Any) -> Spans:
    """(scores, labels, ...); -1 ends a list of labels."""
    yield Span(args[1], -1, args[0].shape[-1] - 1)


def ctc_arguments(args: Any) -> Spans:
    """(logarithms, labels, lengths, lengths, ...)."""
    yield Span(args[1], 0, args[0].shape[-1] - 1)
    yield from (Span(lengths, 0, math.inf) for lengths in args[2:4] if isinstance(lengths, Tensor))


def counts(args: Any) -> Spans:
    """(repeats or rates, ...)."""
    yield Span(args[0], 0, math.inf, "numbers that must be non-negative")


def unpool_arguments(args: Any) -> Spans:
    """(values, places in an image, size of the image, ...)."""
    yield Span(args[1], 0, math.prod(args[2]) - 1)


def scatter_arguments(args: Any) -> Spans:
    """(self, mask, source): as many numbers as the mask has places."""
    mask = torch.logical_and(args[1], torch.ones_like(args[0], dtype=torch.bool))
    yield Span(mask.sum(), 0, args[2].numel(), "fewer numbers than places")


def likely(args: Any) -> Spans:
    """(probabilities, probabilities, ...)."""
    yield from (Span(p, 0, 1, UNLIKELY) for p in args[:2])


def chances(args: Any) -> Spans:
    """(probabilities), (self, probabilities) or (self, one number), which torch looks at itself."""
    if isinstance(args[-1], Tensor):
        yield Span(args[-1], 0, 1, UNLIKELY)


def chances_written(args: Any) -> Spans:
    """(self), (self, probabilities) or (self, one number)."""
    yield from chances(args) if args[1:] else ()


def weights(args: Any) -> Spans:
    """(weights, ...), some of which must be positive."""
    trouble = "weights that are negative, not finite or all 0"
    yield Span(args[0], 0, torch.finfo(args[0].dtype).max, trouble)
    yield Span(args[0].sum(-1) > 0, True, True, trouble)


def assert_arguments(args: Any) -> Spans:
    """(a truth, ...)."""
    yield Span(args[0] != 0, True, True, "an assertion that fails")


TAKERS: dict[Callable[[Any], Spans], str] = {
    of_table: "embedding embedding_renorm_",
    bags: "_embedding_bag _embedding_bag_forward_only",
    along: """gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_select index_add
        index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_""",
    flat: "take put put_",
    subscripts: "index _unsafe_index index_put index_put_ _unsafe_index_put _index_put_impl_",
    labels: "nll_loss_forward nll_loss2d_forward",
    margins: "multi_margin_loss multilabel_margin_loss_forward",
    ctc_arguments: "_ctc_loss _cudnn_ctc_loss",
    counts: "repeat_interleave poisson",
    unpool_arguments: "max_unpool2d max_unpool3d",
    scatter_arguments: "masked_scatter masked_scatter_",
    likely: "binary_cross_entropy",
    chances: "bernoulli",
    chances_written: "bernoulli_",
    weights: "multinomial",
    assert_arguments: "_assert_async _functional_assert_async",
}
"""The operations of torch that end the process on a GPU where numbers are not what they take.

They lie below every function and every script that uses them.
"""
LIMITS = {name: spans for spans, names in TAKERS.items() for name in names.split()}


@final
class BoundsCheckMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise IndexError before an operation takes a number that it does not know, such as a place that does not exist.

    ``found`` says so afterwards, also where a script or the model turned the error into something else.

    Example:
        >>> with BoundsCheckMode():
        ...     print(int((torch.tensor([-100, 1]) != -100).sum()), float(torch.eye(3)[torch.tensor([-1])].sum()))
        ...     torch.eye(3)[torch.tensor([-100, 1])]
        Traceback (most recent call last):
            ...
        IndexError: index: a place that does not exist
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        for span in LIMITS[name](args) if name in LIMITS else ():
            if not span.holds():
                self.found = f"{name}: {span.trouble}"
                raise IndexError(self.found)
        return func(*args, **(kwargs or {}))


def check_values_first(work: Callable[[], Made]) -> Made:
    """What the work gives, with numbers looked at first; work that cannot be looked at is done as it is.

    Guarantee:
        IndexError for a number that an operation does not know, also where the work goes on after it.

    Example:
        >>> check_values_first(lambda: int(torch.eye(3)[torch.tensor([1])].sum()))
        1
    """
    looking, made = BoundsCheckMode(), list[Made]()
    with suppress(Exception), looking:  # what a model cannot do under a mode it may do without
        made.append(work())
    if looking.found:
        raise IndexError(looking.found)
    return made[0] if made else work()


def without_checks() -> AbstractContextManager[Any]:
    """Nothing is looked at for a while: whether a model can be must not decide what is found out about it."""
    modes = _get_current_dispatch_mode_stack()
    return _disable_current_modes() if any(isinstance(mode, BoundsCheckMode) for mode in modes) else nullcontext()


def need_checks(tensors: Iterable[Tensor]) -> bool:
    """Whether any of them lies where an index that does not exist ends the process."""
    return any(policy_of(t.device).checks_indices for t in tensors)
