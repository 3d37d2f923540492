"""Per-sample gradients of chunks of one size, replayed: for models whose kernels are faster than their launches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from dpilot import _validate
from dpilot.engine import api, single_backward
from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction, NoRule, PerSample, select_rows
from dpilot.engine.replay import capture
from dpilot.engine.replay.capture import NotReplayable, Replayable
from dpilot.engine.replay.forms import ModelState, State, form_of, obstacle, settings, state_of, static
from dpilot.engine.state import answer_capturing, preserve_structure, run_eagerly
from dpilot.engine.trace import Answers
from dpilot.errors import DpilotError, InvalidInput
from dpilot.numerics.grid import Grid

FORMS = 4
"""Graphs kept for chunks of different shapes; beyond that, all are forgotten and work is launched as usual."""
CHANGES = 4
"""How often a graph is captured anew because a Python value of the model changed, before work is launched."""


@final
class Graphed:
    """``per_sample`` for chunks of at most ``rows`` samples, as a function of the chunk; on a GPU it is replayed.

    Every chunk is filled up to ``rows`` with samples whose weights are exactly 0 (copies of its first, or made-up ones
    where it is replayed), so that nothing depends on how many samples it has. On a GPU the first chunk of a form is
    captured on made-up samples; then a chunk is copied into place, and forward pass, backward pass and norms are one
    replay; the sum is another. ``rows`` is public: the physical chunk size. Fewer rows take less memory: half a batch
    about two thirds of what plain training holds for the whole, for a little more time.

    Guarantee:
        The same norms and sums as ``per_sample``, up to the order in which kernels add. Whether a chunk is replayed
        depends on the model, on shapes, types and settings, never on a value; ``.reason`` says so, and why not.

    Edge cases:
        ``replayed=False``                                          launched as usual, filled up all the same
        not on a GPU, vmap or loop, parts that are no tensors       launched as usual
        waiting for the GPU, drawing on the processor, buffers      launched as usual
        parameters moved elsewhere, modes, autocast, TF32 changed   captured anew
        numbers that are attributes of a module changed             captured anew, four times; then launched as usual
        other Python values of model and loss                       those of the capture: make a new Graphed
        more than ``forms`` shapes of chunks                        launched as usual from then on
        sums after the next chunk                                   refused: its records were replaced
        sums held at the next chunk                                 moved to memory of their own: they were lent

    Example:
        >>> import torch
        >>> from torch import nn
        >>> gradients = Graphed(nn.Linear(2, 1), lambda out, y: out[:, 0] - y, rows=4)
        >>> ps = gradients((torch.ones(3, 2), torch.zeros(3)))
        >>> ps.reason
        'its samples stay apart, as one at a time on made-up samples; not replayed: on a cpu'
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, *, rows: int, engine: str = "auto", per_batch: bool = False,
        forms: int = FORMS, low_memory: bool = False, replayed: bool = True,
    ) -> None:  # fmt: skip
        self._low_memory, self._given_up = low_memory, "" if replayed else "not asked for"
        self._model, self._loss_fn, self._rows = model, loss_fn, _validate.count(rows=rows)
        self._engine, self._per_batch, self._most = engine, per_batch, _validate.count(forms=forms)
        self._forms: dict[Any, CapturedChunk | str] = {}
        self._changes = 0
        self._found_state: ModelState | None = None

    def __call__(self, batch: Any, places: Tensor | None = None) -> PerSample:
        """The gradients of one chunk, its samples in the rows ``places``, or in the first ones; so where replayed."""
        n = batches.size(batch, self._per_batch)
        found = self._find_graph(batch, n) if n else "the chunk is empty"
        if isinstance(found, CapturedChunk):
            if found.take_back():
                return found.replay(batches.tensors(batch), n)
            found = "views of earlier sums are held"
        gradients = partial(
            api.per_sample, self._model, self._loss_fn, engine=self._engine, per_batch=self._per_batch,
            low_memory=self._low_memory,
        )  # fmt: skip
        if 0 < n < self._rows:
            device = batches.tensors(batch)[0].device
            rows = torch.arange(n, device=device) if places is None else places.to(device)
            made = select_rows(gradients(batches.fill_up(batch, n, self._rows, rows)), rows)
        else:
            made = gradients(batch)
        return replace(made, reason=f"{made.reason}; not replayed: {found}")

    def _find_graph(self, batch: Any, n: int) -> CapturedChunk | str:
        """What replays this form of chunk, or why nothing does."""
        if self._given_up:
            return self._given_up
        if problem := obstacle(batch, n, self._rows):
            return problem
        modes, places, values = self._state()
        form = (form_of(batch, n), settings(), modes)
        known = self._forms.get(form)
        if isinstance(known, CapturedChunk) and (known.places != places or known.values != values):
            self._changes += known.values != values
            known = None
        if known is None:
            if len(self._forms) >= self._most and form not in self._forms:
                return self._give_up(f"more than {self._most} forms of chunks")
            if self._changes > CHANGES:
                return self._give_up("values of the model keep changing")
            self._forms.pop(form, None)
            known = self._forms[form] = self._capture(batch, n)
        return known

    def _state(self) -> State:
        """The state of model and loss; read again only where something may have changed."""
        if self._found_state is None or not self._found_state.holds(self._model, self._loss_fn):
            self._found_state = ModelState(self._model, self._loss_fn)
        return self._found_state.state

    def _give_up(self, reason: str) -> str:
        """Launch from now on, and free what the graphs held."""
        self._forms.clear()
        self._given_up = reason
        return reason

    def _capture(self, batch: Any, n: int) -> CapturedChunk | str:
        """The graph of one form of chunk, or why there is none."""
        with torch.inference_mode(False), torch.enable_grad(), run_eagerly():
            with capture.on_its_stream():
                choice = api.choose(batches.Chunk(self._model, self._loss_fn, batch, n, self._per_batch), self._engine)
            if choice.engine != "single-backward":
                return f"the engine is {choice.engine}"
            made_up = static(batch, n, self._rows)
            devices = sorted({t.device.index or 0 for t in batches.tensors(batch) if t.device.type == "cuda"})
            try:
                with torch.random.fork_rng(devices=devices), capture.on_its_stream():
                    work, inputs = self._work(made_up, choice), batches.tensors(made_up)
                    return CapturedChunk(self._model, self._loss_fn, work, inputs, self._rows)
            except (NotReplayable, NoRule) as problem:
                return str(problem)
            except DpilotError:
                raise
            except Exception as problem:  # whatever cannot be captured: waiting for the GPU, copies from the processor
                return f"it cannot be captured ({type(problem).__name__})"

    def _work(self, made_up: Any, choice: api.EngineChoice) -> Callable[[], PerSample]:
        """One pass over made-up samples; the first one judges it, later ones must run the same."""
        chunk = batches.Chunk(self._model, self._loss_fn, made_up, self._rows, self._per_batch)
        answers = Answers()

        def work() -> PerSample:
            with answer_capturing(True) if choice.traced else nullcontext():
                made = single_backward.run(chunk, reason=f"{choice.reason}; replayed", answers=answers)
            answers.repeat()
            return made

        return work


@final
class CapturedChunk:
    """The graphs of one form of chunk: one for the norms, one for each way in which parameters share weights."""

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, work: Callable[[], PerSample], inputs: list[Tensor], rows: int
    ) -> None:
        self._inputs, self._rows = inputs, rows
        self._fillers = [t[:1].clone() if batches.holds_samples(t, rows) else None for t in inputs]
        with capture.refuse_unreplayable(model, loss_fn):
            work()

        def measured() -> tuple[PerSample, Tensor]:
            with preserve_structure(model, loss_fn):
                made = work()
            return made, torch.stack([made.norms, *made.squares.values()])

        self._norms = capture.record(measured, inputs[0].device)
        self._current = self._norms.replay()[0]
        self._sums: dict[tuple[int, ...], SumGraph] = {}
        self._turn = 0
        _, self.places, self.values = state_of(model, loss_fn)
        self._sum_graph((0,) * len(self._current.squares))

    def take_back(self) -> bool:
        """Let nobody read where the graphs write; whether that succeeded."""
        return all(summing.lent.take_back() for summing in self._sums.values())

    def replay(self, given: list[Tensor], n: int) -> PerSample:
        """Norms of a chunk, and sums until the next one."""
        for own, filler, new in zip(self._inputs, self._fillers, given, strict=True):
            self._place(own, filler, new.detach(), n)
        self._turn, turn = self._turn + 1, self._turn + 1
        made, together = self._norms.replay()
        self._current = made
        norms, *squares = together[:, :n].clone().unbind(0)

        def sum_with(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
            if grid is not None:
                _validate.refuse("device", self._inputs[0].device, "the CPU where sums lie on a grid")
            if turn != self._turn:
                raise InvalidInput(
                    "the records of this chunk were replaced by a later one's: expected its sum before the next chunk. "
                    "Ask for weighted_sum first, or use per_sample, which keeps them."
                )
            return self._summed(weights, n)

        by_name = dict(zip(made.squares, squares, strict=True))
        return replace(made, norms=norms, squares=by_name, sum_with=sum_with)

    def _place(self, own: Tensor, filler: Tensor | None, new: Tensor, n: int) -> None:
        """Copy one tensor of the chunk into its place; rows beyond the chunk are made up."""
        if filler is None:
            own.copy_(new)
            return
        own[:n].copy_(new)
        if n < self._rows:
            own[n:].copy_(filler.expand_as(own[n:]))

    def _summed(self, weights: Mapping[str, Tensor], n: int) -> dict[str, Tensor]:
        """The weighted sums, lent in the graph's memory; rows beyond the chunk have weight 0."""
        shared = {id(w): w for w in weights.values()}
        order = {key: j for j, key in enumerate(shared)}
        summing = self._sum_graph(tuple(order[id(weights[name])] for name in self._current.squares))
        columns = summing.columns
        if n < self._rows:
            columns[:, n:] = 0.0
        for column, given in zip(columns, shared.values(), strict=True):
            column[:n] = given
        sums, each = sums_of(self._current), {name: columns[order[id(w)]] for name, w in weights.items()}
        any_null = sums.any_null_asked()
        mine = self.take_back()
        if mine:
            summing.graph.replay()  # before it is known: most often no sample is null, and then nobody waited
        if any_null():
            return sums.without_null_rows(each)
        return summing.lent.out() if mine else sums.steady(each)

    def _sum_graph(self, pattern: tuple[int, ...]) -> SumGraph:
        """What sums with columns of weights; ``pattern`` says which column a parameter takes."""
        if pattern not in self._sums:
            with torch.inference_mode(False):
                columns = self._current.norms.new_zeros(max(pattern) + 1, self._rows)

            def work() -> dict[str, Tensor]:
                each = columns.unbind(0)
                chosen = zip(self._current.squares, pattern, strict=True)
                return sums_of(self._current).steady({name: each[j] for name, j in chosen})

            with torch.inference_mode(False):
                graph = capture.record(work, columns.device, self._norms.pool)
                self._sums[pattern] = SumGraph(columns, graph, LentResults(graph.replay()))
        return self._sums[pattern]


@dataclass(frozen=True, slots=True)
class SumGraph:
    """Columns of weights, the graph that sums with them, and its sums."""

    columns: Tensor
    graph: Replayable[dict[str, Tensor]]
    lent: LentResults


def sums_of(made: PerSample) -> single_backward.WeightedSums:
    """What single-backward sums with."""
    assert isinstance(made.sum_with, single_backward.WeightedSums)
    return made.sum_with


@final
class LentResults:
    """Tensors of a graph, handed out without a copy.

    Guarantee:
        After ``take_back()`` gave True, whatever was handed out keeps its values when the graph's memory is written:
        tensors that somebody holds were moved to memory of their own. It gives False if somebody holds a view, which
        cannot be moved: then the memory must not be written.

    Example:
        >>> own = {"w": torch.ones(2)}
        >>> lent = LentResults(own)
        >>> held = lent.out()["w"]
        >>> lent.take_back()
        True
        >>> own["w"].zero_()
        tensor([0., 0.])
        >>> held
        tensor([1., 1.])
    """

    __slots__ = ("_alone", "_out", "_own")

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        self._own, self._out = own, list[weakref.ref[Tensor]]()
        self._alone = self._holders()

    def out(self) -> dict[str, Tensor]:
        """The tensors as others may hold them."""
        made = {name: t.detach() for name, t in self._own.items()}
        self._out = [weakref.ref(t) for t in made.values()]
        return made

    def take_back(self) -> bool:
        """Move what is still held; whether nobody reads the memory any more."""
        self._move()
        self._out = []
        return all(now <= alone for now, alone in zip(self._holders(), self._alone, strict=True))

    def _move(self) -> None:
        """Give what is held memory of its own, in one stretch for each type."""
        held = [given for given in (reference() for reference in self._out) if given is not None]
        for kind in dict.fromkeys(t.dtype for t in held):
            mine = [t for t in held if t.dtype == kind]
            sizes = [t.numel() for t in mine]
            whole = torch.empty(sum(sizes), dtype=kind, device=mine[0].device)
            parts = [part.view(t.shape) for part, t in zip(torch.split(whole, sizes), mine, strict=True)]
            torch._foreach_copy_(parts, mine)
            for given, part in zip(mine, parts, strict=True):
                given.data = part

    def _holders(self) -> list[int]:
        """How many tensors, views included, share the memory of each."""
        return [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in self._own.values()]
