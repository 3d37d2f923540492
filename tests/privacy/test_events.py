"""Events: values that survive a file, and nothing else does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.errors import InvalidInput
from dpilot.privacy import events
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    ExponentialMechanism,
    Gaussian,
    OneOf,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
)

positive = st.floats(1e-6, 1e6)
simple = st.one_of(
    positive.map(Gaussian),
    positive.map(PureDP),
    positive.map(ExponentialMechanism),
    st.builds(ApproxDP, positive, st.floats(1e-12, 0.999)),
)
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(PoissonSampled, st.floats(1e-9, 1.0), inner),
        st.builds(Repeated, inner, st.integers(1, 10**9)),
        st.lists(inner, max_size=3).map(Composed),
        st.lists(inner, min_size=1, max_size=3).map(OneOf),
        st.builds(RepeatAndSelect, inner, st.floats(1.01, 1e3), st.sampled_from(events.LAWS), st.floats(-0.9, 5)),
    ),
    max_leaves=6,
)


@given(nested)
def test_json_round_trip_is_exact(event: events.Event) -> None:
    text = events.to_json(event)
    assert events.from_json(text) == event
    assert events.to_json(events.from_json(text)) == text
    assert "\n" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"type":"os.system","command":"true"}',
        '{"type":"dpilot.errors.DpilotError"}',
        '{"type":["Gaussian"],"noise_multiplier":1.0}',
        '{"type":"Gaussian"}',
        '{"type":"Gaussian","noise_multiplier":1.0,"extra":1}',
        '{"type":"Gaussian","noise_multiplier":"1.0"}',
        '{"type":"Gaussian","noise_multiplier":true}',
        '{"type":"Gaussian","noise_multiplier":-1}',
        '{"type":"Gaussian","noise_multiplier":NaN}',
        '{"type":"Composed","events":{"type":"Gaussian","noise_multiplier":1.0}}',
        '{"type":"Repeated","times":0,"event":{"type":"Gaussian","noise_multiplier":1.0}}',
        '{"type":"Repeated","times":2,"event":{"type":"Unknown"}}',
        '{"type":"PoissonSampled","rate":0,"event":{"type":"Gaussian","noise_multiplier":1.0}}',
    ],
)
def test_only_the_vocabulary_loads(text: str) -> None:
    with pytest.raises(InvalidInput):
        events.from_json(text)


def test_the_vocabulary_never_changes_its_meaning() -> None:
    """Golden lines: a ledger written by the first release must read the same for ever."""
    golden = {
        '{"noise_multiplier":1.5,"type":"Gaussian"}': Gaussian(1.5),
        '{"event":{"noise_multiplier":1.0,"type":"Gaussian"},"rate":0.01,"type":"PoissonSampled"}': PoissonSampled(
            0.01, Gaussian(1.0)
        ),
        '{"event":{"epsilon":0.5,"type":"PureDP"},"times":3,"type":"Repeated"}': Repeated(PureDP(0.5), 3),
        '{"events":[],"type":"Composed"}': events.nothing(),
        '{"events":[{"epsilon":0.5,"type":"ExponentialMechanism"}],"type":"OneOf"}': OneOf([ExponentialMechanism(0.5)]),
        '{"delta":1e-06,"epsilon":0.5,"type":"ApproxDP"}': ApproxDP(0.5, 1e-6),
        '{"event":{"noise_multiplier":9.0,"type":"Gaussian"},"law":"tnb","mean_trials":10.0,"shape":0.0,'
        '"type":"RepeatAndSelect"}': RepeatAndSelect(Gaussian(9.0), 10),
    }
    for text, event in golden.items():
        assert events.to_json(event) == text
        assert events.from_json(text) == event
    told = set(re.findall(r'"type":"(\w+)"', " ".join(golden)))
    assert told == set(events._ALLOWED)


def test_leaves_multiply_counts() -> None:
    event = Repeated(Composed([Gaussian(1.0), Repeated(PureDP(0.1), 3)]), 5)
    assert list(events.leaves(event)) == [(Gaussian(1.0), 5), (PureDP(0.1), 15)]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gaussian(0), "noise_multiplier"),
        (lambda: Gaussian(float("inf")), "noise_multiplier"),
        (lambda: PoissonSampled(1.5, Gaussian(1)), "rate"),
        (lambda: Repeated(Gaussian(1), 0), "times"),
        (lambda: Repeated(Gaussian(1), 1.5), "times"),
        (lambda: PureDP(0), "epsilon"),
        (lambda: ApproxDP(1, 1), "delta"),
        (lambda: OneOf([]), "events"),
        (lambda: Composed(["Gaussian"]), "event"),
        (lambda: RepeatAndSelect(Gaussian(1), 1.0), "mean_trials"),
        (lambda: RepeatAndSelect(Gaussian(1), 5, "geometric"), "law"),
        (lambda: RepeatAndSelect(Gaussian(1), 5, shape=-1), "shape"),
    ],
)
def test_nonsense_is_refused(make: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        make()  # type: ignore[operator]
