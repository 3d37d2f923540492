"""How work is done on a kind of device: what is worth a call there, a copy, or a wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch

Record = Callable[[Callable[[], Any], Any], Any]
"""record(work, pool) -> what replays the work: ``replay()`` and ``pool``, as a CUDA graph has them."""


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """The choices that follow from the kind of a device alone, never from a value or a record."""

    tf32: bool | None = None
    """Whether products use TF32; None: what is set in torch."""
    joins_small: bool = False
    """Whether small gradients are laid side by side, as a call costs more than the copy."""
    forms_by_entry: bool = False
    """Whether gradients of convolutions are formed kernel entry by kernel entry, as unfolding takes longer."""
    even_channels: int = 8
    """Channels must be multiples of this to be formed by entry: tensor cores want it."""
    gram_factor: int = 16
    """How many times T^2 must fit into d p for the Gram norm of a convolution: patches are copied for the sum."""
    unfolded: int = 1 << 19
    """Numbers unfolded at a time: enough to keep products busy, few enough for the cache or the memory."""
    gram_programs: int = 48
    """Programs from which a kernel forms Gram norms in one reading: with fewer, plain products fill an H200 better."""
    tightens_bounds: bool = False
    """Whether somebody looks for loose bounds of norms; elsewhere the processor would wait for the answer."""
    checks_indices: bool = True
    """Whether an index that does not exist is looked for before it is used, as it would end the process."""
    record: Record | None = None
    """What replays work; None: a CUDA graph on a CUDA device, and nothing elsewhere."""


_OTHER = DevicePolicy()
_policies = {
    "cpu": DevicePolicy(tightens_bounds=True, checks_indices=False),
    "cuda": DevicePolicy(joins_small=True, forms_by_entry=True, gram_factor=12, unfolded=1 << 26),
}


def policy_of(device: torch.device) -> DevicePolicy:
    """The policy of a device's kind."""
    return _policies.get(device.type, _OTHER)


@contextmanager
def use_policy(**kinds: DevicePolicy) -> Iterator[None]:
    """Other policies for kinds of devices, for a while, in all threads: a backward pass runs in threads of its own.

    Example:
        >>> with use_policy(cpu=DevicePolicy(joins_small=True)):
        ...     policy_of(torch.device("cpu")).joins_small
        True
        >>> policy_of(torch.device("cpu")).joins_small
        False
    """
    before = dict(_policies)
    _policies.update(kinds)
    try:
        yield
    finally:
        _policies.clear()
        _policies.update(before)


_LEFT: Final[ContextVar[bool]] = ContextVar("bounds of norms are left as they are", default=False)


def tightens_bounds(device: torch.device) -> bool:
    """Whether loose bounds of norms are looked for on this device, here and now."""
    return policy_of(device).tightens_bounds and not _LEFT.get()


@contextmanager
def leave_bounds() -> Iterator[None]:
    """Leave bounds of norms as they are, loose or not: what a record gets never goes by how many are.

    For processors, whose backward passes run where they are called.
    """
    token = _LEFT.set(True)
    try:
        yield
    finally:
        _LEFT.reset(token)
