"""Whether random numbers go on from where they were, or the model set the state of a generator itself."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor


class States(NamedTuple):
    """The states of torch's own generators; those of devices cannot be asked for while a graph is captured."""

    host: bytes
    devices: bytes | None

    @staticmethod
    def now() -> States:
        host = torch.default_generator.get_state().numpy().tobytes()
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return States(host, b"")
        if torch.cuda.is_current_stream_capturing():
            return States(host, None)
        return States(host, b"".join(g.get_state().numpy().tobytes() for g in torch.cuda.default_generators))

    def agree(self, other: States) -> bool:
        """Whether nothing that is known of two states differs."""
        return self.host == other.host and (None in (self.devices, other.devices) or self.devices == other.devices)


@final
class Generators:
    """The states of torch's own generators in one pass.

    A model that seeds them, or draws from a generator of its own, gives each position in the chunk numbers that may be
    the same for ever: they belong to positions, not to records. The states are compared before every draw, so that
    seeding with the seed that is in use, or restoring an earlier state, is seen too.

    Edge cases:
        the same draw again     an operation on tensors of the same forms that starts from a state from which it drew
                                before repeats its numbers: nothing new where a checkpoint computes its layers again
        a captured graph        the states of a device that captures are not compared; the pass before was judged
    """

    __slots__ = ("_drawn", "_goes_on", "_now")

    def __init__(self) -> None:
        self._now, self._goes_on = States.now(), True
        self._drawn: dict[Any, set[States]] = {}

    def were_set(self, func: Any, args: Any, kwargs: Any, *, again: bool) -> bool:
        """Whether a draw that is about to run does not go on from the draw before it.

        ``again`` says that part of the pass is computed again, where earlier draws may be repeated.
        """
        if any(isinstance(v, torch.Generator) for v in (*args, *kwargs.values())):
            return True
        now = States.now()
        form = (func, *(t.shape if isinstance(t, Tensor) else str(t) for t in args))
        earlier = self._drawn.setdefault(form, set())
        self._goes_on = now.agree(self._now)
        if self._goes_on:
            earlier.add(now)
        return not self._goes_on and not (again and now in earlier)

    def go_on(self) -> bool:
        """Whether the generators stand where the last draw left them: nobody set them for the next pass."""
        return States.now().agree(self._now)

    def follow(self) -> None:
        """The draw ran."""
        if self._goes_on:
            self._now = States.now()
