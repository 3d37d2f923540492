"""Linear probing: linear heads on cached features by full-batch private gradient descent, many heads at once.

>>> from dpilot.privacy.receipt import Receipt
>>> features = Features.of([[1.0, 0.0], [0.0, 1.0]] * 500, [0, 1] * 500, classes=2)
>>> heads = [Head(lr=1.0, steps=5, noise_multiplier=2.0), Head(lr=0.5, steps=10, noise_multiplier=3.0)]
>>> fitted = fit_heads(features, heads, receipts=[Receipt(head.event) for head in heads], size=1000)
>>> [predict(features, weights)[:2].tolist() for weights in fitted]
[[0, 1], [0, 1]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.mechanism import Draws, Noise
from dpilot.noise import check_distinct, is_hardened
from dpilot.numerics import precision
from dpilot.numerics.products import products
from dpilot.privacy.events import Event, Gaussian, Repeated
from dpilot.private_sum import Clip, Summand, private_sum
from dpilot.transfer.features import Features, chunk_rows
from dpilot.transfer.head_gradients import FeatureBlocks
from dpilot.transfer.head_kernels import record_graph
from dpilot.transfer.joint import JointHeads, clip_heads

__all__ = ["Head", "fit_heads", "predict", "scores"]

_ROWS: Final = 2048  # that are predicted at a time
_HEAVIEST: Final = 1e9  # class weight: norms of units have room for no more (``unit_gradients``)
_LEAST: Final = (
    1e-30  # of a threshold and of its noise: below, float32 drops bits of sums; beyond 1e30 they may overflow
)


@dataclass(frozen=True, slots=True)
class Head:
    """The public recipe of one linear head: no bias, started at zero, cross-entropy, full batch.

    Formula::

        g = (sum_i clip(x_i (p_i - y_i)^T, C) + N(0, (sigma C)^2 I)) / size
        v = momentum v + g          w = w - lr v          ``steps`` times
        v = momentum v              w = w - lr v          once more, for free, if ``free_step``

    Guarantee:
        Each step is one Gaussian of ``noise_multiplier``, so the whole is (sqrt(steps) / noise_multiplier)-GDP,
        exactly: there is no sampling. The free step reads nothing but earlier releases.

    Reference:
        Panda et al., "A New Linear Scaling Rule for Private Adaptive Hyperparameter Optimization", ICML 2024.
    """

    lr: float
    steps: int
    noise_multiplier: float
    momentum: float = 0.9
    threshold: float = 1.0
    free_step: bool = True

    def __post_init__(self) -> None:
        checked = {
            "lr": _validate.positive(lr=self.lr),
            "steps": _validate.count(steps=self.steps),
            "noise_multiplier": _validate.positive(noise_multiplier=self.noise_multiplier),
            "momentum": _validate.share(momentum=self.momentum),
            "threshold": _validate.positive(threshold=self.threshold),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        scale = self.threshold * self.noise_multiplier
        for name, value in (("threshold", self.threshold), ("threshold times noise_multiplier", scale)):
            if not _LEAST <= value <= 1 / _LEAST:
                _validate.refuse(name, value, "1e-30 to 1e30, what float32 adds up", "Scale the features instead.")

    @property
    def event(self) -> Event:
        """What fitting it costs: one Gaussian a step."""
        return Repeated(Gaussian(self.noise_multiplier), self.steps)


def fit_heads(
    features: Features,
    heads: Sequence[Head],
    *,
    receipts: Sequence[Draws],
    size: float,
    noises: Sequence[Noise] | None = None,
    device: torch.device | str | None = None,
    class_weights: Sequence[float] | None = None,
) -> tuple[Tensor, ...]:
    """Fit every head on the same features, as one product a step for all; weights (d, classes) for each head.

    ``receipts[j]`` is drawn once a step of head j and must hold ``heads[j].event``; ``size`` is declared, the divisor
    of sums; ``noises[j]`` is head j's own noise source (the default asks the operating system at every step): where all
    are hardened, sums are exact;
    ``class_weights`` are declared or released, and multiply the loss of the records of each class before clipping.

    Guarantee:
        One record moves head j's sum by at most ``heads[j].threshold``, whatever its weight. Noise is independent
        between heads and steps.
        A head's weights are the same (but for float rounding) whichever heads are fitted beside it.

    Edge cases:
        Null records add nothing. No records at all: the heads learn noise, and it costs what it always costs.
        A head that is done drops out; the others go on.
        A record longer than 1e15 thresholds is null.
        A record put in before others moves the roundings of their sums too, on records built for it by more than the
        bound: where others may choose the order, give ``features.shuffled()``.
        On a GPU features are cut to TF32 (10 bits), whatever is set for other products: quicker, and most so for many
        heads.
    """
    heads, size = tuple(heads), _validate.positive("It is declared, not counted.", size=size)
    _check_counts(len(heads), receipts=receipts, noises=heads if noises is None else noises)
    check_distinct(noises or ())
    checked, exact = _check_weights(class_weights, features.classes), noises is not None and is_hardened(*noises)
    blocks = FeatureBlocks.of(features, device, size, heads=len(heads), class_weights=checked, exact=exact)
    team = _Team.start(heads, blocks)
    fits: dict[int, Tensor] = {}
    with torch.no_grad(), precision.use_grade(blocks.grade):
        while team.places:
            sources = None if noises is None else tuple(noises[j] for j in team.places)
            team = team.advance(blocks, [receipts[j] for j in team.places], sources, size)
            fits |= team.results()
            team = team.others()
    return tuple(fits[j].contiguous().to(features.values.device) for j in range(len(heads)))


def predict(features: Features | Tensor, weights: Tensor) -> Tensor:
    """The class of the largest of each record's ``scores``, (n,) int64."""
    return scores(features, weights).argmax(1)


def scores(features: Features | Tensor, weights: Tensor) -> Tensor:
    """What each record's features say for each class, (n, classes).

    Guarantee:
        A record's scores are its own to the last bit, wherever it stands and however many there are: another bit would
        change its class where two scores are equal. On a CPU they are float64 products (``numerics.products``), as
        float32 ones round the last rows of a block otherwise; on a GPU records are multiplied in blocks of one size.
    """
    values = features.values if isinstance(features, Features) else features
    return torch.cat([_multiply(rows.to(weights), weights) for rows in chunk_rows(values, _ROWS)])


def _multiply(rows: Tensor, weights: Tensor) -> Tensor:
    if weights.device.type == "cpu":
        return torch.from_numpy(products(rows.double().numpy(), weights.double().numpy())).to(weights)
    filled = pad(rows, (0, 0, 0, _ROWS - len(rows))).contiguous()
    return filled.mm(weights)[: len(rows)]


def _check_weights(weights: Sequence[float] | None, classes: int) -> tuple[float, ...] | None:
    if weights is None:
        return None
    if len(weights) != classes:
        _validate.refuse("the number of class_weights", len(weights), f"{classes}, one for each class")
    for each in weights:
        if _validate.positive(class_weight=each) > _HEAVIEST:
            _validate.refuse("class_weight", each, f"at most {_HEAVIEST:g}", "Divide all of them by the largest.")
    return tuple(map(float, weights))


def _check_counts(heads: int, **named: Sequence[object]) -> None:
    if not heads:
        raise InvalidInput("heads is empty: expected at least one Head.")
    for name, values in named.items():
        if len(values) != heads:
            _validate.refuse(f"the number of {name}", len(values), f"{heads}, one for each head")


@dataclass(frozen=True, slots=True, eq=False)
class _Team:
    """The heads that still step, with their places among all heads, as one stack of weights and of momentum."""

    heads: tuple[Head, ...]
    places: tuple[int, ...]
    weights: Tensor  # (heads, classes, d)
    velocity: Tensor
    step: int = 0

    @classmethod
    def start(cls, heads: tuple[Head, ...], blocks: FeatureBlocks) -> _Team:
        shape = (len(heads), blocks.classes, blocks.values.shape[1])
        zeros = torch.zeros(shape, device=blocks.values.device)
        return cls(heads, tuple(range(len(heads))), zeros, zeros.clone())

    def advance(
        self, blocks: FeatureBlocks, receipts: Sequence[Draws], noises: tuple[Noise, ...] | None, size: float
    ) -> _Team:
        """The team after the steps until the first of these heads is done."""
        lr, momentum, thresholds = (
            self.weights.new_tensor(self._each(name)) for name in ("lr", "momentum", "threshold")
        )
        joint = JointHeads(self._each("noise_multiplier"), self._each("threshold"), tuple(receipts), noises)
        units = self.weights.new_tensor(joint.units)[:, None, None]
        limits = blocks.limits(thresholds)
        weights, velocity, stop = self.weights.clone(), self.velocity.clone(), min(head.steps for head in self.heads)
        released, rate = torch.zeros_like(weights), units / size

        def sum_gradients() -> Tensor:
            return blocks.sum_in_units(weights, limits, joint)

        def move() -> None:
            velocity.mul_(momentum[:, None, None]).addcmul_(released, rate)
            weights.addcmul_(velocity, lr[:, None, None], value=-1)

        def move_and_sum() -> Tensor:
            move()
            return sum_gradients()

        steps = stop - self.step  # the move of a step is recorded with the sums of the next
        again = record_graph(move_and_sum, weights.device, steps, changes=(weights, velocity))
        for step in range(steps):
            sums = _SumOfBlocks(again if step else sum_gradients)
            noisy, _ = private_sum(
                [sums],
                clip_heads,
                joint,
                empty=sums,
                noise_multiplier=joint.noise_multiplier,
                receipt=joint,
                noise=joint.noise,
            )
            released.copy_(noisy)
        move()
        return replace(self, weights=weights, velocity=velocity, step=stop)

    def results(self) -> dict[int, Tensor]:
        """The weights (d, classes) of heads that are done, by place, the free step taken."""
        return {
            place: weights.T - (head.lr * head.momentum * velocity.T if head.free_step else 0.0)
            for place, head, weights, velocity in zip(self.places, self.heads, self.weights, self.velocity, strict=True)
            if head.steps == self.step
        }

    def others(self) -> _Team:
        """The heads that are not done."""
        keep = [j for j, head in enumerate(self.heads) if head.steps > self.step]
        return replace(
            self,
            heads=tuple(self.heads[j] for j in keep),
            places=tuple(self.places[j] for j in keep),
            weights=self.weights[keep],
            velocity=self.velocity[keep],
        )

    def _each(self, name: str) -> tuple[float, ...]:
        """One field of every head."""
        return tuple(getattr(head, name) for head in self.heads)


@final
@dataclass(frozen=True, slots=True)
class _SumOfBlocks(Summand):
    """All blocks of a step as one piece: ``work`` sums them, in units of the noise; on a GPU it is a recorded graph."""

    work: Callable[[], Tensor]

    def clip_and_sum(self, clip: Clip, state: JointHeads) -> tuple[Tensor, tuple[()]]:
        del clip, state  # those that the work was made with
        return self.work(), ()
