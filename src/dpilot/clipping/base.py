"""What every clipping rule is made of: the contract, the public state, and how a state starts and moves.

A rule is a frozen value with three pure functions::

    state = rule.init(noise_multiplier=1.0, expected_batch_size=512, dimension=1_000)
    weights, extras = rule.clip(norms, state)            # (n,), (n, k): row by row
    state = rule.update(state, released_extras_sum)      # the noisy SUM over the batch

and one promise, for every record with gradient norm n, weight w and extra coordinates x::

    (w n)^2 + |x|^2 <= bound^2          where bound depends on the public state only.

Then [sum w_i g_i | sum x_i] moves by at most ``bound`` in L2 when one record is added or removed, one Gaussian of
standard deviation ``noise_multiplier * bound`` covers it, and every rule costs what plain DP-SGD costs.

Rules compute in float64 and answer in the dtype of the norms. Rounding an answer to float32 can lift (w n)^2 + |x|^2
above bound^2 by a few parts in 10^7, which no price covers. ``Seen.seal`` checks each row as it will be returned, and
makes it shorter by one fixed tiny factor where it does not clearly fit. It corrects rounding and nothing else: a rule
whose formula is wrong by more still breaks the contract, and its tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import sha256
from numbers import Integral, Real
from typing import Any, Final, NotRequired, Protocol, Required, TypedDict, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpilot import _validate
from dpilot.errors import InvalidInput

LOWEST: Final = 1e-12
"""No threshold falls below this, whatever the rule's floor: a threshold of 0 could never grow again."""
HIGHEST: Final = 1e12
"""No threshold rises above this, whatever the rule's ceiling: its square is still an ordinary float32."""


class Public(TypedDict, total=False):
    """The declared numbers a rule may start from. None of them depends on the data."""

    noise_multiplier: Required[float]
    expected_batch_size: Required[float]
    dimension: Required[int]
    steps: NotRequired[int | None]
    device: NotRequired[torch.device | str | None]


class Clipping(Protocol):
    """A clipping rule: what it sends for each record, and what it learns from what came back."""

    def init(self, **public: Unpack[Public]) -> State:
        """The state before the first step, from declared numbers only."""
        ...

    def clip(self, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Weights (n,) and extras (n, k) of records with gradient norms (n,), each row on its own."""
        ...

    def update(self, state: State, released: Tensor) -> State:
        """The next state, from the released (noisy) sum (k,) of the extras over the batch."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All a rule knows between two steps. Everything in it is public: declared, or already released.

    ``threshold`` and ``bound`` are 0-d tensors (float() works) that live where the last release lived, so that a step
    never waits for the device. They are float64; on a device without float64 they are float32.

    Edge cases:
        measuring        how many of the next steps only measure: every weight is 0, the optimizer must not move
        memory           what a rule remembers beside its threshold, such as a bin width; None for most
        inner            the state of the rule inside, for the normalized and the layer-wise form
        origin           the rule that made it, every parameter written out; any other rule refuses it

    Example:
        >>> from dpilot import clipping
        >>> state = clipping.get("constant", threshold=0.1).init(noise_multiplier=1, expected_batch_size=8, dimension=2)
        >>> float(state.threshold), float(state.bound)
        (0.1, 0.1)
        >>> State.from_dict(state.to_dict()) == state
        True
    """

    threshold: Tensor
    bound: Tensor
    noise_multiplier: float
    expected_batch_size: float
    dimension: int
    step: int = 0
    measuring: int = 0
    memory: Tensor | None = None
    inner: State | None = None
    origin: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.noise_multiplier, self.expected_batch_size, self.dimension, self.step))

    @property
    def frozen(self) -> bool:
        """Whether this step only measures, so that the optimizer must not move."""
        return self.measuring > 0

    def to(self, device: torch.device) -> State:
        """The same state on another device; itself when it is already there."""
        if self.threshold.device == device:
            return self
        return replace(
            self,
            threshold=_to_device(self.threshold, device),
            bound=_to_device(self.bound, device),
            memory=None if self.memory is None else _to_device(self.memory, device),
            inner=None if self.inner is None else self.inner.to(device),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON writes and reads back bit for bit."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: object) -> State:
        """The inverse of to_dict. Numbers only: nothing is executed or imported."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            found = sorted(data) if isinstance(data, dict) else data
            raise InvalidInput(f"a clip state has {found!r}: expected the fields {sorted(names)}.")
        return cls(
            threshold=_tensor("threshold", data["threshold"]),
            bound=_tensor("bound", data["bound"]),
            noise_multiplier=_validate.non_negative(noise_multiplier=data["noise_multiplier"]),
            expected_batch_size=_validate.positive(expected_batch_size=data["expected_batch_size"]),
            dimension=_validate.count(dimension=data["dimension"]),
            step=_validate.count(least=0, step=data["step"]),
            measuring=_validate.count(least=0, measuring=data["measuring"]),
            memory=None if data["memory"] is None else _tensor("memory", data["memory"], signed=True),
            inner=None if data["inner"] is None else cls.from_dict(data["inner"]),
            origin=_text("origin", data["origin"]),
        )


def identity(rule: Any) -> str:
    """A rule as text: equal rules have equal texts, and no others (where what they hold tells all of it by ``repr``).

    Edge cases:
        a number          as a float, where that is the same number: 1 and 1.0 are one
        array, tensor     by type, shape and a hash of all its bytes
        a rule of yours   by module and name: rules of one name in two modules are two

    Example:
        >>> from dpilot.clipping import Constant, Normalized
        >>> identity(Normalized(Constant(threshold=1)))
        'Normalized(rule=Constant(threshold=1.0))'
    """
    parameters = ", ".join(f"{field.name}={_describe(getattr(rule, field.name))}" for field in fields(rule))
    kind = type(rule)
    own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return f"{kind.__name__ if own else f'{kind.__module__}.{kind.__qualname__}'}({parameters})"


def check_own(rule: Any, state: State) -> None:
    """Refuse the state of another rule, or of this one with other parameters: its bound would not be this rule's."""
    if state.origin != identity(rule):
        maker = f"by {state.origin}" if state.origin else "by no rule"
        raise InvalidInput(
            f"the clip state was made {maker}: expected one of {identity(rule)}. Start from this rule's own init."
        )


def start(
    rule: Any,
    threshold: float | list[float],
    bound: float | list[float],
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    dimension: int,
    steps: int | None = None,
    device: torch.device | str | None = None,
) -> State:
    """The state before the first step, its numbers checked; ``steps`` is for rules that ask for it before."""
    if steps is not None:
        _validate.count(steps=steps)
    state = State(
        threshold=torch.tensor(threshold, dtype=torch.float64),
        bound=torch.tensor(bound, dtype=torch.float64),
        noise_multiplier=_validate.non_negative(noise_multiplier=noise_multiplier),
        expected_batch_size=_validate.positive(expected_batch_size=expected_batch_size),
        dimension=_validate.count(dimension=dimension),
        origin=identity(rule),
    )
    return state if device is None else state.to(torch.empty(0, device=device).device)


def receive(rule: Any, state: State, released: Tensor, extras: int) -> tuple[State, Tensor]:
    """The state one step later, beside the released sum, in the state's precision and on one device."""
    check_own(rule, state)
    if released.shape[-1:] != (extras,):
        _validate.refuse("the shape of the released extras", tuple(released.shape), f"({extras},)")
    state = replace(state.to(released.device), step=state.step + 1)
    return state, released.detach().to(state.threshold.dtype)


def update_from_release(rule: Clipping, state: State, extras: Tensor, length: Tensor) -> State:
    """The next state from one release: its extras and, for a rule that ``reads_length``, the length of its gradient.

    ``length`` is that of the noisy sum of the gradients, which is post-processing of it.
    """
    if getattr(rule, "reads_length", False):
        return cast(Any, rule).update(state, extras, length)  # type: ignore[no-any-return]
    return rule.update(state, extras)


# working precision -> (how much room a row must leave in the square, how much shorter a row becomes that does not).
# float64: a float32 answer overshoots by at most 6 * 2^-24 in the square, counting the rounding of the bound itself to
# float32; shortening by 2^-21 takes 16 * 2^-24 away. float32 alone (a device without float64) needs more of both.
# Tested by tests/contracts/test_clipping.py::test_joint_norm_never_exceeds_bound_in_other_forms.
_ROOM: Final = {torch.float64: (2.0**-32, 2.0**-21), torch.float32: (2.0**-18, 2.0**-17)}


@dataclass(frozen=True, slots=True)
class Seen:
    """Norms as a rule may use them: working precision, null records (not finite, or negative) read as 0."""

    norms: Tensor  # (n,) or (n, groups)
    valid: Tensor  # the same shape, bool
    state: State  # on the device of the norms
    dtype: torch.dtype  # of the answer

    def seal(self, weights: Tensor, extras: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights and extras as they leave the rule: null records at 0, and every row inside the bound.

        Guarantee:
            If the exact formula satisfies (w n)^2 + |x|^2 <= bound^2, so does what is returned, evaluated in float64,
            also against the bound rounded to float32.

        Edge cases:
            weight below the smallest normal float     0: a subnormal weight is too coarse to bound w n
            weights (n, groups), extras (n, k)         one row is one record, its groups count together
            weights (n, groups), extras (n, groups, k) each group has its own bound
        """
        n, work = self.norms, self.norms.dtype
        x = weights.new_zeros((*weights.shape, 0), dtype=self.dtype) if extras is None else extras.to(self.dtype)
        together = weights.ndim == x.ndim  # of a record's groups
        w = weights.to(self.dtype)
        w = torch.where(w >= torch.finfo(self.dtype).tiny, w, 0.0).clamp_max(torch.finfo(self.dtype).max)
        squares = (w.to(work) * n).square()
        joint = squares.sum(-1) if together else squares
        if x.shape[-1]:
            joint = joint + x.to(work).square().sum(-1)
        keep = self._factor(joint, self.valid.all(-1) if together else self.valid)
        return w * (keep.unsqueeze(-1) if together else keep), x * keep.unsqueeze(-1) if x.shape[-1] else x

    def _factor(self, joint: Tensor, valid: Tensor) -> Tensor:
        """1 for a row that clearly fits, a little less for one that may not, 0 for a null record."""
        room, shorter = _ROOM[joint.dtype]
        bound = torch.minimum(self.state.bound, self.state.bound.float())
        tight = ~(joint <= bound.square() * (1.0 - room))
        return ((1.0 - shorter * tight.to(joint.dtype)) * valid).to(self.dtype)


def see(rule: Any, norms: Tensor, state: State) -> Seen:
    """Norms (n,) or (n, groups) made ready for a rule; a null record is one whose norm is not finite."""
    check_own(rule, state)
    norms = norms.detach()
    state = state.to(norms.device)
    valid = (norms >= 0) & (norms < torch.inf)  # False for nan
    work = torch.promote_types(norms.dtype, state.threshold.dtype)
    clean = torch.where(valid, norms.to(work), 0.0)
    return Seen(clean, valid, state, torch.promote_types(norms.dtype, torch.float32))


def clip_factor(norms: Tensor, threshold: Tensor) -> Tensor:
    """min(1, C / n), without dividing by 0."""
    return threshold / torch.maximum(norms, threshold)


class FixedThreshold:
    """What the rules with one declared threshold share. Abstract: a rule declares ``threshold`` and writes ``clip``."""

    __slots__ = ()

    threshold: float

    def init(self, **public: Unpack[Public]) -> State:
        return start(self, self.threshold, self.threshold, **public)

    def update(self, state: State, released: Tensor) -> State:
        return receive(self, state, released, extras=0)[0]


def adjust_threshold(threshold: Tensor, exponent: Tensor, floor: float, ceiling: float) -> Tensor:
    """threshold * exp(exponent) inside its limits; a signal that is not a number leaves it where it is."""
    return within(threshold * torch.exp(torch.nan_to_num(exponent)), floor, ceiling)


def within(threshold: Tensor, floor: float, ceiling: float) -> Tensor:
    """The threshold kept in [floor, ceiling], and whatever these are in [LOWEST, HIGHEST]."""
    return threshold.clamp(*limits(floor, ceiling))


def limits(floor: float, ceiling: float) -> tuple[float, float]:
    """What [floor, ceiling] comes to inside the technical limits [LOWEST, HIGHEST]."""
    return max(floor, LOWEST), min(ceiling, HIGHEST)


def first_threshold(threshold: float, floor: float, ceiling: float) -> float:
    """The declared first threshold, kept inside the rule's limits."""
    low, high = limits(floor, ceiling)
    return min(max(threshold, low), high)


def check_threshold(threshold: float, floor: float = 0.0, ceiling: float = math.inf) -> None:
    """Refuse a threshold or limits that no run could start from."""
    _validate.positive(threshold=threshold)
    _validate.non_negative(floor=floor)
    if ceiling != math.inf:
        _validate.positive(ceiling=ceiling)
    if not LOWEST <= threshold <= HIGHEST:
        _validate.refuse("threshold", threshold, f"a number in [{LOWEST:g}, {HIGHEST:g}]", "Rescale the loss.")
    if floor > min(ceiling, HIGHEST) or ceiling < LOWEST:
        _validate.refuse("floor", floor, f"at most the ceiling, {ceiling!r}, both in [0, {HIGHEST:g}]")


def inside(rule: Any, state: State) -> State:
    """The state of the rule inside a form; refuses the state of another rule."""
    check_own(rule, state)
    if state.inner is None:
        raise InvalidInput("the clip state has no inner state: expected one made by this rule's own init.")
    return state.inner


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    has_double = device.type != "mps"
    return tensor.to(device=device, dtype=torch.float64 if has_double else torch.float32)


def _describe(value: Any) -> str:
    if isinstance(value, Real):
        return _describe_number(value)
    if isinstance(value, Tensor | np.ndarray):
        return _describe_array(value)
    if isinstance(value, tuple | list):
        return f"{'' if isinstance(value, tuple) else 'list'}[{', '.join(map(_describe, value))}]"
    return identity(value) if is_dataclass(value) else repr(value)


def _describe_number(value: Any) -> str:
    value = int(value) if isinstance(value, Integral) else value  # numpy compares its own with floats as floats
    try:
        same = float(value) == value or value != value
    except OverflowError:  # a whole number beyond all floats
        same = False
    return repr(float(value)) if same else str(value)


def _describe_array(values: Tensor | NDArray[Any]) -> str:
    if isinstance(values, Tensor):
        content = values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    else:
        content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
    return f"array({values.dtype}, {tuple(values.shape)}, {sha256(content).hexdigest()})"


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return value.to_dict() if isinstance(value, State) else value


def _text(name: str, value: object) -> str:
    return value if isinstance(value, str) else _validate.refuse(name, value, "the text of a rule")


def _tensor(name: str, value: object, signed: bool = False) -> Tensor:
    check = _validate.number if signed else _validate.positive
    checked = [check("", **{name: number}) for number in (value if isinstance(value, list) else [value])]
    return torch.tensor(checked if isinstance(value, list) else checked[0], dtype=torch.float64)
