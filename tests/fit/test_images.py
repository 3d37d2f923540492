"""Images through the one pipeline: health, null records, figures, resume, saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest

import dpilot
from dpilot import AutoClassifier, Ledger
from dpilot.audit.replay import replay
from dpilot.errors import InvalidInput
from dpilot.fit import pipeline
from dpilot.fit.images import ImageSource, Scatterer

QUICK = {"epsilon": 8.0, "classes": ["dark", "light"], "epochs": 5}


def pictures(count=60, seed=0):
    """Noise, half as bright where the class is "dark"."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    images = rng.random((count, 8, 8)) * (0.5 + labels[:, None, None] / 2)
    return images, np.array(["dark", "light"])[labels]


def test_an_image_that_cannot_be_read_and_a_label_of_no_class_are_null():
    images, _ = pictures(6)
    images[1] = np.nan
    source = ImageSource(images, np.array([0.0, 1.0, np.nan, 1.0, 0.0, 1.0]), 2)
    ((usable, flaws),) = source.inspect()
    assert usable.tolist() == [True, False, False, True, True, True]
    assert flaws.sum(axis=0).tolist() == [1.0, 1.0]
    records = source.read(Scatterer((8, 8), 2))
    assert np.isfinite(records.features).all(axis=1).tolist() == usable.tolist()
    assert np.isfinite(records.target).tolist() == usable.tolist()


def test_a_fit_of_images_is_checked_saved_and_loaded(tmp_path):
    images, labels = pictures(200)
    model = AutoClassifier(**QUICK, checkpoint=tmp_path / "run").fit(images, labels)
    assert model.health_.usable.value > 0.8
    assert model.privacy_.spent.epsilon <= 8.0
    back = dpilot.load(tmp_path / "run")
    assert np.array_equal(back.predict(images), model.predict(images))
    assert set(back.predict(images)) <= {"dark", "light"}
    with pytest.raises(InvalidInput, match="shape"):
        back.predict(images[:, :4, :4])


@pytest.mark.filterwarnings("ignore:random_state")
def test_an_interrupted_fit_of_images_goes_on_to_the_same_model_for_the_same_price(tmp_path, monkeypatch):
    images, labels = pictures(200)
    again = AutoClassifier(**QUICK, random_state=1, checkpoint=tmp_path / "run", ledger=tmp_path / "images.ledger")
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "softmax", lambda *_: pytest.fail("interrupted"))
        with pytest.raises(pytest.fail.Exception):
            again.fit(images, labels)
    spent = Ledger.read(tmp_path / "images.ledger").spent()
    again.fit(images, labels)
    assert Ledger.read(tmp_path / "images.ledger").spent() == spent
    fresh = AutoClassifier(**QUICK, random_state=1, ledger=tmp_path / "other.ledger").fit(images, labels)
    assert np.array_equal(again.coef_, fresh.coef_)


@pytest.mark.parametrize("odd", [np.full((8, 8), np.nan), np.full((8, 8), 0.7)], ids=["unreadable", "ordinary"])
def test_one_image_more_moves_only_what_is_released(odd):
    images, labels = pictures()

    def fit(data):
        model = AutoClassifier(**QUICK, size=60).fit(*data)
        return model.record_.metrics, model.coef_.tolist(), model.health_.to_dict()

    found = replay(fit, (images, labels), (np.concatenate([images, odd[None]]), np.append(labels, "dark")))
    assert found.differences == ()
    assert found.releases > 3
