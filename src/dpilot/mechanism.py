"""The door: the only way from sensitive to released. Noise and receipt come from one call.

>>> import numpy as np
>>> from dpilot.privacy.events import Gaussian
>>> from dpilot.privacy.receipt import Receipt
>>> receipt = Receipt(Gaussian(2.0))               # a ledger hands it out; tests may build one
>>> noisy = release(np.array([3.0, 4.0]), bound=1.0, noise_multiplier=2.0, receipt=receipt)
>>> noisy.shape, noisy.dtype
((2,), dtype('float64'))
>>> release(np.array([3.0, 4.0]), bound=1.0, noise_multiplier=2.0, receipt=receipt)
Traceback (most recent call last):
dpilot.errors.BudgetExceeded: a release of Gaussian(noise_multiplier=2.0) was not reserved, or was drawn already...
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpilot import _validate
from dpilot._arrays import Floats, is_tensor
from dpilot.errors import InvalidInput
from dpilot.noise import HardenedNoise, KeyedNoise, Noise, SystemNoise, seeded_noise
from dpilot.numerics.grid import join_limbs
from dpilot.privacy.events import Event, ExponentialMechanism, Gaussian, PoissonSampled
from dpilot.tape import TapeEntry, current, tape

__all__ = [
    "HardenedNoise",
    "KeyedNoise",
    "Noise",
    "SystemNoise",
    "choose",
    "gaussian_event",
    "release",
    "release_sample",
    "release_symmetric",
    "seeded_noise",
    "smat",
    "svec",
    "tape",
]

SYSTEM: Final = SystemNoise()
EXACT: Final = HardenedNoise()
_ROOT: Final = 181 / 128  # sqrt(2) cut to eight bits, so that whole numbers times it stay exact

Tree = TypeVar("Tree")
Output = TypeVar("Output")


class Draws(Protocol):
    """What the door asks of a receipt: take one release of ``event``, or raise and take nothing."""

    def draw(self, event: Event) -> None: ...


@lru_cache(maxsize=256, typed=True)  # the same at every step of a run; typed, as True is no number
def gaussian_event(noise_multiplier: float, sample_rate: float = 1.0) -> Event:
    """What one ``release`` costs: a Gaussian, Poisson-sampled when the rate is below 1.

    >>> gaussian_event(2.0), gaussian_event(2.0, sample_rate=0.1)
    (Gaussian(noise_multiplier=2.0), PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0)))
    """
    event = Gaussian(noise_multiplier)
    return event if _validate.rate(sample_rate=sample_rate) == 1 else PoissonSampled(sample_rate, event)


def release(
    vector: Tree,
    *,
    bound: float,
    noise_multiplier: float,
    receipt: Draws,
    sample_rate: float = 1.0,
    noise: Noise = SYSTEM,
) -> Tree:
    """Draw the receipt and return ``vector + N(0, (noise_multiplier * bound)^2 I)``, in one call.

    Args:
        vector: a numpy array, a torch tensor, a float, or a list, tuple or dict of these: one joint vector.
        bound: its L2 sensitivity.
        noise_multiplier: the standard deviation of the noise over ``bound``.
        receipt: what the release is drawn from; a ledger hands it out.
        sample_rate: the rate of the Poisson sample that the vector is of.
        noise: the source of the noise.

    Returns:
        The noisy vector, in the structure of ``vector`` and in new memory.

    Raises:
        BudgetExceeded: if the receipt does not admit the event; nothing is released then.

    Guarantee:
        If adding or removing one record moves the joint vector by at most ``bound`` in L2 (the caller's
        proof; ``dpilot.audit.replay`` tests it), the output is a Gaussian mechanism of ``noise_multiplier``, and
        that event was drawn from ``receipt`` before any noise was made. With ``sample_rate`` below 1 the vector is one
        of a batch that keeps each record independently with that probability.

    Edge cases:
        float32 and float64 only, and the output keeps them. Half precision is refused: the sum was rounded already,
        by more than the bound allows for. Integers are refused, as their noise would be.
        A scale that float32 or float64 cannot hold (it would become no noise, or nothing but) is refused.
        The input is never written to. Values are never looked at, so nothing is raised because of them.
    """
    event = gaussian_event(noise_multiplier, sample_rate)
    bound, noise_multiplier = _validate.positive(bound=bound), float(noise_multiplier)
    values = [_check_leaf(name, value) for name, value in _leaves("vector", vector)]
    _check_scale(values, noise_multiplier * bound)
    receipt.draw(event)

    def outputs() -> list[Any]:
        return noise.gaussian([value for _, value in values], bound=bound, noise_multiplier=noise_multiplier)

    released = _with_tape("gaussian", values, outputs, bound=bound, event=event, stamp=noise.stamp)
    return _rebuild(vector, iter(released))  # type: ignore[no-any-return]


def release_symmetric(
    limbs: Floats,
    *,
    bound: float,
    noise_multiplier: float,
    receipt: Draws,
    sample_rate: float = 1.0,
    noise: Noise = SYSTEM,
) -> Floats:
    """Release a symmetric matrix, each entry once, as ``smat(svec(matrix) + N(0, (noise_multiplier * bound)^2 I))``.

    ``limbs`` (2, d, d) add up to the matrix (``numerics.grid``).

    Guarantee:
        That of ``release`` with ``bound`` on the Frobenius norm, because |svec(A)|_2 <= |A|_F. Noise off the diagonal
        is smaller by sqrt(2) than on it (up to 0.01 %), and the result is exactly symmetric. The sum is rounded once.

    Edge cases:
        Only the upper triangle is read.
    """
    released = release(
        join_limbs(svec(limbs)),
        bound=bound,
        noise_multiplier=noise_multiplier,
        receipt=receipt,
        sample_rate=sample_rate,
        noise=noise,
    )
    return smat(released)


def choose(scores: Floats, *, sensitivity: float, epsilon: float, receipt: Draws, noise: Noise = SYSTEM) -> int:
    """Draw the receipt and return index j with probability proportional to exp(epsilon * scores[j] / (2 sensitivity)).

    Guarantee:
        If adding or removing one record moves each score by at most ``sensitivity``, this is the exponential mechanism:
        epsilon-DP and epsilon-bounded-range, hence (epsilon^2 / 8)-zCDP; it is not a Gaussian and is not priced as one.

    Edge cases:
        The number of candidates is public. Ties are broken by the same noise.

    Reference:
        McSherry and Talwar, FOCS 2007; Cesar and Rogers, ALT 2021, Corollary 8.
    """
    event = ExponentialMechanism(epsilon)
    sensitivity = _validate.positive(sensitivity=sensitivity)
    rate = float(epsilon) / (2 * sensitivity)
    if not (isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.ndim == 1 and scores.size):
        raise InvalidInput("scores are not a vector: expected a one-dimensional float64 array, one score a candidate.")
    receipt.draw(event)
    values = [("scores", scores)]
    return _with_tape(
        "choice", values, lambda: noise.choice(scores * rate), bound=sensitivity, event=event, stamp=noise.stamp
    )


def release_sample(
    sample: Callable[[Noise], Output],
    *,
    probes: Callable[[], Floats],
    sensitivity: float,
    event: Event,
    receipt: Draws,
    noise: Noise = SYSTEM,
) -> Output:
    """Draw the receipt for ``event`` and return ``sample(noise)``: a mechanism of its own, proved where it is written.

    Args:
        sample: Draws the output from the records; all its randomness comes from the noise source it is handed.
        probes: Numbers the output's law depends on, for a tape (``dpilot.audit``); not computed where none listens.
        sensitivity: How far one record may move each of the probes.
        event: What the sample costs.
        receipt: What pays for it.
        noise: Where randomness comes from.

    Guarantee:
        That of ``event``, if ``sample`` has it; the event was drawn from ``receipt`` before.
    """
    receipt.draw(event)
    if current() is None:
        return sample(noise)
    bound = _validate.positive(sensitivity=sensitivity)
    values = [("probes", probes())]
    return _with_tape("choice", values, lambda: sample(noise), bound=bound, event=event, stamp=noise.stamp)


def svec(matrix: Floats) -> Floats:
    """The upper triangle of symmetric matrices (..., d, d) as vectors hardly shorter: off-diagonal entries times
    181 / 128, which is sqrt(2) less 0.01 %.

    >>> svec(np.array([[1.0, 2.0], [2.0, 5.0]])).tolist()
    [1.0, 2.828125, 5.0]
    """
    if matrix.ndim < 2 or matrix.shape[-2] != matrix.shape[-1]:
        raise InvalidInput(f"matrix has shape {matrix.shape}: expected a square one.")
    rows, columns = np.triu_indices(matrix.shape[-1])
    return np.asarray(matrix[..., rows, columns] * np.where(rows == columns, 1.0, _ROOT))


def smat(vector: Floats) -> Floats:
    """The symmetric matrix of which ``vector`` is the svec."""
    size = (math.isqrt(8 * vector.size + 1) - 1) // 2
    if vector.ndim != 1 or size * (size + 1) // 2 != vector.size:
        raise InvalidInput(f"vector has shape {vector.shape}: expected d (d + 1) / 2 entries, one an upper entry.")
    rows, columns = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = vector / np.where(rows == columns, 1.0, _ROOT)
    matrix[columns, rows] = matrix[rows, columns]
    return matrix


def _with_tape(
    kind: str,
    values: Sequence[tuple[str, Any]],
    outputs: Callable[[], Output],
    *,
    bound: float,
    event: Event,
    stamp: str,
) -> Output:
    running = current()
    if running is None:
        return outputs()
    inputs = tuple(_copy(value) for _, value in values)
    forms = tuple(f"{name}: {type(value).__name__} {value.dtype} {tuple(value.shape)}" for name, value in values)
    result: Output = running.release(TapeEntry(kind, inputs, forms, bound, event, stamp), outputs)
    return result


def _leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, branch in tree.items():
            yield from _leaves(f"{name}[{key!r}]", branch)
    elif isinstance(tree, list | tuple):
        for place, branch in enumerate(tree):
            yield from _leaves(f"{name}[{place}]", branch)
    else:
        yield name, tree


def _rebuild(tree: Any, released: Iterator[Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _rebuild(branch, released) for key, branch in tree.items()}
    if isinstance(tree, list | tuple):
        branches = [_rebuild(branch, released) for branch in tree]
        return branches if isinstance(tree, list) else tuple(branches)
    value = next(released)
    return float(value) if isinstance(tree, float) else value


def _check_leaf(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, float):
        return name, np.asarray(value, dtype=np.float64)
    if not (type(value) is np.ndarray or _is_plain_tensor(value)):
        raise InvalidInput(
            f"{name} is a {type(value).__name__}: expected plain numpy arrays, dense torch tensors or floats. Others, "
            "such as masked arrays, may decide for themselves which entries take the noise."
        )
    if _precision(value) not in ("float32", "float64"):
        raise InvalidInput(
            f"{name} has dtype {value.dtype}: expected float32 or float64. Sum in float32 or better; a sum that was "
            "rounded further has another sensitivity. Of complex numbers release torch.view_as_real."
        )
    return name, value


def _is_plain_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a process that never loaded torch has no tensors
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return bool(value.layout == torch.strided) and not value.is_nested


def _check_scale(values: Sequence[tuple[str, Any]], scale: float) -> None:
    if not values:
        raise InvalidInput("vector is empty: expected at least one array.")
    for name, value in values:
        limits = np.finfo(_precision(value))
        low, high = float(limits.tiny), float(limits.max) * 1e-15  # 1e15 bounded records add up without overflow
        if not low <= scale <= high:
            raise InvalidInput(
                f"the noise scale of {name} is {scale!r}: expected {low:.3g} to {high:.3g}, what {_precision(value)} "
                "can hold with room for sums. Choose another bound or noise_multiplier."
            )


def _precision(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _copy(value: Any) -> NDArray[Any]:
    return np.array(value.detach().cpu().numpy() if is_tensor(value) else value, copy=True)
