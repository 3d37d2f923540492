"""Canaries: records that nobody is behind, each in a run by a fair coin, to see what the run gives away of one record.

A canary is clipped, sampled and summed like any other record, so what can be told of it from what the run released can
be told of anybody as exposed. ``privacy.lower_bounds`` turns the scores into a lower bound on epsilon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Subset

from dpilot import _validate
from dpilot._arrays import Floats, Indices
from dpilot.clipping import State
from dpilot.engine import PerSample
from dpilot.engine.base import make_handle, measure, trainable, zero_gradients
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, public_generator
from dpilot.numerics.grid import Grid
from dpilot.records import AuditRecord
from dpilot.sampling import check_source
from dpilot.train.batches.reader import RecordChunk, base_of
from dpilot.train.step import Planted
from dpilot.train.validation import exact_losses

if TYPE_CHECKING:
    from dpilot.train.job import Job


@dataclass(frozen=True, slots=True)
class Canaries:
    """``count`` canaries of a run, for ``Trainer(..., audit=Canaries(1000))``; half of them take part, by fair coins.

    Without ``records`` each is a gradient along one coordinate of its own, ``strength`` times as long as a record may
    count: it needs no data, sees every released sum, and has the most power. With ``records``, public or invented ones
    in the form of your own, each runs through the model like any other and is judged by its loss before and after:
    what somebody who has the final model sees.

    Guarantee:
        The epsilon of the run holds as it is for every record of yours: canaries are further records and depend on
        none. Scores and coins say nothing of your records beyond what was released.

    Edge cases:
        the plan's size          canaries count as records: about count / 2 take part beside yours
        records of yours, or altered copies of them    nothing can see that: they are not public, never give them

    Reference:
        Steinke, Nasr, Jagielski 2023; gradients of one coordinate: Nasr et al. 2023.
    """

    count: int = 1000
    records: Any = field(default=None, repr=False)
    strength: float = 10.0

    def __post_init__(self) -> None:
        few = "A bound needs guesses; 1000 or more are usual."
        object.__setattr__(self, "count", _validate.count(few, least=2, count=self.count))
        object.__setattr__(self, "strength", _validate.positive(strength=self.strength))
        if self.records is None:
            return
        check_source(self.records)
        if len(self.records) < self.count:
            raise InvalidInput(
                f"records holds {len(self.records)} records for {self.count} canaries: expected one for each. "
                "Give more of them, or a smaller count."
            )

    def check(self, job: Job, dataset: Any) -> None:
        """Refuse, before anything is paid, canaries that this run cannot hold."""
        if self.records is None:
            d = sum(parameter.numel() for parameter in trainable(job.model).values())
            if d < self.count:
                raise InvalidInput(
                    f"count is {self.count} canaries, and the model trains {d} numbers: expected at most one canary "
                    f"for each. Say Canaries({d}) or fewer, or give records."
                )
            return
        if not job.plan.unit.is_record:
            raise InvalidInput(
                f"canaries are records, and the plan protects {job.plan.unit}: expected Canaries({self.count}) "
                "without records, each of which counts as one unit."
            )
        if base_of(self.records) is base_of(dataset):
            raise InvalidInput(
                "the canaries' records are the data set to train on, or a part of it, which is private: expected "
                "public or invented records."
            )
        _losses(job, self._data())

    def plant(self, job: Job, form: Any, key: Chain) -> Planted:
        """The canaries of one run, their coins drawn; ``form`` is a public chunk of the run's records."""
        included = key.generator("canaries").random(self.count) < 0.5
        if self.records is None:
            return GradientCanaries.draw(trainable(job.model), included, self.strength)
        data = self._data()
        taking_part = job.reader(Subset(data, np.flatnonzero(included).tolist()), form)
        return RecordCanaries(job, data, included, _losses(job, data), taking_part)

    def _data(self) -> Any:
        return Subset(self.records, range(self.count))


@final
@dataclass(slots=True)
class GradientCanaries:
    """Canaries that are gradients: number i is ``strength`` bounds along a coordinate that no other one has.

    Its sign changes from step to step, so that what real gradients have there, which changes little, and the push on
    the model cancel. ``places`` are a canary's parameter (its number in ``parameters``) and coordinate in it;
    ``scores`` add up what was released there, with the step's ``sign`` and over its bound.
    """

    parameters: Mapping[str, nn.Parameter]
    included: NDArray[np.bool_]
    places: NDArray[np.int64]
    strength: float
    scores: Floats
    sign: float = 1.0

    @classmethod
    def draw(
        cls, parameters: Mapping[str, nn.Parameter], included: NDArray[np.bool_], strength: float
    ) -> GradientCanaries:
        """Coordinates without repetition, from all that are trained; which ones is no secret."""
        ends = np.cumsum([parameter.numel() for parameter in parameters.values()])
        flat = public_generator(0).choice(int(ends[-1]), included.size, replace=False)
        owner = np.searchsorted(ends, flat, side="right")
        places = np.stack([owner, flat - np.concatenate([[0], ends])[owner]])
        return cls(parameters, included, places, strength, np.zeros(included.size))

    def chunks(self, numbers: Indices, size: int) -> Iterable[RecordChunk]:
        del numbers, size
        return ()

    def gradients(self, numbers: Indices, state: State) -> Iterator[PerSample]:
        if not numbers.size:
            return
        owner, coordinate = self.places[:, np.flatnonzero(self.included)[numbers]]
        length, sign = self.strength * float(state.bound), self.sign
        names = list(self.parameters)
        squares = {}
        for number, (name, parameter) in enumerate(self.parameters.items()):
            own = torch.from_numpy(owner == number).to(parameter.device)
            squares[name] = own.to(measure(parameter)) * length**2

        def weighted(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
            sums = zero_gradients(self.parameters)
            for number in np.unique(owner):
                mine = np.flatnonzero(owner == number)
                total, w = sums[names[number]].view(-1), weights[names[number]]
                at = torch.from_numpy(coordinate[mine]).to(total.device)
                total[at] += (w[torch.from_numpy(mine).to(w.device)] * (sign * length)).to(total.dtype)
            return sums if grid is None else {name: grid.round(total) for name, total in sums.items()}

        yield make_handle("canary", "gradients that were given", squares, weighted)

    def observe(self, released: Mapping[str, Tensor], state: State) -> None:
        scale = self.sign / float(state.bound)
        for number, (name, parameter) in enumerate(self.parameters.items()):
            mine = np.flatnonzero(self.places[0] == number)
            flat = released[name].reshape(parameter.numel(), -1)[:, 0]  # of a complex number its real part
            seen = flat[torch.from_numpy(self.places[1, mine]).to(flat.device)]
            self.scores[mine] += seen.double().cpu().numpy() * scale
        self.sign = -self.sign

    def record(self) -> AuditRecord:
        return AuditRecord("gradient", tuple(self.included.tolist()), tuple(self.scores.tolist()))


@final
@dataclass(slots=True)
class RecordCanaries:
    """Canaries that are records: scored by how far the run lowered their loss."""

    job: Job
    data: Any
    included: NDArray[np.bool_]
    before: Floats
    taking_part: Any

    def chunks(self, numbers: Indices, size: int) -> Iterable[RecordChunk]:
        pieces = (numbers[start : start + size] for start in range(0, numbers.size, size))
        return self.taking_part.chunks(pieces)  # type: ignore[no-any-return]

    def gradients(self, numbers: Indices, state: State) -> Iterable[PerSample]:
        del numbers, state
        return ()

    def observe(self, released: Mapping[str, Tensor], state: State) -> None:
        del released, state

    def record(self) -> AuditRecord:
        fell = np.nan_to_num(self.before - _losses(self.job, self.data), nan=0.0)
        return AuditRecord("record", tuple(self.included.tolist()), tuple(fell.tolist()))


def _losses(job: Job, data: Any) -> Floats:
    """The loss of every canary, in evaluation mode and without a trace."""
    try:
        found = exact_losses(data, job.model, job.loss_fn, per_batch=job.options.per_batch, collate=job.collate)
    except (RuntimeError, ValueError, TypeError, LookupError) as problem:
        raise InvalidInput(
            f"the canaries' loss cannot be computed ({problem}): expected records as in training."
        ) from problem
    if len(found) != len(data):
        raise InvalidInput(
            f"{len(data) - len(found)} of {len(data)} canaries cannot be read: expected records as in training."
        )
    return np.asarray(found.numpy(), dtype=np.float64)
