"""Made-up samples on a GPU, where a place that does not exist ends the process: numbers are looked at before use.

On the CPU such a place is an error. Here it is made an IndexError on every device, so that samples run on a GPU where
they run on the CPU, and only there. Operations that take every number are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

from dpilot.engine import batch as batches

Made = TypeVar("Made")
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


def on_accelerator(model: nn.Module, batch: Any) -> bool:
    """Whether anything of the model or the batch lies elsewhere than on the CPU."""
    return on_other_device(*model.parameters(), *model.buffers(), *batches.tensors(batch))


def on_other_device(*tensors: Tensor) -> bool:
    """Whether any of them lies elsewhere than on the CPU."""
    return any(t.device.type != "cpu" for t in tensors)
