"""Chains of keys go one way, and no two purposes or positions share a stream."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key, system_generator
from dpilot.tape import current, tape
from tests.distributions import largest_correlation


def test_streams_of_all_purposes_and_positions_differ():
    chain, streams = Chain(bytes(32)), []
    for _ in range(10):
        streams += [chain.generator(purpose).standard_normal(10_000) for purpose in ("noise", "sampling")]
        chain = chain.next()
    assert largest_correlation(streams) < 6


def test_a_stream_starts_over_when_asked_again():
    chain = Chain(bytes(32), position=4)
    assert np.array_equal(chain.generator("a").random(9), chain.generator("a").random(9))


def test_the_chain_never_returns_to_a_key():
    chain, seen = Chain(bytes(32)), set()
    for position in range(100):
        assert chain.position == position
        seen.add(chain.key)
        chain = chain.next()
    assert len(seen) == 100


def test_a_key_never_shows():
    chain = Chain(fresh_key("test"))
    assert chain.key.hex() not in repr(chain)
    assert repr(chain) == "Chain(position=0)"


def test_tokens_tell_keys_and_purposes_apart_and_give_nothing_away():
    one, other = Chain(bytes(32)), Chain(bytes(31) + b"1")
    assert one.token("a") == Chain(bytes(32)).token("a")
    assert len({one.token("a"), one.token("b"), other.token("a"), one.next().token("a")}) == 4
    digits = int.from_bytes(one.generator("a").bytes(16), "little")
    assert int(one.token("a"), 16) != digits % 2**64


@pytest.mark.parametrize("key", [b"short", "0" * 32, bytes(33), None])
def test_only_keys_of_full_length_are_taken(key):
    with pytest.raises(InvalidInput, match="32 bytes"):
        Chain(key)


def test_fresh_keys_and_system_streams_never_repeat():
    assert len({fresh_key("test") for _ in range(100)}) == 100
    assert len({float(system_generator().random()) for _ in range(100)}) == 100


class Frozen:
    def release(self, entry, outputs):
        raise AssertionError

    def key(self, purpose, fresh):
        return purpose.encode().ljust(32)


def test_a_tape_can_freeze_keys_and_stops_with_its_block():
    with tape(Frozen()):
        assert fresh_key("sampling") == b"sampling".ljust(32)
    assert current() is None
    assert fresh_key("sampling") != b"sampling".ljust(32)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_chain_cannot_be_copied(copier):
    with pytest.raises(InvalidInput, match="copied or pickled"):
        copier(Chain(fresh_key("test")))
