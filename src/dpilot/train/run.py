"""A finished run: the model, what it cost and the record of what was released; saved as data, loaded as data.

The steps of a run are a frame too: of one that is finished, stopped or under way.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpilot._arrays import Floats
from dpilot._quiet import try_quietly
from dpilot.engine import batch as batches
from dpilot.engine.check import is_distributed
from dpilot.engine.made_up import evaluation_mode
from dpilot.engine.outputs import judge_outputs, outputs
from dpilot.engine.trace import Verdict
from dpilot.errors import InvalidInput, PrivacyWarning, UnsupportedModel
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Committed, Ledger, describe_ledger
from dpilot.privacy.lower_bounds import LowerBound, one_run
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import RUN, FitRecord, RunRecord, StepRecord
from dpilot.sampling import blocks
from dpilot.train.batches.reader import Collate
from dpilot.train.checkpoint import architecture, files
from dpilot.train.checkpoint.statement import claims, embed, write_statement
from dpilot.train.checkpoint.store import StoredRun, from_storable, to_storable
from dpilot.train.evaluation import Evaluation, Population, evaluate
from dpilot.train.payment import LEDGER
from dpilot.train.ranks import find_ranks
from dpilot.train.shards import Shards, whole_state

if TYPE_CHECKING:
    import pandas as pd

_ONE: Final = ("step", "threshold", "bound", "measuring", "length")
_MANY: Final = ("released", "thresholds", "bounds", "memory")
MODEL: Final = "model.safetensors"
LAYERS: Final = "model.json"
ENTRIES: Final = "ledger.json"
PAID_IN: Final = "paid_in.json"
EVALUATION: Final = "evaluation.json"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Run:
    """What came out of one private run. Everything in it was released and may be shown.

    ``model`` is the trained model itself: its ``state_dict()`` is a plain one, and plain torch can use it.
    """

    model: nn.Module
    record: RunRecord
    ledger: Ledger | Committed | None = field(default=None, repr=False)
    leads: bool = field(default=True, repr=False)
    """Whether this process writes: of several ranks, which all hold the run, rank 0 does."""
    _evaluations: list[Evaluation] = field(default_factory=list, init=False, repr=False, compare=False)
    """What ``evaluate`` released, so that no page says that nothing was."""

    @property
    def epsilon(self) -> float:
        """What the run cost, at ``delta``, its planned steps counted in full."""
        return self.record.epsilon

    @property
    def delta(self) -> float:
        return self.record.delta

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The clipping threshold of every step."""
        return tuple(step.threshold for step in self.record.steps)

    def steps(self) -> pd.DataFrame:
        """One row a step, of everything that was released beside the gradient; see ``steps_frame``."""
        return steps_frame(self.record.steps)

    def audit(self, *, confidence: float = 0.95) -> LowerBound:
        """The lower bound on epsilon, at the run's delta, that its canaries prove; free. See ``Trainer(audit=)``."""
        found = self.record.audit
        if found is None:
            raise InvalidInput("the run has no canaries: expected one of Trainer(..., audit=Canaries(1000)).")
        return one_run(found.scores, found.included, delta=self.delta, confidence=confidence)

    def predict(self, inputs: Any) -> Tensor:
        """The model's outputs; see ``dpilot.train.predict``."""
        return predict(self.model, inputs)

    def evaluate(
        self,
        data: Any,
        *,
        epsilon: float,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        groups: Any = None,
        group_names: Sequence[Any] | None = None,
        class_names: Sequence[Any] | None = None,
        units: Any = None,
        part: str | None = None,
        split: str | None = None,
        example: Any = None,
        collate_fn: Collate | None = None,
    ) -> Evaluation:
        """Noisy figures of a classifier on private records, for an (epsilon, delta) of their own: ``.metrics``.

        Records are (inputs, class), or mappings with "labels", read one by one as in training. ``groups`` has one cell
        a record, the group it is of, and ``group_names`` declares which there are; an array of booleans does so itself.
        The name of a Series is what its groups are called. ``class_names`` are what pages call the classes, in order.
        Without a ``delta`` it is that of the run.

        Guarantee:
            Charged before a record is read: to ``ledger``, or to the run's where that admits more, or else to one of
            its own, of which a PrivacyWarning says that it counts nothing else. It is charged as figures of all
            records; for those held out name their ``part`` (and ``split``) in the ledger.

        Edge cases:
            record that cannot be read, or does not compute    null, in silence; so is one of a group that is not named
            a run that protects units                          one row of each, drawn in secret, counts: give ``units``
            one output a record                                the log odds of the second of two classes
            data set that does not show its form               give ``example``, or the first record's counts as public
        """
        unit = PrivacyUnit.from_dict(self.record.plan.get("unit"))
        if unit.is_record and units is not None:
            unit = PrivacyUnit("unit", 1)
        mine = self.ledger if isinstance(self.ledger, Ledger) and self.ledger.mode == "adaptive" else None
        released = evaluate(
            partial(predict, self.model, protected=True),
            Population(data, groups, group_names, unit, units, example, collate_fn, class_names),
            Budget(epsilon, self.delta if delta is None else delta),
            mine if ledger is None else ledger,
            part=part,
            split=split,
        )
        self._evaluations.append(released)
        return released

    def report(self, path: str | Path, *, evaluation: Evaluation | None = None, **options: Any) -> Path:
        """Write the report of the run, one HTML page; it costs nothing.

        ``evaluation``: figures that ``evaluate`` released of it, its last ones if none are given. ``options``: see
        ``FitRecord.write_report``.
        """
        if not self.leads:
            return Path(path)
        return self.fit_record(evaluation).write_report(path, **options)

    def fit_record(self, evaluation: Evaluation | None = None) -> FitRecord:
        """The run as reports and cards see it, with figures that ``evaluate`` released of it."""
        shown = self._shown(evaluation)
        figures = None if shown is None else shown.to_dict()
        return self.record.to_fit(entries=self._entries(), paid_in=self._ledger_of_payment(), evaluation=figures)

    def _shown(self, given: Evaluation | None) -> Evaluation | None:
        """The figures that stand beside the run: those given, or else the last that were released."""
        if given is not None or not self._evaluations:
            return given
        if (count := len(self._evaluations)) > 1:
            warnings.warn(
                f"{count} evaluations of this run were released: the last one is shown, and its price alone is added "
                "to the run's. Name another by evaluation=.",
                PrivacyWarning,
                stacklevel=3,
            )
        return self._evaluations[-1]

    def _repr_html_(self) -> str:
        return self.record.to_fit(paid_in=self._ledger_of_payment()).summary_table(type(self.model).__name__)

    def save(self, folder: str | Path, *, evaluation: Evaluation | None = None) -> Path:
        """Write model, record, ledger, and figures that were released of it, to ``folder``: safetensors and JSON.

        ``evaluation``: those of ``evaluate``, its last ones if none are given. The statement of the folder claims both
        together, the weights' own the training alone.

        Edge cases:
            a ledger that was given     its entries are written, it stays where it is
            several ranks               rank 0 writes
            a model in pieces           every rank calls it: rank 0 puts the weights together on its CPU
            another run in the folder   refused
        """
        where, weights = Path(folder), whole_state(self.model, keep=self.leads)
        if not self.leads:
            return where
        written = self.record.to_json()
        if (where / RUN).exists() and not _is_same(where / RUN, written):
            raise InvalidInput(f"{where} holds another run: expected an empty folder or this run's own.")
        where.mkdir(parents=True, exist_ok=True)
        stated, tensors = claims(self.record), to_storable(weights)
        files.write(where / MODEL, save(tensors, embed(stated, tensors)))
        files.write(where / LAYERS, json.dumps(self._describe(), indent=1).encode())
        self._save_ledger(where)
        if (shown := self._shown(evaluation)) is not None:
            files.write(where / EVALUATION, json.dumps(shown.to_dict(), indent=1).encode())
            stated = _with_figures(stated, shown)
        files.write(where / RUN, written.encode())
        write_statement(where, stated)
        return where

    def _describe(self) -> dict[str, Any] | None:
        spread = any(is_distributed(type(p)) for p in self.model.parameters())
        shards = Shards.find(self.model, find_ranks()) if spread else None
        with nullcontext() if shards is None else shards.plain():
            return architecture.describe(self.model)

    def _save_ledger(self, where: Path) -> None:
        if self.ledger is None:
            return
        files.write(where / ENTRIES, json.dumps(self._entries(), indent=1).encode())
        files.write(where / PAID_IN, json.dumps(self._ledger_of_payment(), indent=1).encode())
        if isinstance(self.ledger, Ledger) and _is_over(self.ledger):
            self.ledger.copy_to(where / LEDGER)

    def _entries(self) -> list[dict[str, Any]]:
        return [] if self.ledger is None else [entry.as_dict() for entry in self.ledger.entries()]

    def _ledger_of_payment(self) -> dict[str, Any] | None:
        if self.ledger is None:
            return None
        own = isinstance(self.ledger, Ledger) and self.ledger.mode == "precommitted"
        return {"head": self.ledger.head(), **describe_ledger(self.ledger, own=own)}


def _with_figures(stated: Mapping[str, Any], evaluation: Evaluation) -> dict[str, Any]:
    """What is claimed of a folder that holds figures of the run as well: their price is composed into the total."""
    cost = evaluation.cost
    totals = {name: stated[name] + getattr(cost, name) for name in ("epsilon", "delta")}
    tuning = f"not part of this run: its epsilon is of the training and of the figures in {EVALUATION}"
    return {**stated, **totals, "tuning": tuning, "events": [*stated["events"], evaluation.claim()]}


def _is_same(stored: Path, written: str) -> bool:
    """Whether a stored record says the same, whichever zlib wrote it: numbers of large records are rounded."""
    text = stored.read_text()
    return text == written or RunRecord.from_json(text) == RunRecord.from_json(written)


def read_fit(folder: str | Path) -> FitRecord:
    """The run that ``Run.save`` wrote to ``folder``, as reports see it; no model is needed."""
    where = Path(folder)

    def read(name: str) -> Any:
        return json.loads((where / name).read_text()) if (where / name).exists() else None

    record = RunRecord.from_json((where / RUN).read_text())
    return record.to_fit(entries=read(ENTRIES) or (), paid_in=read(PAID_IN), evaluation=read(EVALUATION))


def _is_over(ledger: Ledger) -> bool:
    """Whether nothing can be spent in it any more, so that a copy is a copy of facts, not of rights."""
    return ledger.mode == "precommitted" and all(entry.state == "committed" for entry in ledger.entries())


def load(folder: str | Path, model: nn.Module | None = None) -> Run:
    """The run saved in ``folder``. Tensors and JSON only: nothing in the folder is executed.

    Edge cases:
        model of your own classes    give ``model``, built as before; its weights are filled in
        usual layers in sequence     rebuilt from their description

    Example:
        ``dpilot.load("runs/first").predict(inputs)``
    """
    where = Path(folder)
    try:
        record = RunRecord.from_json((where / RUN).read_text())
        weights = from_storable(load_file(where / MODEL))
    except FileNotFoundError as problem:
        raise InvalidInput(
            f"{where} holds no finished run ({Path(problem.filename).name} is missing). Of one that stopped, "
            "Trainer.resume goes on, and dpilot.read_steps shows its steps."
        ) from None
    if model is None:
        described = json.loads((where / LAYERS).read_text())
        if described is None:
            raise InvalidInput("the model has layers of its own: give load(folder, model=...) one built as before.")
        kinds = [t.dtype for t in weights.values() if t.is_floating_point()]
        model = architecture.build(described).to(kinds[0] if kinds else None)
    try:
        model.load_state_dict(weights)
    except RuntimeError as problem:
        raise InvalidInput(f"the model is not the saved one: {str(problem).splitlines()[-1].strip()}") from None
    ledger = Ledger.read(where / LEDGER) if (where / LEDGER).exists() else None
    return Run(model, record, ledger)


_ROWS: Final = (8, 512)  # at a time: of the first records, so that few of them are quick, and at most
_PROTECTED: Final = 64  # at a time of protected ones, wherever they stand: another size is another kernel


@torch.no_grad()
def predict(model: nn.Module, inputs: Any, *, protected: bool = False) -> Tensor:
    """The model's outputs for ``inputs``: a tensor or array, a tuple of arguments or a dict of keyword arguments.

    For classes take ``.argmax(1)``. The modes of the model's layers are put back. With ``protected`` inputs every pass
    is watched: what comes out of a record then depends on that record alone, whatever the model does (``engine``).

    Guarantee:
        The model sees batches whose sizes follow from the place alone, the last one filled up with copies of a record:
        if it treats each record on its own, one record more behind them changes no bit of another's output. Batches of
        protected inputs have one size: one in front of them changes no more than a last bit, by its place. Whoever
        counts records puts them in a secret order (``map_records``).

    Example:
        >>> from torch import nn
        >>> predict(nn.Linear(2, 3), np.zeros((4, 2), dtype=np.float32)).shape
        torch.Size([4, 3])
    """
    inputs = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
    found = [t for t in batches.tensors(inputs) if t.dim()]
    if not found:
        raise InvalidInput(
            f"inputs are {type(inputs).__name__}: expected a tensor, an array, a tuple or a dict of them."
        )
    n, device = found[0].shape[0], next(model.parameters()).device
    call, (least, most) = _call, _ROWS
    if protected:
        call = partial(outputs, _call)
        verdict = try_quietly(lambda: _judge_made_up(model, batches.rebuild(inputs, lambda t: t.to(device))))
        apart = verdict is not None and verdict.kind == "apart"
        rows = _PROTECTED if apart else least  # where they are not, each goes among copies of itself
        least = most = batches.free_count(inputs, n, rows)

    def piece(start: int, rows: int) -> Any:
        """Some of the inputs, laid out row by row, whether they were filled up or not."""
        return batches.rebuild(_fill(inputs, n, start, rows), lambda t: t.to(device).contiguous())

    with evaluation_mode(model):
        made = [call(model, piece(start, rows), rows)[: n - start].cpu() for start, rows in blocks(n, least, most)]
    return torch.cat(made)


def _fill(inputs: Any, n: int, start: int, rows: int) -> Any:
    """Records start .. start + rows, the first of them again in place of those that are not there."""
    if not n or start + rows <= n:
        return batches.rows(inputs, n, start, start + rows)
    places = torch.arange(start, start + rows)
    places = torch.where(places < n, places, start)
    return batches.rebuild(inputs, lambda t: t[places.to(t.device)] if batches.holds_samples(t, n) else t)


def refuse_combined(model: nn.Module, public: Any) -> None:
    """Refuse a model that combines records in ``predict``: in a score one of them would change another's."""
    n = batches.tensors(public)[0].shape[0]
    rows = batches.free_count(public, n, _ROWS[0])
    verdict = _judge(model, _fill(public, n, 0, rows), rows)
    if verdict.kind == "mixed":
        raise UnsupportedModel(
            f"the model combines records where it does not train, and they are scored: {verdict.why}. Expected outputs "
            "that depend on their own record alone: no statistics, ranks or counts over the batch."
        )


def _judge_made_up(model: nn.Module, inputs: Any) -> Verdict:
    """Whether made-up inputs in the form of these stay apart where the model does not train."""
    n = batches.tensors(inputs)[0].shape[0]
    rows = batches.free_count(inputs, n, _ROWS[0])
    return _judge(model, batches.synthetic(inputs, n, rows, torch.Generator().manual_seed(0)), rows)


def _judge(model: nn.Module, inputs: Any, n: int) -> Verdict:
    with evaluation_mode(model):
        return judge_outputs(_call, model, inputs, n)


def _call(model: nn.Module, piece: Any, rows: int | None = None) -> Tensor:
    del rows  # all there are
    if isinstance(piece, dict):
        made = model(**piece)
    else:
        made = model(*piece) if isinstance(piece, tuple | list) else model(piece)
    return made if isinstance(made, Tensor) else made.logits


def read_steps(folder: str | Path) -> pd.DataFrame:
    """What the steps of the run in ``folder`` released, as ``Run.steps`` has it; of a stopped run, up to where it was
    last stored. Only data is read, and no model is needed.
    """
    where = Path(folder) / RUN
    finished = where.exists()
    return steps_frame(
        RunRecord.from_json(where.read_text()).steps if finished else StoredRun.read(Path(folder)).records()
    )


def steps_frame(steps: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step: ``step``, ``threshold``, ``bound``, ``measuring``, ``length``, and each number of the rest.

    ``released_0``, ... are the noisy sums of the extras; of a layer-wise rule ``released_1_0`` is the first of layer 1,
    beside ``thresholds_1`` and ``bounds_1``. What a step has not is not a number.

    >>> list(steps_frame([StepRecord(0, 1.0, 1.0, False, released=(0.5, 2.0))]).columns)
    ['step', 'threshold', 'bound', 'measuring', 'length', 'released_0', 'released_1']
    """
    import pandas as pd

    table = pd.DataFrame({name: [getattr(each, name) for each in steps] for name in _ONE})
    table["length"] = table["length"].astype(np.float64)
    layers = max((len(each.thresholds) for each in steps), default=0)
    parts = [table]
    for name in _MANY:
        rows = _pad([getattr(each, name) for each in steps])
        parts.append(
            pd.DataFrame(rows, columns=_column_names(name, rows.shape[1], layers if name == "released" else 0))
        )
    return pd.concat(parts, axis=1)


def step_numbers(step: StepRecord) -> dict[str, float]:
    """The numbers of one step, by the names of their columns in ``steps_frame``; what it has not is left out.

    >>> step_numbers(StepRecord(3, 1.0, 1.0, False, released=(0.5, 2.0)))
    {'threshold': 1.0, 'bound': 1.0, 'measuring': 0.0, 'released_0': 0.5, 'released_1': 2.0}
    """
    found = {name: getattr(step, name) for name in _ONE[1:]}
    made = {name: float(value) for name, value in found.items() if value is not None}
    for name in _MANY:
        row = getattr(step, name)
        layers = len(step.thresholds) if name == "released" else 0
        made.update(zip(_column_names(name, len(row), layers), row, strict=True))
    return made


def _pad(rows: Sequence[Sequence[float]]) -> Floats:
    made = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for place, row in enumerate(rows):
        made[place, : len(row)] = row
    return made


def _column_names(name: str, count: int, layers: int) -> list[str]:
    if not layers:
        return [f"{name}_{place}" for place in range(count)]
    return [f"{name}_{layer}_{place}" for layer in range(layers) for place in range(count // layers)]
