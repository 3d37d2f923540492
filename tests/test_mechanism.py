"""Nothing leaves but through a receipt, with the noise that was priced, whatever the values are."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpilot import mechanism
from dpilot.audit.replay import replay
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.mechanism import (
    choose,
    gaussian_event,
    release,
    release_sample,
    release_symmetric,
    seeded_noise,
    smat,
    svec,
)
from dpilot.privacy.events import ApproxDP, ExponentialMechanism, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.receipt import Receipt
from tests.distributions import REJECT, frequency_p_value, normal_p_value
from tests.tapes import Recorder

SIZE = 100_000


def paid(times=1):
    return Receipt(Repeated(Gaussian(2.0), times))


def released(vector, bound=0.5, noise_multiplier=2.0, **options):
    return release(vector, bound=bound, noise_multiplier=noise_multiplier, **{"receipt": paid(), **options})


class Spy:
    """Notes what the door does, in order."""

    stamp = "spy"

    def __init__(self):
        self.calls = []

    def draw(self, event):
        self.calls.append(("draw", event))

    def gaussian(self, values, *, bound, noise_multiplier):
        self.calls.append(("noise", bound, noise_multiplier))
        return [value * 0 for value in values]

    def choice(self, log_weights):
        self.calls.append(("choice", log_weights.tolist()))
        return 1


def test_the_receipt_is_drawn_before_noise_is_made_and_once():
    spy = Spy()
    released(np.ones(3), bound=0.5, noise_multiplier=2.0, receipt=spy, noise=spy)
    assert spy.calls == [("draw", Gaussian(2.0)), ("noise", 0.5, 2.0)]


def test_numbers_reach_the_noise_as_plain_floats():
    spy = Spy()
    released(np.ones(3), bound=np.float32(0.1), noise_multiplier=np.float32(2.0), receipt=spy, noise=spy)
    assert [type(number) for number in spy.calls[1][1:]] == [float, float]


def test_a_sampled_release_draws_the_sampled_event():
    spy = Spy()
    released(np.ones(3), receipt=spy, noise=spy, sample_rate=0.25)
    assert spy.calls[0] == ("draw", PoissonSampled(0.25, Gaussian(2.0)))
    assert gaussian_event(2.0, 1.0) == Gaussian(2.0)


def test_choosing_draws_its_own_kind_and_scales_by_twice_the_sensitivity():
    spy = Spy()
    assert choose(np.array([1.0, 3.0]), sensitivity=0.5, epsilon=0.2, receipt=spy, noise=spy) == 1
    assert spy.calls == [("draw", ExponentialMechanism(0.2)), ("choice", pytest.approx([0.2, 0.6]))]


def test_a_mechanism_of_its_own_is_paid_before_it_draws_from_the_noise_it_is_handed():
    spy, event, probes = Spy(), ApproxDP(1.0, 1e-5), pytest.fail  # nobody listens: no probe is computed
    sample = lambda noise: noise.choice(np.zeros(2))  # noqa: E731
    assert release_sample(sample, probes=probes, sensitivity=1.0, event=event, receipt=spy, noise=spy) == 1
    assert spy.calls == [("draw", event), ("choice", [0.0, 0.0])]


def test_a_mechanism_of_its_own_that_is_not_paid_does_not_run():
    with pytest.raises(BudgetExceeded):
        release_sample(pytest.fail, probes=pytest.fail, sensitivity=1.0, event=ApproxDP(1.0, 1e-5), receipt=paid())


@pytest.mark.parametrize("sensitivity", [0.5, 4.0])
def test_a_probe_of_a_mechanism_of_its_own_may_move_by_its_sensitivity(sensitivity):
    def run(values, event=ApproxDP(1.0, 1e-5)):  # noqa: B008
        options = {"sensitivity": sensitivity, "event": event, "receipt": Receipt(event), "noise": seeded_noise(0)}
        return release_sample(lambda noise: 0.0, probes=lambda: np.array([values.sum()]), **options)

    for move in (sensitivity, 1.1 * sensitivity):
        found = replay(run, np.ones(3), np.array([1.0, 1.0, 1.0, move]))
        assert found.largest == pytest.approx(move / sensitivity)
        assert (found.differences == ()) == (move <= sensitivity)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: released(np.ones(2), noise_multiplier=1.9),
        lambda: released(np.ones(2), sample_rate=0.5),
        lambda: released(np.ones(2), receipt=Receipt(PoissonSampled(0.5, Gaussian(2.0)))),
        lambda: choose(np.ones(2), sensitivity=1.0, epsilon=1.0, receipt=paid()),
        lambda: release_symmetric(np.stack([np.eye(2)] * 2), bound=1.0, noise_multiplier=1.0, receipt=paid()),
    ],
)
def test_what_was_not_reserved_is_not_released(wrong):
    with pytest.raises(BudgetExceeded):
        wrong()


def test_a_receipt_admits_as_many_releases_as_it_paid():
    receipt = paid(3)
    for _ in range(3):
        released(np.ones(1), receipt=receipt)
    with pytest.raises(BudgetExceeded):
        released(np.ones(1), receipt=receipt)


@pytest.mark.parametrize("make", [np.zeros, lambda n: np.zeros(n, np.float32), torch.zeros], ids=["64", "32", "torch"])
def test_released_noise_has_the_scale_that_was_priced(make):
    noisy = released(make(SIZE))
    assert normal_p_value(noisy, 1.0) > REJECT
    assert all(normal_p_value(noisy, scale) < REJECT for scale in (0.9, 1.1))


def test_default_noise_is_fresh_every_time():
    assert not np.array_equal(released(np.zeros(9)), released(np.zeros(9)))


def test_a_tree_is_one_joint_vector_with_one_receipt():
    tree = {"weight": torch.zeros(200, 100), "extras": [np.zeros(30_000), 0.0], "pair": (np.zeros(()), torch.zeros(()))}
    noisy = released(tree, receipt=paid(1))
    assert list(noisy) == ["weight", "extras", "pair"]
    assert noisy["weight"].shape == (200, 100)
    assert isinstance(noisy["extras"], list)
    assert isinstance(noisy["extras"][1], float)
    assert isinstance(noisy["pair"], tuple)
    assert normal_p_value(noisy["weight"], 1.0) > REJECT
    assert normal_p_value(noisy["extras"][0], 1.0) > REJECT
    assert 0 not in (noisy["extras"][1], float(noisy["pair"][0]), float(noisy["pair"][1]))


def test_a_tensor_in_a_graph_is_released_outside_of_it():
    weight = torch.ones(3, requires_grad=True)
    assert not released(weight * 2).requires_grad


UNFIT = {
    "half": np.zeros(2, np.float16),
    "torch half": torch.zeros(2, dtype=torch.float16),
    "bfloat": torch.zeros(2, dtype=torch.bfloat16),
    "integers": np.zeros(2, int),
    "python int": 3,
    "complex": np.zeros(2, complex),
    "list of ints": [1, 2],
    "text": "vector",
    "empty tree": {},
    "nothing": None,
    "nested half": {"a": [np.zeros(2), torch.zeros(2, dtype=torch.bfloat16)]},
}


@pytest.mark.parametrize("vector", UNFIT.values(), ids=UNFIT)
def test_what_cannot_hold_the_noise_is_refused_before_it_is_paid(vector):
    receipt = paid()
    with pytest.raises(InvalidInput):
        released(vector, receipt=receipt)
    released(np.zeros(1), receipt=receipt)  # the receipt is still whole


@pytest.mark.parametrize(
    "options",
    [
        {"bound": 0.0},
        {"bound": -1.0},
        {"bound": float("nan")},
        {"bound": float("inf")},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": -2.0},
        {"sample_rate": 0.0},
        {"sample_rate": 1.5},
        {"bound": 1e-30, "noise_multiplier": 1e-30},
        {"bound": 1e30, "noise_multiplier": 1e30},
        {"bound": 1e-300, "noise_multiplier": 1e-300},
    ],
)
def test_numbers_that_mean_no_noise_are_refused_before_they_are_paid(options):
    spy = Spy()
    with pytest.raises(InvalidInput):
        released(np.zeros(2, np.float32), receipt=spy, **options)
    assert spy.calls == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 0.0])
def test_values_never_raise_nor_warn(value):
    for vector in (np.array([value]), torch.tensor([value])):
        assert released(vector).shape == (1,)


def test_the_input_is_not_written_to():
    exact, tensor = np.arange(3.0), torch.arange(3.0)
    released([exact, tensor])
    assert exact.tolist() == tensor.tolist() == [0, 1, 2]


SYMMETRIC = arrays(np.float64, (4, 4), elements=st.floats(-1e3, 1e3)).map(lambda m: m + m.T)


@given(SYMMETRIC)
def test_svec_hardly_shortens_the_frobenius_norm_and_never_lengthens_it_and_smat_undoes_it(matrix):
    whole = np.linalg.norm(matrix)
    assert 0.9998 * whole <= np.linalg.norm(svec(matrix)) <= whole * (1 + 1e-15)
    assert smat(svec(matrix)) == pytest.approx(matrix)


def test_a_symmetric_release_is_symmetric_with_smaller_noise_off_the_diagonal():
    size = 400
    noisy = release_symmetric(np.zeros((2, size, size)), bound=0.5, noise_multiplier=2.0, receipt=paid())
    assert np.array_equal(noisy, noisy.T)
    assert normal_p_value(noisy[np.triu_indices(size, 1)], np.sqrt(0.5)) > REJECT
    assert normal_p_value(np.diag(noisy), 1.0) > REJECT


@pytest.mark.parametrize("shape", [(2,), (2, 3), ()])
def test_only_square_matrices_have_an_svec(shape):
    with pytest.raises(InvalidInput, match="square"):
        svec(np.zeros(shape))


@pytest.mark.parametrize("shape", [(2,), (4,), (1, 3)])
def test_only_triangular_lengths_have_an_smat(shape):
    with pytest.raises(InvalidInput, match="upper entry"):
        smat(np.zeros(shape))


def test_choices_follow_the_exponential_mechanism():
    scores, epsilon, sensitivity, draws = np.array([0.0, 1.0, 2.0]), 1.5, 0.75, 20_000
    receipt, noise = Receipt(Repeated(ExponentialMechanism(epsilon), draws)), seeded_noise(0)
    picks = [
        choose(scores, sensitivity=sensitivity, epsilon=epsilon, receipt=receipt, noise=noise) for _ in range(draws)
    ]
    weights = np.exp(epsilon * scores / (2 * sensitivity))
    counts = np.bincount(picks, minlength=3)
    assert frequency_p_value(counts, weights / weights.sum()) > REJECT
    assert frequency_p_value(counts, weights**1.15 / (weights**1.15).sum()) < REJECT


@pytest.mark.parametrize("scores", [np.zeros(0), np.zeros((2, 2)), np.zeros(2, np.float32), [1.0, 2.0]])
def test_only_a_vector_of_scores_can_be_chosen_from(scores):
    spy = Spy()
    with pytest.raises(InvalidInput, match="scores"):
        choose(scores, sensitivity=1.0, epsilon=1.0, receipt=spy)
    assert spy.calls == []


def test_a_tape_hears_each_release_in_full():
    recorder, exact = Recorder(), np.array([1.0, 2.0])
    with mechanism.tape(recorder):
        released({"a": exact, "b": torch.ones(1)}, sample_rate=1.0, noise=seeded_noise(0))
        choose(exact, sensitivity=3.0, epsilon=1.0, receipt=Receipt(ExponentialMechanism(1.0)))
    released(exact)
    first, second = recorder.entries
    exact[:] = 9  # what was heard is a copy
    assert (first.kind, first.bound, first.event) == ("gaussian", 0.5, Gaussian(2.0))
    assert [values.tolist() for values in first.inputs] == [[1, 2], [1]]
    assert first.forms == ("vector['a']: ndarray float64 (2,)", "vector['b']: Tensor torch.float32 (1,)")
    assert first.stamp == "test noise (seed 0): not private"
    assert (second.kind, second.bound, second.event) == ("choice", 3.0, ExponentialMechanism(1.0))


def test_the_door_for_numpy_does_not_load_torch():
    script = (
        "import sys, numpy as np\n"
        "from dpilot import mechanism, sampling, statistics\n"
        "from dpilot.privacy.events import Gaussian\n"
        "from dpilot.privacy.receipt import Receipt\n"
        "mechanism.release(np.zeros(2), bound=1.0, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))\n"
        "sampling.check_source([1, 2])\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


class Own(np.ndarray):
    """An array that would not take the noise."""

    def __add__(self, other: object) -> np.ndarray:
        return np.asarray(self)

    __radd__ = __add__


@pytest.mark.parametrize(
    "vector",
    [
        np.ma.array([5.0, 6.0, 7.0], mask=[1, 0, 1]),
        np.array([5.0, 6.0]).view(Own),
        torch.ones(3).to_sparse(),
        torch.nn.Buffer(torch.ones(3)).as_subclass(type("Sub", (torch.Tensor,), {})),
    ],
    ids=["masked", "subclass", "sparse", "tensor subclass"],
)
def test_only_plain_arrays_are_released(vector: object) -> None:
    receipt = Receipt(Gaussian(100.0))
    with pytest.raises(InvalidInput, match="plain numpy arrays"):
        release(vector, bound=1.0, noise_multiplier=100.0, receipt=receipt)
    receipt.draw(Gaussian(100.0))  # nothing was drawn
