"""Complex parameters: a run on them is the run on their real and imaginary parts, at the same noise and price."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpilot
from dpilot import Trainer, clipping
from dpilot.errors import InvalidInput
from dpilot.mechanism import release
from dpilot.numerics.grid import Grid
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.train.canaries import GradientCanaries
from dpilot.train.step import StepContext, initial_state, private_step
from tests.thin import thin
from tests.train.helpers import LOSS, STEPS, WIDTH, data, fit, plan, same

SPECTRUM = WIDTH // 2 + 1
PUBLIC = {"noise_multiplier": 1.0, "expected_batch_size": 8, "dimension": 10}


class Spectral(nn.Module):
    """A filter on the frequencies of its inputs, as one complex parameter, or as its real view."""

    def __init__(self, dtype: torch.dtype = torch.complex64, *, real: bool = False) -> None:
        super().__init__()
        drawn = torch.from_numpy(np.random.default_rng(0).normal(size=(SPECTRUM, 2)))
        start = torch.view_as_complex(drawn).to(dtype)
        self.weight = nn.Parameter(torch.view_as_real(start).clone() if real else start)
        self.head = nn.Linear(WIDTH, 2, dtype=torch.float64 if dtype == torch.complex128 else torch.float32)
        nn.init.zeros_(self.head.bias)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        return self.head(torch.fft.irfft(torch.fft.rfft(x.to(self.head.weight.dtype)) * weight, n=WIDTH))


class PairOfSums:
    """What an engine gives for one record of a given complex gradient."""

    def __init__(self, gradient: Tensor) -> None:
        self.gradient = gradient
        self.norms = torch.view_as_real(gradient).norm().reshape(1)

    def weighted_sum(
        self, weights: Tensor, groups: object = None, names: object = None, grid: object = None
    ) -> dict[str, Tensor]:
        return {"weight": (self.gradient.conj() * weights[0]).conj()}  # lazily conjugated, as torch may give it


class Silent:
    """Adds no noise and notes what it was given."""

    stamp = "none"

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def gaussian(self, values, *, bound, noise_multiplier):
        self.given = list(values)
        return list(values)


class OneWeight(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_step_releases_real_and_imaginary_parts_and_moves_along_the_complex_mean(dtype, chunks):
    model, noise = OneWeight(dtype), Silent()
    gradient = torch.tensor([3 + 4j, 0, 0], dtype=dtype)
    chosen = plan(clipping.get("constant", threshold=1.0))
    made = StepContext(
        plan=chosen,
        model=model,
        per_sample=lambda chunk: PairOfSums(gradient),
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        noise=noise,
        receipt=Receipt(chosen.event),
    )
    private_step(made, initial_state(chosen, model), ["records"] * chunks)
    assert noise.given[0].shape == (3, 2)
    assert noise.given[0].dtype == (torch.float32 if dtype == torch.complex64 else torch.float64)
    expected = -chunks * gradient / 5 / chosen.expected_batch_size
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-5, atol=1e-9)


def test_a_complex_parameter_counts_two_numbers():
    dimensions = []

    class Watching:
        def init(self, **numbers):
            dimensions.append(numbers["dimension"])

    chosen = plan()
    object.__setattr__(chosen, "clipping", Watching())
    for model in (Spectral(), Spectral(real=True)):
        initial_state(chosen, model)
    assert dimensions == [2 * SPECTRUM + 2 * WIDTH + 2] * 2


@pytest.mark.parametrize("dtype", thin([torch.complex64, torch.complex128], 2))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "momentum", "free_step": True},
        {"optimizer": "adam", "lr": 0.05, "average": "ema"},
        {"optimizer": "adamw", "lr": 0.05, "average": "swa"},
    ],
    ids=["sgd", "momentum", "adam", "adamw"],
)
def test_a_run_is_that_of_the_real_view(dtype, options):
    rule = clipping.get("constant", threshold=0.5)
    runs = [fit(net=Spectral(dtype, real=real), plan=plan(rule), **options) for real in (False, True)]
    found, expected = (run.model.weight.detach() for run in runs)
    assert found.dtype == dtype
    torch.testing.assert_close(torch.view_as_real(found), expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found, Spectral(dtype).weight.detach())
    assert runs[0].epsilon == runs[1].epsilon


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_run_is_stored_resumed_saved_and_loaded(dtype, tmp_path):
    """Stopped after a step, it goes on to the same numbers; momentum and averages are complex too."""
    options = {"optimizer": "momentum", "average": "ema", "lr": 0.5, "chunk_size": 16, "test_seed": 7}
    whole = Trainer(Spectral(dtype), LOSS, plan(), **options).fit(data())

    def stop(record):
        if record.step == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    stopped = Trainer(Spectral(dtype), LOSS, plan(), checkpoint=folder, checkpoint_every=1, callback=stop, **options)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(data())
    resumed = Trainer.resume(folder, Spectral(dtype), LOSS, data())
    assert len(resumed.record.steps) == STEPS
    assert same(resumed.model, whole.model)
    whole.save(tmp_path / "saved")
    for saved in (folder, tmp_path / "saved"):
        loaded = dpilot.load(saved, model=Spectral(dtype))
        assert same(loaded.model, whole.model)
        assert loaded.model.weight.dtype == dtype


def test_the_door_itself_takes_real_numbers_only():
    with pytest.raises(InvalidInput, match="view_as_real"):
        release(torch.zeros(2, dtype=torch.complex64), bound=1.0, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))


def test_canaries_on_complex_parameters_lie_on_a_grid_of_both_parts():
    parameters = dict(Spectral().named_parameters())
    planted = GradientCanaries.draw(parameters, np.ones(8, dtype=bool), strength=10.0)
    (found,) = planted.gradients(np.arange(8), clipping.Constant(1.0).init(**PUBLIC))
    weights = torch.full((8,), 0.1)
    rounded, sums = found.weighted_sum(weights, grid=Grid(2.0**-20, 1.0)), found.weighted_sum(weights)
    assert rounded["weight"].dtype == torch.complex128
    for name, each in sums.items():
        torch.testing.assert_close(rounded[name].to(each.dtype), each, rtol=0, atol=2.0**-20)
