"""What happened to the records, as plain frozen values; what it costs is the accountant's business.

Neighbours differ by one record, added or removed. The vocabulary only grows: an event is never removed and its
meaning never changes, because ledgers on disk are made of these.

    >>> to_json(Repeated(PoissonSampled(0.01, Gaussian(1.0)), 100))
    '{"event":{"event":{"noise_multiplier":1.0,"type":"Gaussian"},"rate":0.01,"type":"PoissonSampled"},"times":100,"type":"Repeated"}'
    >>> from_json('{"type":"Gaussian","noise_multiplier":2.0}')
    Gaussian(noise_multiplier=2.0)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from dpilot import _validate
from dpilot.errors import InvalidInput

LAWS: Final = ("tnb", "poisson")


@dataclass(frozen=True, slots=True)
class Gaussian:
    """One release of ``value + N(0, (noise_multiplier * bound)^2 I)``, where the value moves by at most ``bound``
    in L2 when one record is added or removed. It is exactly (1 / noise_multiplier)-GDP."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", _validate.positive(noise_multiplier=self.noise_multiplier))


@dataclass(frozen=True, slots=True)
class PoissonSampled:
    """``event`` run on a subset that keeps each record independently with probability ``rate``."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.rate(rate=self.rate))
        check_event(self.event)


@dataclass(frozen=True, slots=True)
class Repeated:
    """``event`` run ``times`` times, fresh randomness each time, later runs may see earlier outputs."""

    event: Event
    times: int

    def __post_init__(self) -> None:
        check_event(self.event)
        object.__setattr__(self, "times", _validate.count(times=self.times))


@dataclass(frozen=True, slots=True)
class Composed:
    """All of ``events``, fresh randomness each; later ones may see earlier outputs. Empty: nothing happened."""

    events: tuple[Event, ...]

    def __init__(self, events: Iterable[Event]) -> None:
        object.__setattr__(self, "events", tuple(events))
        for event in self.events:
            check_event(event)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of ``events``, which one stays secret: costs the pointwise maximum of their curves.

    The choice is made before the records are touched, by a coin or a rule that depends on no record and no release.
    Equal epsilon at one delta is not domination, so the maximum is taken at every order and every epsilon.
    """

    events: tuple[Event, ...]

    def __init__(self, events: Iterable[Event]) -> None:
        object.__setattr__(self, "events", tuple(events))
        if not self.events:
            raise InvalidInput("events is empty: expected at least one event. Name what may happen.")
        for event in self.events:
            check_event(event)


@dataclass(frozen=True, slots=True)
class PureDP:
    """Any (epsilon, 0)-DP release: Laplace, randomised response."""

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive(epsilon=self.epsilon))


@dataclass(frozen=True, slots=True)
class ExponentialMechanism:
    """An ``epsilon``-bounded-range release: exp(epsilon * score / (2 * sensitivity)).

    It is epsilon-DP, and (epsilon^2 / 8)-zCDP, which is better than what epsilon-DP alone gives.
    Reference: Cesar and Rogers, "Bounding, Concentrating, and Truncating", ALT 2021, Corollary 8.
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive(epsilon=self.epsilon))


@dataclass(frozen=True, slots=True)
class ApproxDP:
    """Any (epsilon, delta)-DP release of which nothing more is known: it enters totals by sums."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.non_negative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", _validate.open_unit(delta=self.delta))


@dataclass(frozen=True, slots=True)
class RepeatAndSelect:
    """``event`` (a whole trial, its noisy score included) run K times, the best by score released, K secret.

    K is drawn first from ``law``: "tnb", the truncated negative binomial of ``shape`` > -1 (0 is the logarithmic,
    1 the geometric law), or "poisson"; ``mean_trials`` is its mean.

    Reference: Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR 2022.
    """

    event: Event
    mean_trials: float
    law: str = "tnb"
    shape: float = 0.0

    def __post_init__(self) -> None:
        check_event(self.event)
        _validate.one_of(LAWS, law=self.law)
        mean = _validate.positive(mean_trials=self.mean_trials)
        shape = _validate.number(shape=self.shape)
        if self.law == "tnb" and mean <= 1:
            _validate.refuse("mean_trials", mean, 'a number > 1 for law "tnb"', "It always runs at least one trial.")
        if self.law == "tnb" and shape <= -1:
            _validate.refuse("shape", shape, "a number > -1")
        object.__setattr__(self, "mean_trials", mean)
        object.__setattr__(self, "shape", shape if self.law == "tnb" else 0.0)


Event = (
    Gaussian | PoissonSampled | Repeated | Composed | OneOf | PureDP | ExponentialMechanism | ApproxDP | RepeatAndSelect
)

_ALLOWED: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(Event)}


def nothing() -> Composed:
    """The event of not touching the records at all."""
    return Composed(())


def leaves(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """The parts of ``event`` with how often each ran, Composed, Repeated and samples of everything unfolded."""
    match event:
        case Repeated(inner, n):
            yield from leaves(inner, times * n)
        case PoissonSampled(rate, inner) if rate == 1:
            yield from leaves(inner, times)
        case Composed(parts):
            for part in parts:
                yield from leaves(part, times)
        case _:
            yield event, times


def selects(event: Event) -> bool:
    """Whether private selection happens anywhere inside, which no PLD composes with."""
    return any(
        isinstance(part, RepeatAndSelect) or (isinstance(part, OneOf) and any(map(selects, part.events)))
        for part, _ in leaves(event)
    )


def to_dict(event: Event) -> dict[str, Any]:
    """Plain data: the fields, nested events as data too, and ``type``."""
    check_event(event)
    data: dict[str, Any] = {"type": type(event).__name__}
    for field in fields(event):
        data[field.name] = _plain(getattr(event, field.name))
    return data


def from_dict(data: object) -> Event:
    """The event behind plain data. Only the names of this module are known; nothing is imported by name."""
    if not isinstance(data, dict):
        raise InvalidInput(f"an event is {data!r}: expected an object with a 'type'.")
    kind = _ALLOWED.get(str(data.get("type")))
    if kind is None:
        raise InvalidInput(
            f"event type is {data.get('type')!r}: expected one of {', '.join(_ALLOWED)}. "
            "A newer dpilot may have written it."
        )
    names = [field.name for field in fields(kind)]
    given = set(data) - {"type"}
    if given != set(names):
        raise InvalidInput(f"{data['type']} has fields {sorted(given)}: expected {sorted(names)}.")
    return kind(**{name: _from_plain(name, data[name]) for name in names})  # type: ignore[no-any-return]


def to_json(event: Event) -> str:
    """One line of canonical JSON: sorted keys, no spaces, shortest numbers that read back bit for bit."""
    return json.dumps(to_dict(event), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> Event:
    """The inverse of to_json, from an allow-list only."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, TypeError) as problem:
        raise InvalidInput(f"an event is not JSON ({problem}): expected what events.to_json wrote.") from None
    return from_dict(data)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [to_dict(part) for part in value]
    return to_dict(value) if type(value) in _ALLOWED.values() else value


def _from_plain(name: str, value: Any) -> Any:
    if name == "event":
        return from_dict(value)
    if name == "events":
        if not isinstance(value, list):
            raise InvalidInput(f"events is {value!r}: expected a list of events.")
        return [from_dict(part) for part in value]
    return value


def check_event(event: object) -> None:
    """Refuse what is not an event."""
    if type(event) not in _ALLOWED.values():
        raise InvalidInput(f"event is {event!r}: expected one of dpilot.privacy.events.")
