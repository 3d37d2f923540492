"""Trying -100 on a GPU, where a place that does not exist ends the process: places are looked at before they are used.

On the CPU such a place is an IndexError. Here it is made one on every device, so that a variant runs on a GPU where it
runs on the CPU, and only there. Operations that do not take numbers for places are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpilot.engine import batch as batches

Places = Iterator[tuple[Tensor, int, int]]
"""Whole numbers, and the least and the greatest that exist."""
MANY = torch.iinfo(torch.int64).max


def of_table(args: Any) -> Places:
    """(table, ids, ...): rows of a table."""
    yield args[1], 0, args[0].shape[0] - 1


def along(args: Any) -> Places:
    """(self, dimension, places, ...)."""
    shape = args[0].shape or (1,)
    yield args[2], 0, shape[args[1]] - 1


def flat(args: Any) -> Places:
    """(self, places, ...): numbers of elements, counted from the end where they are negative."""
    yield args[1], -args[0].numel(), args[0].numel() - 1


def subscripts(args: Any) -> Places:
    """(self, (places or None, ...), ...): self[places]; a mask stands for as many dimensions as it has."""
    dimension = 0
    for places in args[1]:
        if places is not None and places.dtype not in (torch.bool, torch.uint8):
            yield places, -args[0].shape[dimension], args[0].shape[dimension] - 1
        dimension += 1 if places is None or places.dtype not in (torch.bool, torch.uint8) else places.dim()


def labels(args: Any) -> Places:
    """(logarithms, labels, weight, reduction, ignored)."""
    known = args[0].shape[0] if args[0].dim() == 1 else args[0].shape[1]
    yield args[1].masked_fill(args[1] == args[4], 0), 0, known - 1


def margins(args: Any) -> Places:
    """(scores, labels, ...); -1 ends a list of labels."""
    yield args[1], -1, args[0].shape[-1] - 1


def spelling(args: Any) -> Places:
    """(logarithms, labels, lengths, lengths, ...)."""
    yield args[1], 0, args[0].shape[-1] - 1
    yield from ((lengths, 0, MANY) for lengths in args[2:4] if isinstance(lengths, Tensor))


def counts(args: Any) -> Places:
    """(repeats, ...)."""
    yield args[0], 0, MANY


TAKERS: dict[Callable[[Any], Places], str] = {
    of_table: "embedding embedding_renorm_ _embedding_bag _embedding_bag_forward_only",
    along: """gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_select index_add
        index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_""",
    flat: "take put put_",
    subscripts: "index _unsafe_index index_put index_put_ _unsafe_index_put _index_put_impl_",
    labels: "nll_loss_forward nll_loss2d_forward",
    margins: "multi_margin_loss multilabel_margin_loss_forward",
    spelling: "_ctc_loss _cudnn_ctc_loss",
    counts: "repeat_interleave",
}
"""The operations of torch that take numbers for places, below every function and every script that uses them."""
PLACES = {name: places for places, names in TAKERS.items() for name in names.split()}


@final
class LookingFirst(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise IndexError before an operation takes a number for a place that does not exist.

    Example:
        >>> with LookingFirst():
        ...     print(int((torch.tensor([-100, 1]) != -100).sum()), float(torch.eye(3)[torch.tensor([-1])].sum()))
        ...     torch.eye(3)[torch.tensor([-100, 1])]
        Traceback (most recent call last):
            ...
        IndexError: index: a place that does not exist
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        for t, least, greatest in PLACES[name](args) if name in PLACES else ():
            if bool(((t < least) | (t > greatest)).any()):
                raise IndexError(f"{name}: a place that does not exist")
        return func(*args, **(kwargs or {}))


def on_accelerator(model: nn.Module, batch: Any) -> bool:
    """Whether anything of the model or the batch lies elsewhere than on the CPU."""
    return any(t.device.type != "cpu" for t in (*model.parameters(), *model.buffers(), *batches.tensors(batch)))
