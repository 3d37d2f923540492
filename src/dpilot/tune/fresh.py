"""Fresh models for trials: each from secret randomness of its own, none holding anything of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.mechanism import Noise
from dpilot.noise import KeyedNoise
from dpilot.train.randomness import own_randomness

__all__ = ["check_fresh", "secret_randomness"]


@contextmanager
def secret_randomness(noise: Noise, purpose: str) -> Iterator[None]:
    """Secret randomness for what is not noise, such as initial weights; the process's generators stay as they were.

    Guarantee:
        Neither the generators of torch, numpy and random afterwards, nor what was drawn inside, tell how often this
        was done before: a secret number of trials stays one.

    Edge cases:
        The fixed noise of a test fixes this too.
    """
    with own_randomness(noise.state if isinstance(noise, KeyedNoise) else Chain(fresh_key(purpose))):
        yield


def check_fresh(model_fn: Callable[[], nn.Module]) -> None:
    """Refuse a function whose modules share what training changes; frozen parameters may be shared.

    >>> check_fresh(lambda: nn.Linear(2, 2))
    >>> one = nn.Linear(2, 2)
    >>> check_fresh(lambda: one)
    Traceback (most recent call last):
    ...
    dpilot.errors.InvalidInput: model_fn hands out 'weight' twice: expected fresh trainable parameters and buffers ...
    """
    first, second = model_fn(), model_fn()
    if not isinstance(first, nn.Module) or not isinstance(second, nn.Module):
        raise InvalidInput(f"model_fn returns a {type(first).__name__}: expected a torch module.")
    held = {_storage(each) for each in (*second.parameters(), *second.buffers())}
    changing = [pair for pair in first.named_parameters() if pair[1].requires_grad]
    for name, each in (*changing, *first.named_buffers()):
        if _lies_somewhere(each) and _storage(each) in held:
            raise InvalidInput(
                f"model_fn hands out {name!r} twice: expected fresh trainable parameters and buffers at every call, "
                "as trials would train on one another's. Build the module inside model_fn, or return copy.deepcopy(it)."
            )


def _lies_somewhere(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and not tensor.is_meta


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
