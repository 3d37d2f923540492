"""Ways in which one record once changed more than its own term, or an output told of the trials: none does now."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot.tune import AutoClassifier, classifier

ODD = ["oops", 2.5, [1, 2], 10**400, b"x", None]


@pytest.fixture(scope="module")
def fitted():
    values = np.random.default_rng(0).normal(size=(200, 2))
    return AutoClassifier(epsilon=1.0, classes=[0, 1], size=200, epochs=2).fit(
        values, [int(v > 0) for v in values[:, 0]]
    )


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:9])
def test_an_odd_label_among_those_of_images_changes_no_other(odd, monkeypatch):
    images, seen = np.random.default_rng(0).random((30, 8, 8)), []
    labels = [place % 2 for place in range(29)]

    def flown(features, **options):
        seen.extend(features.labels.tolist())
        raise InterruptedError

    monkeypatch.setattr(classifier, "autopilot", flown)
    with pytest.raises(InterruptedError):
        AutoClassifier(classes=[0, 1], size=30).fit(images, [*labels, odd])
    assert seen == [*labels, -1]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:9])
def test_an_odd_label_changes_no_other_in_a_private_score(odd, fitted, monkeypatch):
    values, seen, made = np.zeros((11, 2)), [], classifier.noisy_counts
    labels = [place % 2 for place in range(10)]

    def counted(scored, *rest, **options):
        seen.extend(scored.target.tolist())
        return made(scored, *rest, **options)

    monkeypatch.setattr(classifier, "noisy_counts", counted)
    fitted.private_score(values, [*labels, odd], epsilon=1.0)
    assert seen[:10] == labels
    assert np.isnan(seen[10])
