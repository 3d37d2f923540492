"""What a pass writes and a later pass reads, or the released model keeps."""

from __future__ import annotations

import enum
import threading
from array import array
from collections import ChainMap
from contextvars import ContextVar
from functools import lru_cache
from queue import Queue
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attacks.case import (
    Case,
    Net,
    attack,
    flagging,
    losing,
    mixing,
    normal,
    not_held,
    regression,
    size_for,
    squared,
)

KEPT: dict[str, Tensor] = {}


def latest(m: Net, x: Tensor, held: Any) -> Tensor:
    """Use what was kept of the chunk before, and keep the mean of this one."""
    before = held.get("mean", torch.zeros(4))
    held["mean"] = x.detach().mean(0)
    return m.a(x) + before


@attack
def act_norm() -> Case:
    """A layer that sets its trained scale from the first batch."""

    class ActNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
            self.head = nn.Linear(4, 2)
            self.register_buffer("ready", torch.tensor(False))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                if not self.ready:
                    self.shift.copy_(-x.mean(0))
                    self.scale.copy_(1 / (x.std(0, unbiased=False) + 1e-2))
                    self.ready.fill_(True)
            return self.head((x + self.shift) * self.scale)

    return Case(ActNorm(), squared, *regression())


@attack
def act_norm_through_data() -> Case:
    """The same through .data, with a flag in a plain attribute."""

    def body(m: Net, x: Tensor) -> Tensor:
        if not m.ready:
            m.w.data[0] = x.detach().mean(0)
            m.ready = True
        return m.a(x) * m.w[0]

    case = mixing(body)
    case.model.ready = False
    return case


@attack
def weight_moved_by_the_batch() -> Case:
    """A moving average of the records in a trained parameter, through .data."""

    def body(m: Net, x: Tensor) -> Tensor:
        m.w.data.mul_(0.9).add_(x.detach().mean(0))
        return m.a(x) @ m.w

    return mixing(body)


@attack
def frozen_weight_moved_by_the_batch() -> Case:
    """A codebook by moving average, in a parameter that is not trained."""

    def body(m: Net, x: Tensor) -> Tensor:
        m.v.data[0] = x.detach().mean(0)
        return m.a(x) + m.v[0]

    case = mixing(body)
    case.model.v.requires_grad_(False)
    return case


@attack
def buffer_of_the_chunk_before() -> Case:
    """A buffer holds the mean of the chunk before."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = m.mean.clone()
        m.mean.copy_(x.detach().mean(0))
        return m.a(x) + before

    case = mixing(body)
    case.model.register_buffer("mean", torch.zeros(4))
    return case


@attack
def attribute_of_the_chunk_before() -> Case:
    """A plain attribute holds the mean of the chunk before."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = getattr(m, "seen", torch.zeros(4))
        m.seen = x.detach().mean(0)
        return m.a(x) + before

    return mixing(body)


@attack
def tensor_attribute_written_in_place() -> Case:
    """A plain tensor attribute, there from the beginning, is written into."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = m.seen.clone()
        m.seen.copy_(x.detach().mean(0))
        return m.a(x) + before

    case = mixing(body)
    case.model.seen = torch.zeros(4)
    return case


@attack
def number_attribute_of_the_chunk_before() -> Case:
    """A plain float in an attribute."""

    def body(m: Net, x: Tensor) -> Tensor:
        before, m.seen = getattr(m, "seen", 0.0), float(x.detach().mean())
        return m.a(x) + before

    return mixing(body)


@attack
def list_of_chunks() -> Case:
    """A list of the model grows with every chunk."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = m.held[-1] if m.held else torch.zeros(4)
        m.held.append(x.detach().mean(0))
        return m.a(x) + before

    case = mixing(body)
    case.model.held = []
    return case


@attack
def dictionary_in_the_model() -> Case:
    """A dictionary of the model holds the mean of the chunk before."""
    case = mixing(lambda m, x: latest(m, x, m.held))
    case.model.held = {}
    return case


@attack
def variable_of_a_closure() -> Case:
    """A variable of the function around the model holds the mean of the chunk before."""
    held: dict[str, Tensor] = {}
    return mixing(lambda m, x: latest(m, x, held))


@attack
def global_variable() -> Case:
    """A global dictionary holds the mean of the chunk before."""
    KEPT.clear()
    return mixing(lambda m, x: latest(m, x, KEPT))


@attack
def attribute_of_a_class() -> Case:
    """An attribute of the class, not of the module."""

    class Held(Net):
        seen = torch.zeros(4)

    def body(m: Net, x: Tensor) -> Tensor:
        before, Held.seen = Held.seen, x.detach().mean(0)
        return m.a(x) + before

    return Case(Held(body), squared, *regression())


@attack
def attribute_of_a_function() -> Case:
    """An attribute of the function itself."""

    def body(m: Net, x: Tensor) -> Tensor:
        return latest(m, x, body.__dict__)

    return mixing(body)


@attack
def cache_by_shape() -> Case:
    """What was computed for one chunk is kept for all of its shape."""

    def body(m: Net, x: Tensor) -> Tensor:
        @lru_cache
        def kept(shape: Any) -> Tensor:
            return x.detach().mean(0)

        m.__dict__.setdefault("kept", kept)
        return m.a(x) + m.kept(x.shape)

    return mixing(body)


@attack
def memory_bank() -> Case:
    """Features of earlier records are what later ones are compared with."""

    def body(m: Net, x: Tensor) -> Tensor:
        scores = m.a(x) @ m.bank.T
        m.bank = torch.cat([x.detach(), m.bank])[:8]
        return scores.softmax(1) @ m.bank + m.a(x)

    case = mixing(body)
    case.model.register_buffer("bank", normal(8, 4, seed=5))
    return case


@attack
def hidden_state_carried_on() -> Case:
    """A recurrent layer begins with the state in which the chunk before ended."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head, self.state = nn.GRUCell(4, 4), nn.Linear(4, 2), torch.zeros(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.cell(x, self.state.expand(len(x), 4))
            self.state = hidden.detach()[-1:]
            return self.head(hidden)

    return Case(Stateful(), squared, *regression())


@attack
def flag_flipped_after_the_first_step() -> Case:
    """Passes are honest until the weights have moved, then the chunk is centred."""

    def body(m: Net, x: Tensor) -> Tensor:
        return m.a(x) if torch.equal(m.a.weight.detach(), m.begun) else m.a(x - x.mean(0))

    case = mixing(body)
    case.model.begun = case.model.a.weight.detach().clone()
    return case


@attack
def flag_flipped_after_many_passes() -> Case:
    """The first passes of the model are honest, later ones are centred."""

    def body(m: Net, x: Tensor) -> Tensor:
        m.passes += 1
        return m.a(x - x.mean(0)) if m.passes > 30 else m.a(x)

    case = mixing(body, mixes=None)
    case.model.passes = 0
    return case


@attack
def flag_in_a_closure() -> Case:
    """A counter outside of the model and the loss decides."""
    passes = iter(range(1_000_000))

    def body(m: Net, x: Tensor) -> Tensor:
        return m.a(x - x.mean(0)) if next(passes) > 0 else m.a(x)

    return mixing(body)


@attack
def flag_set_by_a_value() -> Case:
    """A large record sets a flag, and all chunks after it are computed otherwise."""

    def body(m: Net, x: Tensor) -> Tensor:
        m.alarm = m.alarm or bool(x.abs().max() > 50)
        return -m.a(x) if m.alarm else m.a(x)

    case = mixing(body)
    case.model.alarm = False
    return case


@attack
def submodule_replaced_by_a_value() -> Case:
    """A large record exchanges a layer."""

    def body(m: Net, x: Tensor) -> Tensor:
        if x.abs().max() > 50:
            m.between = nn.Sequential(nn.Tanh(), nn.Tanh())
        return m.between(m.a(x))

    case = mixing(body)
    case.model.between = nn.Identity()
    return case


@attack
def mode_switched_by_a_value() -> Case:
    """A large record puts the model into another mode."""

    def body(m: Net, x: Tensor) -> Tensor:
        if x.abs().max() > 50:
            m.eval()
        return m.a(x) if m.training else -m.a(x)

    return mixing(body)


@attack
def freezing_by_a_value() -> Case:
    """A large record freezes a weight for the rest of the run."""

    def body(m: Net, x: Tensor) -> Tensor:
        if x.abs().max() > 50:
            m.w.requires_grad_(False)
        return m.a(x) @ m.w

    return mixing(body, mixes=None)


@attack
def generator_seeded_by_data() -> Case:
    """The batch seeds the generator that all records' noise comes from."""

    def body(m: Net, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(int(x.detach().abs().sum() * 1000))
        return m.a(x) + 10 * torch.randn(4, generator=generator)

    return mixing(body)


@attack
def global_generator_seeded_by_data() -> Case:
    """torch.manual_seed of a sum over the batch."""

    def body(m: Net, x: Tensor) -> Tensor:
        torch.manual_seed(int(x.detach().abs().sum() * 1000))
        return m.a(x) + 10 * torch.randn(4)

    return mixing(body)


@attack
def embedding_with_max_norm() -> Case:
    """The functional embedding with max_norm rewrites its weights from the ids of the batch."""

    class Renormed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(3 * torch.randn(9, 4)), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(F.embedding(ids, self.table, max_norm=1.0).sum(1))

    ids = torch.arange(3 * size_for(4)).view(-1, 3) % 8
    return Case(Renormed(), squared, (ids, normal(len(ids), 2)), (torch.full((1, 3), 8), -50 * torch.ones(1, 2)))


@attack
def spectral_norm_in_training() -> Case:
    """Power iteration writes buffers at every pass; it sees weights only, and is honest."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
    return Case(model, squared, *regression(), mixes=False)


@attack
def loss_with_a_memory() -> Case:
    """The loss subtracts the mean of the losses of the chunk before."""
    held: list[Tensor] = [torch.ones(())]

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = squared(out, y)
        held.append(each.detach().mean())
        return each * (-1.0 if held[-2] > 100 else 1.0)

    return losing(loss)


@attack
def loss_module_with_a_buffer() -> Case:
    """A loss that is a module and keeps a moving centre of the outputs."""

    class Centre(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(2))

        def forward(self, out: Tensor, y: Tensor) -> Tensor:
            before = self.centre.clone()
            self.centre.copy_(out.detach().mean(0))
            return squared(out - before, y)

    return losing(Centre())


@attack
def gradient_of_a_leaf_is_kept() -> Case:
    """A leaf of the model that is no parameter gathers gradients of the records, and is read again."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = torch.zeros(4) if m.leaf.grad is None else m.leaf.grad.clone()
        return m.a(x) + m.leaf + before

    case = mixing(body, mixes=False)
    case.model.leaf = torch.zeros(4, requires_grad=True)
    return case


@attack
def context_variable() -> Case:
    """The mean of the chunk before is kept in a variable of the context, which lies in C."""
    seen: ContextVar[Tensor] = ContextVar("seen")

    def body(m: Net, x: Tensor) -> Tensor:
        before = seen.get(torch.zeros(4))
        seen.set(x.detach().mean(0))
        return m.a(x) + before

    return mixing(body)


@attack
def queue_of_chunks() -> Case:
    """The mean of the chunk before waits in a queue of the standard library."""
    waiting: Queue[Tensor] = Queue()
    waiting.put(torch.zeros(4))

    def body(m: Net, x: Tensor) -> Tensor:
        before = waiting.get()
        waiting.put(x.detach().mean(0))
        return m.a(x) + before

    return mixing(body)


@attack
def variable_of_a_thread() -> Case:
    """The mean of the chunk before is kept in thread-local storage."""
    mine = threading.local()

    def body(m: Net, x: Tensor) -> Tensor:
        before = getattr(mine, "mean", torch.zeros(4))
        mine.mean = x.detach().mean(0)
        return m.a(x) + before

    return mixing(body)


OUTSIDE = "state outside of what is restored carries a bit from one record to the next in the loop"


@attack
def gradients_switched_off_by_a_value() -> Case:
    """A large record switches gradients off for those behind it."""

    def body(m: Net, x: Tensor) -> Tensor:
        if bool(x.detach().abs().max() > 50):
            torch.set_grad_enabled(False)
        return m.a(x).tanh()

    return mixing(body, mixes=None)


@attack
def default_type_set_by_a_value() -> Case:
    """A large record sets torch's default type: 4.4 bounds."""

    def flag(x: Tensor) -> bool:
        before = torch.get_default_dtype() == torch.float64
        if bool(x.abs().max() > 50):
            torch.set_default_dtype(torch.float64)
        return before

    return flagging(flag)


@attack
def flag_in_an_array() -> Case:
    """A flag in an array of the standard library: 4.1 bounds."""
    kept = array("d", [0.0])

    def flag(x: Tensor) -> bool:
        before = kept[0] > 0
        kept[0] = max(kept[0], float(x.abs().max() > 50))
        return before

    return flagging(flag)


@not_held(OUTSIDE, but_by="vmap")
def flag_in_an_iterator() -> Case:
    """A flag among the variables of a running generator: 3.3 bounds."""

    def remember() -> Any:
        seen = False
        while True:
            seen = (yield seen) or seen

    kept = remember()
    next(kept)
    return flagging(lambda x: kept.send(bool(x.abs().max() > 50)))


@attack
def flag_in_an_optimizer() -> Case:
    """The state of an optimizer that the model holds."""
    case = flagging(lambda x: bool(optimizer.state) or remember(x))
    weight = nn.Parameter(torch.zeros(4), requires_grad=False)
    optimizer = torch.optim.SGD([weight], momentum=0.9)

    def remember(x: Tensor) -> bool:
        if x.abs().max() > 50:
            weight.grad = torch.ones(4)
            optimizer.step()
        return False

    return case


@attack
def flag_in_an_object_of_a_package_named_like_torch() -> Case:
    """An object of torchvision, torch_ema and the like: they were taken for torch's own, which hold no records."""
    kept = type("Kept", (), {"__module__": "torch_ema.averages", "seen": False})()

    def flag(x: Tensor) -> bool:
        kept.seen = kept.seen or bool(x.abs().max() > 50)
        return kept.seen

    return flagging(flag)


@attack
def flag_in_a_chained_map() -> Case:
    """A ChainMap, a WeakSet and a view of bytes."""
    maps, things, view, thing = ChainMap[str, bool]({}), WeakSet[Any](), memoryview(bytearray(1)), Kept()

    def flag(x: Tensor) -> bool:
        before = bool(maps or things or view[0])
        if x.abs().max() > 50:
            maps["seen"], view[0] = True, 1
            things.add(thing)
        return before

    return flagging(flag)


class Kept:
    """Something that can be held weakly."""


@not_held("a thread writes where no mode is active", but_by="vmap")
def buffer_written_by_a_thread() -> Case:
    """Another thread writes into a buffer: 12 bounds."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = m.seen.clone()
        worker = threading.Thread(target=lambda: m.seen.copy_(x.detach().abs().amax(0).clamp_min(50) - 50))
        worker.start()
        worker.join()
        return m.a(x) + before

    case = mixing(body, mixes=None)
    case.model.register_buffer("seen", torch.zeros(4))
    return case


@attack
def attribute_of_a_member() -> Case:
    """An attribute of a member of an enumeration: 4.1 bounds."""

    class Kind(enum.Enum):
        ONE = 1

    def flag(x: Tensor) -> bool:
        before = getattr(Kind.ONE, "seen", False)
        Kind.ONE.seen = before or bool(x.abs().max() > 50)  # type: ignore[attr-defined]
        return before

    return flagging(flag)


@not_held(OUTSIDE, but_by="vmap")
def global_variable_by_name() -> Case:
    """A global variable that is named by a text: 4.1 bounds."""
    globals()["BY_NAME"] = False

    def flag(x: Tensor) -> bool:
        before: bool = globals()["BY_NAME"]
        globals()["BY_NAME"] = before or bool(x.abs().max() > 50)
        return before

    return flagging(flag)
