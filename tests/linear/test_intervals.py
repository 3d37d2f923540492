"""Standard errors: both kinds of noise are in them, and only what the steps found has any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpilot.linear.descent import Descent
from dpilot.linear.gram_matrix import Gram
from dpilot.linear.solution import Solution, standard_errors


def solution(risk: float = 0.5, noise: float = 0.1, moments_noise: float = 1e-3) -> Solution:
    """Two coefficients 0, whitened already, with a given noisy risk."""
    moments = np.diag([1.0, 1.0, risk])
    gram = Gram(moments, moments_noise, 1.0)
    descent = Descent(np.zeros((2, 1)), noise, (1.0,))
    return Solution(np.zeros(2), gram, noise, np.diag([1.0, 2.0]), descent)


def test_privacy_noise_and_sampling_noise_add_by_squares():
    found = standard_errors(solution(), 100.0)
    assert found == pytest.approx(np.array([1.0, 2.0]) * np.sqrt(0.1**2 + 1.35 * 0.5 / 100))


def test_more_privacy_noise_is_in_the_error():
    assert (standard_errors(solution(noise=0.3), 100.0) > standard_errors(solution(noise=0.1), 100.0)).all()


def test_fewer_records_have_larger_errors():
    assert (standard_errors(solution(), 50.0) > standard_errors(solution(), 100.0)).all()


@pytest.mark.parametrize("risk", [-1.0, 0.0, 1e-9])
def test_a_risk_that_noise_took_below_its_own_noise_is_raised_to_it(risk):
    found = standard_errors(solution(risk, moments_noise=0.2), 100.0)
    assert found == pytest.approx(standard_errors(solution(0.2, moments_noise=0.2), 100.0))


@pytest.mark.parametrize("choice", ["moments", "centre"])
def test_what_the_steps_did_not_find_has_none(choice):
    assert standard_errors(replace(solution(), choice="steps"), 100.0) is not None
    assert standard_errors(replace(solution(), choice=choice), 100.0) is None
    assert standard_errors(replace(solution(), descent=None), 100.0) is None
