"""CUDA graphs: a fixed piece of work on a GPU, launched once and replayed as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import torch

from dpilot.engine.generators import GeneratorStates, processor
from dpilot.engine.state import answer_capturing, preserve_state
from dpilot.numerics.devices import policy_of

Made = TypeVar("Made")
Result = TypeVar("Result", covariant=True)


class NotReplayable(Exception):
    """The work cannot be replayed; the message says why. Found on made-up samples, so it tells of no record."""


class Replayable(Protocol[Result]):
    """Work that gives its result again: in the same memory, for what its inputs' memory then holds."""

    @property
    def pool(self) -> Any: ...

    def replay(self) -> Result: ...


class Graph(Generic[Made]):
    """A CUDA graph of ``work``. ``pool`` is the memory of a graph that is always replayed before, to be shared."""

    __slots__ = ("_graph", "_made")

    def __init__(self, work: Callable[[], Made], pool: Any = None) -> None:
        self._graph = torch.cuda.CUDAGraph()
        stream = beside(torch.cuda.current_device())
        settings = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
        with repair_generator(), torch.cuda.graph(self._graph, **settings), disable_cast_cache():
            self._made = work()

    @property
    def pool(self) -> Any:
        return self._graph.pool()

    def replay(self) -> Made:
        self._graph.replay()
        return self._made


def can_replay(device: torch.device) -> bool:
    """Whether work on a device can be replayed."""
    return device.type == "cuda" or policy_of(device).record is not None


def record(work: Callable[[], Made], device: torch.device, pool: Any = None) -> Replayable[Made]:
    """What replays the work, which must have run before, on a device."""
    made: Replayable[Made] = (policy_of(device).record or record_graph)(work, pool)
    return made


def record_graph(work: Callable[[], Made], pool: Any = None) -> Replayable[Made]:
    """A graph of the work, which must have run before; refused if it waits for the GPU.

    Models ask whether they are captured, to avoid waiting: Hugging Face's then build attention masks that let
    everything through, and attention takes its slowest kernels. So they are told that they are not, unless they wait.
    """
    for told in (False, True):
        with answer_capturing(told):
            if runs_without_waiting(work):
                return Graph(work, pool)
    raise NotReplayable("it waits for the GPU")


def runs_without_waiting(work: Callable[[], Any]) -> bool:
    """Run the work where it will be captured; libraries set themselves up there, outside the graph."""
    stream, before = beside(torch.cuda.current_device()), torch.cuda.get_sync_debug_mode()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with warnings.catch_warnings(), torch.cuda.stream(stream), disable_cast_cache():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")  # that it does not find all
            torch.cuda.set_sync_debug_mode("error")
            work()
    except RuntimeError:  # found before the capture: a capture that fails leaves the GPU's generator unusable
        return False
    finally:
        torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(stream)
    return True


@contextmanager
def repair_generator() -> Iterator[None]:
    """Give the GPU's generator a state of its own again if a capture fails, which leaves it bound to the capture."""
    device = torch.cuda.current_device()
    generator, state = torch.cuda.default_generators[device], torch.cuda.get_rng_state(device)
    try:
        yield
    except BaseException:
        fresh = torch.Generator(f"cuda:{device}")
        fresh.set_state(state)
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
        raise


@cache
def beside(device: int) -> torch.cuda.Stream:
    """The stream on which graphs are captured; one a device, because libraries keep working memory for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def on_its_stream() -> Iterator[None]:
    """Set graphs up where they are captured: used on the caller's stream too, libraries would take memory twice."""
    if not torch.cuda.is_available():
        yield
        return
    stream, callers = beside(torch.cuda.current_device()), torch.cuda.current_stream()
    stream.wait_stream(callers)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        callers.wait_stream(stream)


@contextmanager
def disable_cast_cache() -> Iterator[None]:
    """Autocast as it is set, but weights are cast in each replay: a cast kept from before would be an old weight."""
    if not torch.is_autocast_enabled("cuda"):
        yield
        return
    with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cache_enabled=False):
        torch.clear_autocast_cache()
        yield


@contextmanager
def refuse_unreplayable(*roots: Any) -> Iterator[None]:
    """Refuse work that draws on the processor or writes memory that was there before; leave ``roots`` as they were.

    A replay would not draw, and would write without being seen. What the work changes in Python it changes once, at the
    capture, after which it is restored: every replay starts from the same state. Random numbers drawn on the GPU are
    drawn anew by every replay.
    """
    before = GeneratorStates.of(processor())
    with preserve_state(*roots) as guard:
        yield
        if before.moved():
            raise NotReplayable("random numbers are drawn on the processor")
        if guard.written:
            raise NotReplayable("the forward pass writes into memory that was there before, such as a buffer")
