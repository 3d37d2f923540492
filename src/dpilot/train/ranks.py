"""Several processes that take one private step together: ranks, as torchrun starts them.

Rank 0 alone pays, holds the keys, draws each batch and the noise; it tells the others what to compute, and what was
released. A step in messages::

    rank 0  --share: numbers of records, a key for dropout-->  each rank      computes its chunks, reads its records
    all     --vote: did it work?-->  all                                      one that failed stops all, unreleased
    all     --sums on a grid, added (reduce, SUM)-->  rank 0                  draws the receipt, adds the noise
    rank 0  --what was released-->  all                                       move their models alike

Whoever fails, at whatever place, still takes part in the next vote, so all ranks stop with an error, and none waits for
another for ever. What passes between ranks is as sensitive as the records: their network is inside the guarantee.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, Final, Protocol, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpilot._arrays import Indices
from dpilot.engine.check import is_distributed
from dpilot.errors import DpilotError, InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.privacy.receipt import check_alone, spend_for_ranks, world_size
from dpilot.sampling import Batch
from dpilot.train.randomness import seed_generators

TIMEOUT: Final = timedelta(minutes=30)
"""How long a rank waits for another; that of the process group, where the caller made one."""

Made = TypeVar("Made")
Form = tuple[torch.Size, torch.dtype, torch.device]

_TOLD, _ASKED, _SHARE, _RELEASED, _PIECE, _STOPPED = range(6)  # what a message is about
_KEY_WORDS: Final = KEY_BYTES // 8


class RankLost(DpilotError):
    """A rank failed, ended or did not answer: all stop. What was reserved stays spent, nothing is released twice."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank computes of a step: pieces of the batch, and where its randomness that is not noise comes from."""

    chain: Chain
    pieces: Iterator[Indices]


class Ranks(Protocol):
    """The processes of one run. Each method but the first four is called by all of them, in one order."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this is the one that pays, draws and writes."""
        ...

    def spend(self) -> AbstractContextManager[None]:
        """The right to pay, and to draw from what was paid: of the one that leads."""
        ...

    def watch(self) -> AbstractContextManager[None]:
        """A failure of any rank inside stops all of them."""
        ...

    def once(self, make: Callable[[], Made]) -> Made:
        """What rank 0 makes, on every rank."""
        ...

    def compare(self, facts: Mapping[str, object]) -> None:
        """Refuse, on all ranks, facts in which one differs from rank 0."""
        ...

    def copy_weights(self, model: nn.Module) -> None:
        """Give every rank the parameters and buffers of rank 0; what lies in pieces stays as it is."""
        ...

    def deal(self, chain: Chain, step: int, pieces: Iterable[Indices]) -> Share:
        """This rank's share of the pieces of rank 0's batch: piece c goes to rank c modulo their number."""
        ...

    def deal_records(self, batch: Batch) -> Batch:
        """This rank's share of rank 0's batch, as records: every n-th of n ranks."""
        ...

    def add(self, sums: Tensor) -> Tensor:
        """The sum over all ranks, on rank 0; refused on all where one failed."""
        ...

    def spread(self, make: Callable[[], list[Tensor]], forms: Sequence[Form]) -> list[Tensor]:
        """The tensors of these forms that rank 0 makes, on every rank."""
        ...

    def agree(self, more: bool = False) -> bool:
        """Whether a rank has more to do; refused on all where one failed."""
        ...

    def collect(self, mine: Tensor, room: Tensor) -> Tensor:
        """``room`` with the tensors of one form that the ranks have, in their order."""
        ...

    def add_for(self, owner: int, sums: Tensor) -> Tensor:
        """The sum over all ranks, on one of them; what others get is of no use."""
        ...

    def bring(self, mine: bytes, take: Callable[[int, bytes], object]) -> None:
        """Let rank 0 ``take`` what each rank has, one after the other."""
        ...

    def hand_out(self, make: Callable[[int], bytes]) -> bytes:
        """What rank 0 makes for this rank."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Alone(Ranks):
    """One process: nothing is told to anybody. With ``as_ranks`` its randomness is that of ranks, chunk by chunk."""

    as_ranks: bool = False

    @property
    def size(self) -> int:
        return 1

    @property
    def rank(self) -> int:
        return 0

    @property
    def leads(self) -> bool:
        return True

    def spend(self) -> AbstractContextManager[None]:
        return nullcontext()

    def watch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def once(self, make: Callable[[], Made]) -> Made:
        return make()

    def compare(self, facts: Mapping[str, object]) -> None:
        pass

    def copy_weights(self, model: nn.Module) -> None:
        pass

    def deal(self, chain: Chain, step: int, pieces: Iterable[Indices]) -> Share:
        if self.as_ranks:
            return _seeded_share(_rank_key(chain), step, list(pieces), 0, 1)
        return Share(chain, iter(pieces))

    def deal_records(self, batch: Batch) -> Batch:
        return batch

    def add(self, sums: Tensor) -> Tensor:
        return sums

    def spread(self, make: Callable[[], list[Tensor]], forms: Sequence[Form]) -> list[Tensor]:
        del forms
        return make()

    def agree(self, more: bool = False) -> bool:
        return more

    def collect(self, mine: Tensor, room: Tensor) -> Tensor:
        room[0] = mine
        return room

    def add_for(self, owner: int, sums: Tensor) -> Tensor:
        del owner
        return sums

    def bring(self, mine: bytes, take: Callable[[int, bytes], object]) -> None:
        take(0, mine)

    def hand_out(self, make: Callable[[int], bytes]) -> bytes:
        return make(0)


ALONE: Final = Alone()


@final
class Together(Ranks):
    """This process as one of several, which talk over ``group``, and over the CPU where ``direct`` is False."""

    def __init__(self, group: dist.ProcessGroup, *, direct: bool = False) -> None:
        self._group = group
        self._direct = direct
        self._votes = 0  # how often this rank is waited for: told to compute something, and not yet voted
        self._releasing = False  # whether rank 0 is waited for instead: the sums are added, and not yet released

    @property
    def size(self) -> int:
        return self._group.size()

    @property
    def rank(self) -> int:
        return self._group.rank()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def spend(self) -> AbstractContextManager[None]:
        return spend_for_ranks() if self.leads else nullcontext()

    @contextmanager
    def watch(self) -> Iterator[None]:
        try:
            yield
        except RankLost:
            raise
        except BaseException as problem:
            with suppress(RankLost):
                self._fail(problem)
            raise

    def once(self, make: Callable[[], Made]) -> Made:
        return self._tell(_TOLD, make)

    def _tell(self, kind: int, make: Callable[[], Made]) -> Made:
        if not self.leads:
            self._wait_for(kind)
            return self._receive()  # type: ignore[no-any-return]
        made = make()
        self._announce(kind)
        self._send(made)
        return made

    def compare(self, facts: Mapping[str, object]) -> None:
        told = self._tell(_ASKED, lambda: dict(facts))
        self._votes += 1
        other = [name for name, value in facts.items() if told[name] != value]
        if other:
            raise InvalidInput(
                f"rank {self.rank} has another {', another '.join(other)} than rank 0: expected the same "
                "script, packages, data and settings on every rank. Nothing was paid."
            )
        self._vote(None)

    @torch.no_grad()
    def copy_weights(self, model: nn.Module) -> None:
        held = (each for each in model.state_dict().values() if isinstance(each, Tensor))
        tensors = [each.detach() for each in held if not is_distributed(type(each))]
        told = self.spread(lambda: tensors, [(each.shape, each.dtype, each.device) for each in tensors])
        for mine, theirs in zip(tensors, told, strict=True):
            mine.copy_(theirs)

    def deal(self, chain: Chain, step: int, pieces: Iterable[Indices]) -> Share:
        rank, count = self.rank, self.size
        if self.leads:
            key, all_of_them = np.frombuffer(_rank_key(chain), np.int64), list(pieces)
            shares = [all_of_them[each::count] for each in range(count)]
            mine = self._scatter([_join_rows(key, [len(own)], [part.size for part in own], *own) for own in shares])
        else:
            mine = self._scatter()
        parts = int(mine[_KEY_WORDS])
        sizes, records = np.split(mine[_KEY_WORDS + 1 :], [parts])
        own = np.split(records, np.cumsum(sizes)[:-1]) if parts else []
        return _seeded_share(mine[:_KEY_WORDS].tobytes(), step, own, rank, count)

    def deal_records(self, batch: Batch) -> Batch:
        count = self.size
        return replace(batch, indices=self._scatter([batch.indices[each::count] for each in range(count)]))

    def _scatter(self, rows: Sequence[Indices] = ()) -> Indices:
        """This rank's row of those that rank 0 has; padded to one length, as a collective asks for."""
        if not self.leads:
            return self._take(self._wait_for(_SHARE))
        width = self._announce(_SHARE, max(row.size for row in rows))
        return self._take(width, [_join_rows([row.size], row, np.zeros(width - row.size)) for row in rows])

    def _take(self, width: int, rows: Sequence[Indices] = ()) -> Indices:
        mine = torch.zeros(width + 1, dtype=torch.int64)
        self._do(lambda: self._group.scatter(mine, [torch.from_numpy(row) for row in rows], 0))
        self._votes += 1
        return mine[1 : 1 + int(mine[0])].numpy()

    def add(self, sums: Tensor) -> Tensor:
        self._vote(None)
        self._releasing = True
        moved = sums if self._direct else sums.cpu()
        self._do(lambda: self._group.reduce(moved, 0))
        return moved.to(sums.device)

    def spread(self, make: Callable[[], list[Tensor]], forms: Sequence[Form]) -> list[Tensor]:
        if self.leads:
            with self.spend():
                made = make()
            self._announce(_RELEASED)
        else:
            self._wait_for(_RELEASED)
            made = [torch.empty(shape, dtype=kind, device=device) for shape, kind, device in forms]
        moved = [each.contiguous() if self._direct else each.cpu().contiguous() for each in made]
        for content in (each.view(-1).view(torch.uint8) for each in moved if each.numel()):  # of whatever type
            self._do(lambda content=content: self._group.broadcast(content, 0))  # type: ignore[misc]
        self._releasing = False
        return made if self.leads else [each.to(device) for each, (_, _, device) in zip(moved, forms, strict=True)]

    def agree(self, more: bool = False) -> bool:
        waited = self._votes  # none outside of a step: there a rank that failed waits to be asked
        if not waited:
            self._tell(_ASKED, lambda: None)
            self._votes = 1
        found = self._vote(None, more=more)
        self._votes = waited
        return found

    def collect(self, mine: Tensor, room: Tensor) -> Tensor:
        moved, found = (mine, room) if self._direct else (mine.cpu(), room.cpu())
        rows = [row.view(-1).view(torch.uint8) for row in found.unbind()]  # of whatever type
        if mine.numel():
            self._do(lambda: self._group.allgather([rows], [moved.view(-1).view(torch.uint8)]))
        return room if found is room else room.copy_(found)

    def add_for(self, owner: int, sums: Tensor) -> Tensor:
        moved = sums if self._direct else sums.cpu()
        self._do(lambda: self._group.reduce(moved, owner))
        return moved.to(sums.device)

    def bring(self, mine: bytes, take: Callable[[int, bytes], object]) -> None:
        self.agree()
        lengths = self.collect(torch.tensor([len(mine)]), torch.zeros(self.size, 1, dtype=torch.int64)).flatten()
        if self.leads:
            take(0, mine)
        for rank in range(1, self.size):
            self._next_is(rank)
            if self.leads:
                content = torch.empty(int(lengths[rank]), dtype=torch.uint8)
                self._do(lambda content=content, rank=rank: self._group.recv([content], rank, 0))  # type: ignore[misc]
                take(rank, content.numpy().tobytes())
            elif rank == self.rank:
                content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
                self._do(lambda content=content: self._group.send([content], 0, 0))  # type: ignore[misc]

    def hand_out(self, make: Callable[[int], bytes]) -> bytes:
        self.agree()
        mine = make(0) if self.leads else b""
        for rank in range(1, self.size):
            made = make(rank) if self.leads else b""
            length = self._next_is(len(made))
            if self.leads:
                content = torch.frombuffer(bytearray(made), dtype=torch.uint8)
                self._do(lambda content=content, rank=rank: self._group.send([content], rank, 0))  # type: ignore[misc]
            elif rank == self.rank:
                content = torch.empty(length, dtype=torch.uint8)
                self._do(lambda content=content: self._group.recv([content], 0, 0))  # type: ignore[misc]
                mine = content.numpy().tobytes()
        return mine

    def _next_is(self, number: int) -> int:
        """Go on with a piece, of which rank 0 says a number; where it stopped, all do."""
        return self._announce(_PIECE, number) if self.leads else self._wait_for(_PIECE)

    def _fail(self, problem: BaseException) -> None:
        """Let the others know: in the vote that waits for this rank, or else at the next occasion."""
        if self._votes and not self._releasing:
            self._vote(problem)
        elif self.leads:
            self._announce(_STOPPED)
            self._send(_words(problem))
        else:
            self._fail_later(problem)

    def _fail_later(self, problem: BaseException) -> None:
        """Rank 0 goes on: until it waits for this rank the next time, or stops itself."""
        kind, number = self._header().tolist()
        while kind == _TOLD:
            self._receive()
            kind, number = self._header().tolist()
        if kind == _SHARE:
            self._take(number)
        elif kind in (_ASKED, _STOPPED):
            self._receive()
            self._votes += kind == _ASKED
        if self._votes:
            self._vote(problem)

    def _vote(self, problem: BaseException | None, *, more: bool = False) -> bool:
        """Whether a rank has more to do; RankLost on all where one failed, but for that one, which knows."""
        self._votes -= 1
        asked = torch.zeros(2, self.size, dtype=torch.int64)
        asked[:, self.rank] = torch.tensor([problem is not None, more])
        self._do(lambda: self._group.allreduce([asked]))
        said = []
        for rank in asked[0].nonzero().flatten().tolist():
            said.append(f"rank {rank} failed ({self._relay(rank, problem)})")
        if said and problem is None:
            self._raise_lost("; ".join(said))
        return bool(asked[1].any())

    def _relay(self, rank: int, problem: BaseException | None) -> str:
        if rank == self.rank:
            self._send(_words(problem), rank)
            return ""
        return str(self._receive(rank))

    def _announce(self, kind: int, number: int = 0) -> int:
        self._do(lambda: self._group.broadcast(torch.tensor([kind, number]), 0))
        return number

    def _header(self) -> Tensor:
        header = torch.zeros(2, dtype=torch.int64)
        self._do(lambda: self._group.broadcast(header, 0))
        return header

    def _wait_for(self, expected: int) -> int:
        kind, number = self._header().tolist()
        if kind == _STOPPED:
            self._raise_lost(f"rank 0 stopped ({self._receive()})")
        if kind != expected:
            self._raise_lost("rank 0 does something else than this rank: expected one script on every rank")
        return int(number)

    def _send(self, what: object, rank: int = 0) -> None:
        content = torch.frombuffer(bytearray(pickle.dumps(what)), dtype=torch.uint8)
        self._do(lambda: self._group.broadcast(torch.tensor([content.numel()]), rank))
        self._do(lambda: self._group.broadcast(content, rank))

    def _receive(self, rank: int = 0) -> Any:
        length = torch.zeros(1, dtype=torch.int64)
        self._do(lambda: self._group.broadcast(length, rank))
        content = torch.zeros(int(length), dtype=torch.uint8)
        self._do(lambda: self._group.broadcast(content, rank))
        return pickle.loads(content.numpy().tobytes())

    def _do(self, collective: Callable[[], Any]) -> None:
        try:
            collective().wait()
        except RuntimeError as problem:
            self._raise_lost(f"a rank ended, or did not answer in time ({str(problem).splitlines()[0]})")

    def _raise_lost(self, why: str) -> None:
        raise RankLost(
            f"{why}. All ranks stop. What was reserved stays spent, and nothing was released twice; a run with a "
            "checkpoint can be resumed, on as many ranks as you like."
        ) from None


def _rank_key(chain: Chain) -> bytes:
    """What rank 0 tells the others of the randomness of a step: nothing of its batch or noise."""
    return chain.generator("ranks").bytes(KEY_BYTES)


def _seeded_share(key: bytes, step: int, pieces: Sequence[Indices], rank: int, count: int) -> Share:
    """A share whose chunks draw from generators of their own, whichever rank computes them."""
    own = Chain(key, step)

    def seeded() -> Iterator[Indices]:
        for place, piece in enumerate(pieces):
            seed_generators(own, f"chunk {place * count + rank}")
            yield piece

    return Share(own, seeded())


def _join_rows(*rows: Any) -> Indices:
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])  # joined with a float, all would round


def _words(problem: BaseException | None) -> str:
    return f"{type(problem).__name__}: {problem}"


_CHOSEN: ContextVar[Ranks | None] = ContextVar("dpilot_ranks", default=None)


@contextmanager
def use_ranks(ranks: Ranks) -> Iterator[None]:
    """Let the runs that begin inside take part as these ranks, whatever the process was started as."""
    token = _CHOSEN.set(ranks)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def find_ranks() -> Ranks:
    """The ranks that this process is one of; it joins those that torchrun started, if nobody did before."""
    if (chosen := _CHOSEN.get()) is not None:
        return chosen
    size, _ = world_size()
    return ALONE if size == 1 else _join()


@cache
def _join() -> Together:
    if not dist.is_initialized():
        if not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            check_alone()
        dist.init_process_group("cpu:gloo,cuda:nccl" if _own_devices() else "gloo", timeout=TIMEOUT)
    world = dist.group.WORLD
    assert world is not None
    kinds = dist.get_backend_config(world)
    if "cpu:gloo" not in kinds:
        raise InvalidInput(
            f"the process group has the backend {kinds!r}: expected one that talks over the CPU as well. Make it with "
            'torch.distributed.init_process_group("cpu:gloo,cuda:nccl"), or leave that to dpilot.'
        )
    return Together(world, direct="nccl" in kinds and _own_devices())


def _own_devices() -> bool:
    """Whether each rank of this machine has a GPU of its own; two ranks on one GPU talk over the CPU."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return 0 < here <= torch.cuda.device_count() and dist.is_nccl_available()


def own_device(named: str) -> str:
    """The device of this rank where all CUDA devices are meant: "cuda" is one for each rank of a machine."""
    if named != "cuda" or find_ranks().size == 1:
        return named
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % max(1, torch.cuda.device_count())}"
