"""Random draws that are nobody's yet, and the operation in which they become somebody's.

Numbers that are drawn each by itself, from one law, may be given to the records in any way, to each its own. But they
are given once: a draw that is each record's own in two layouts (a matrix of draws and its transpose, overlapping
windows of it) gives a record something that depends on its number in the chunk. And to no two of them: which records
share the draws of a chunk depends on all records, so no pairing of draws explains what others become by one more.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dpilot.engine.record.call import NotKnown
from dpilot.engine.record.memory import Memory
from dpilot.engine.record.place import SHARED, TOGETHER, Place, on_axis

OTHERWISE = "random draws are used in another layout than before"


class Meeting:
    """Memory as a rule sees it in an operation in which draws meet records, or something that all records share.

    To the rule a draw is shared. Where the rule asks whether it is the same for every record, it lies along the records
    and is to be each record's own. ``settle`` gives the draws away, if they can be given like this.
    """

    def __init__(self, memory: Memory, drawn: Sequence[Tensor]) -> None:
        self.n, self._memory, self._drawn = memory.n, memory, drawn
        self._assumed, self._own = dict[int, Place](), list[tuple[Tensor, int, int]]()

    def assume(self, t: Tensor, axis: int) -> None:
        """Take a draw as the records' own along an axis."""
        block = t.shape[axis] // self.n
        self._assumed[id(t)] = on_axis(axis, block)
        self._own.append((t, axis, block))

    def place(self, t: Tensor) -> Place:
        place = self._assumed.get(id(t)) or self._memory.place(t)
        return SHARED if place.kind == "random" else place

    def repeats(self, t: Tensor, axis: int, block: int) -> bool:
        if self._memory.tag(t).kind != "random":  # a guess does not rest on values, which change in training
            return (self._memory.alike if self._assumed else self._memory.repeats)(t, axis, block)
        if t.shape[axis] > 1 and t.stride(axis):
            self._own.append((t, axis, block))
        return True

    def counts_up(self, t: Tensor, step: int) -> bool:
        return self._memory.tag(t).kind != "random" and self._memory.counts_up(t, step)

    def settle(self) -> None:
        """Give every draw to the records, each its own.

        Raises NotKnown, with nothing given, where a draw would be given in two ways, or to all records together.
        """
        memory, claims = self._memory, dict[int, tuple[int, int]]()
        for t, axis, block in self._own:
            claim = claims.get(memory.tag(t).draw) or memory.claim(t, axis, block)
            if claim is None or memory.claimed(t, claim)[:3] != on_axis(axis, block)[:3]:
                raise NotKnown(OTHERWISE)
            claims[memory.tag(t).draw] = claim
        own = {id(t) for t, _, _ in self._own}
        for t in self._drawn:
            if id(t) not in own:
                raise NotKnown(OTHERWISE if memory.tag(t).draw in claims else TOGETHER)
        for draw, claim in claims.items():
            memory.assign(draw, claim)


def drawn_among(tensors: Sequence[Tensor], places: Sequence[Place]) -> list[Tensor]:
    """The tensors that hold draws which are nobody's yet."""
    return [t for t, p in zip(tensors, places, strict=True) if p.kind == "random"]


def same_layout(drawn: Sequence[Tensor], outs: Sequence[Tensor]) -> bool:
    """Whether entry by entry means address by address: draws and results have one shape, strides and offset."""
    return len({(t.shape, t.stride(), t.storage_offset()) for t in (*drawn, *outs)}) == 1
