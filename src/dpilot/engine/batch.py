"""A batch as a tree of tensors: its size, its samples one by one, a made-up batch of the same form; and its losses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpilot._validate import refuse
from dpilot.engine.base import LossFunction

FIRST = "Put the samples on the first dimension of every input (batch_first=True, x.transpose(0, 1))."


def tensors(tree: Any) -> list[Tensor]:
    """Every tensor of nested tuples, lists and mappings, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [t for value in tree for t in tensors(value)]
    if isinstance(tree, Mapping):
        return [t for value in tree.values() for t in tensors(value)]
    return []


def records(tree: Any, n: int) -> list[Tensor]:
    """The tensors of a batch of n whose first axis counts the samples; the others are shared by all of them."""
    return [t for t in tensors(tree) if holds_samples(t, n)]


def holds_samples(t: Tensor, n: int) -> bool:
    """Whether a tensor of a batch of n has a row for each sample."""
    return t.dim() > 0 and t.shape[0] == n


def rebuild(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with every tensor changed; other leaves and the containers' types stay."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return mapping_like(tree, {key: rebuild(value, change) for key, value in tree.items()})
    if isinstance(tree, (tuple, list)):
        return sequence_like(tree, [rebuild(value, change) for value in tree])
    return tree


def mapping_like(like: Any, values: Mapping[Any, Any]) -> Any:
    """A mapping of the kind of ``like``, with its keys in its order and other values; ``like`` stays as it is."""
    if type(like) is dict:
        return {key: values[key] for key in like}
    twin = copy.copy(like)
    for key, value in values.items():
        before = like[key]
        twin[key] = value
        if value is not before and like[key] is value:  # a shallow copy of this kind shares what it holds
            like[key] = before
            return type(like)({key: values[key] for key in like})
    return twin


def sequence_like(like: Any, values: list[Any]) -> Any:
    """A tuple or list of the kind of ``like``."""
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def size(batch: Any, per_batch: bool) -> int:
    """How many samples: the leading size of the targets (of the first tensor for a Hugging Face style batch)."""
    if per_batch:
        found = [t for t in tensors(batch) if t.dim()]
        if not found:
            refuse("batch", type(batch).__name__, "tensors in tuples, lists or mappings")
        return found[0].shape[0]
    inputs, targets = pair(batch)
    leading = [t.shape[0] for t in tensors(inputs) if t.dim()]
    wanted = [t.shape[0] for t in tensors(targets) if t.dim()]
    if not leading:
        refuse("batch inputs", type(inputs).__name__, "a tensor, a tuple or a mapping of tensors with samples first")
    n = (wanted or leading)[0]
    if n not in leading:
        refuse("batch", f"inputs {leading}, targets {n}", "inputs and targets with the same leading size", FIRST)
    return n


def pair(batch: Any) -> tuple[Any, Any]:
    """Split (x, y)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        refuse("batch", type(batch).__name__, "a pair (x, y)", "Use per_batch=True for batches of another form.")
    return batch[0], batch[1]


def rows(batch: Any, n: int, start: int, stop: int) -> Any:
    """Samples start .. stop of a batch of n; tensors without n leading entries are shared by all samples."""
    return rebuild(batch, lambda t: t[start:stop] if holds_samples(t, n) else t)


def copies_of(batch: Any, n: int, i: int) -> Any:
    """n copies of sample i of a batch of n."""
    return rebuild(batch, lambda t: t[i : i + 1].repeat(n, *[1] * (t.dim() - 1)) if holds_samples(t, n) else t)


def lists(tree: Any) -> list[Any]:
    """Every list and tuple of a batch that holds neither tensors nor further containers, such as texts, and arrays."""
    if isinstance(tree, np.ndarray) and tree.ndim:
        return [tree]
    if isinstance(tree, Mapping):
        return [found for value in tree.values() for found in lists(value)]
    if not isinstance(tree, (tuple, list)):
        return []
    if tree and not any(isinstance(value, (Tensor, Mapping, tuple, list, np.ndarray)) for value in tree):
        return [tree]
    return [found for value in tree for found in lists(value)]


def refuse_lists(batch: Any, n: int) -> None:
    """Refuse a list or numpy array with an entry for each of n samples, and a tuple of so many texts.

    Python would read those of all samples at once, and no operation would show it.
    """
    for found in lists(batch):
        texts = all(isinstance(value, (str, bytes)) for value in found)
        if len(found) == n and (texts or not isinstance(found, tuple)):
            held = type(found[0]).__name__
            remedy = (
                "Make them tensors where records are read, or leave them out; what all samples share may be a tuple."
            )
            refuse("batch", f"with {n} of {held} in a {type(found).__name__}", "a tensor with a row a sample", remedy)


def copy_tensors(batch: Any) -> Any:
    """The same with every tensor in memory of its own, row by row: around a slice of a chunk or of a data set lie other
    samples, and a chunk that is filled up, or made of copies, would lie there otherwise than one that is full, and so
    be rounded otherwise.

    Example:
        >>> whole = torch.zeros(4, 2)
        >>> copy_tensors(whole) is whole, copy_tensors(whole[1:]).storage_offset()
        (True, 0)
    """

    def own(t: Tensor) -> Tensor:
        if t.layout is not torch.strided:
            return t
        return t.clone(memory_format=torch.contiguous_format) if is_part(t) else t.contiguous()

    return rebuild(batch, own)


def is_part(t: Tensor) -> bool:
    """Whether there is more in the memory of a tensor than its entries."""
    repeated = any(size > 1 and not stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return repeated or t.numel() * t.element_size() != t.untyped_storage().nbytes()


def synthetic(batch: Any, n: int, count: int, generator: torch.Generator) -> Any:
    """A made-up batch of ``count`` samples with the shapes and dtypes of ``batch`` and none of its values.

    Floats are normal, whole numbers are 0 or 1 (valid for every vocabulary and every label), booleans are true.
    """

    def made_up(t: Tensor) -> Tensor:
        if not holds_samples(t, n):
            return t
        shape = (count, *t.shape[1:])
        if t.dtype == torch.bool:
            return torch.ones(shape, dtype=t.dtype, device=t.device)
        if t.dtype.is_floating_point:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device).to(t)
        return torch.randint(0, 2, shape, generator=generator, device=generator.device).to(t)

    return rebuild(batch, made_up)


def free_count(batch: Any, n: int, count: int) -> int:
    """The least number of samples from ``count`` on that no tensor or list has rows which all n samples share."""
    shared = {t.shape[0] for t in tensors(batch) if t.dim() and t.shape[0] != n} | set(map(len, lists(batch)))
    while count in shared:
        count += 1
    return count


def fill_up(batch: Any, n: int, count: int, places: Tensor) -> Any:
    """The n samples of a batch in the rows ``places``, and copies of the first in the others, ``count`` in all, or the
    next ``free_count``: what all samples share must not be taken for samples.

    Made-up samples would not do: a model may refuse what no sample holds, and a full chunk has none.

    Example:
        >>> fill_up((torch.ones(2, 1), torch.zeros(3)), 2, 3, torch.tensor([2, 0]))[0].shape
        torch.Size([4, 1])
    """
    count = free_count(batch, n, count)
    source = torch.zeros(count, dtype=torch.int64, device=places.device)
    source[places] = torch.arange(n, device=places.device)

    def fill(t: Tensor) -> Tensor:
        return t.index_select(0, source) if holds_samples(t, n) else t

    return rebuild(batch, fill)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A batch of n samples, with the model and the loss that it goes through."""

    model: nn.Module
    loss_fn: LossFunction
    batch: Any
    n: int
    per_batch: bool = False

    def losses(self) -> Tensor:
        """Call the model and the loss the way the surface promises."""
        model, loss_fn = self.model, self.loss_fn
        if self.per_batch:
            return loss_fn(model, self.batch)
        inputs, targets = pair(self.batch)
        if isinstance(inputs, Mapping):
            return loss_fn(model(**inputs), targets)
        if isinstance(inputs, (tuple, list)):
            return loss_fn(model(*inputs), targets)
        return loss_fn(model(inputs), targets)

    def sample(self, i: int) -> Chunk:
        """Sample i alone, in memory of its own."""
        return replace(self, batch=copy_tensors(rows(self.batch, self.n, i, i + 1)), n=1)

    def made_up(self, count: int, seed: int = 0) -> Chunk:
        """Made-up samples of the same form."""
        generator = torch.Generator().manual_seed(seed)
        return replace(self, batch=synthetic(self.batch, self.n, count, generator), n=count)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Chunk:
        """The same with every tensor of samples changed; those that all samples share stay."""
        return replace(self, batch=rebuild(self.batch, lambda t: change(t) if holds_samples(t, self.n) else t))


def check_losses(values: Any, n: int) -> Tensor:
    """One loss a sample, or a refusal that says what to do."""
    if not isinstance(values, Tensor):
        refuse("loss", type(values).__name__, f"a tensor of shape ({n},)")
    if n == 1 and values.numel() == 1:  # a sample alone: heads that squeeze leave no axis
        return values.reshape(1)
    if values.dim() == 0:
        refuse("loss shape", (), f"({n},), one loss a sample", 'Use reduction="none".')
    if values.shape != (n,):
        remedy = "Reduce each sample's losses yourself, for example loss.flatten(1).mean(1)."
        refuse(
            "loss shape", tuple(values.shape), f"({n},), one loss a sample", remedy if values.shape[0] == n else FIRST
        )
    return values
