"""Canaries: sound runs raise no alarm, broken ones do; epsilon, batches and records are what they were."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer, audit
from dpilot.audit import Canaries
from dpilot.clipping import Constant
from dpilot.errors import InvalidInput
from dpilot.records import RunRecord
from dpilot.tape import TapeEntry, tape
from dpilot.train.run import Run
from tests.tapes import Recorder

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def records(n: int = 60, width: int = 20) -> TensorDataset:
    x = torch.randn(n, width, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(
    canaries: Canaries | None, *, epsilon: float = 1.0, clipping: Any = "constant", seed: int | None = None,
    data: TensorDataset | None = None, **options: Any,
) -> Run:  # fmt: skip
    data = records() if data is None else data
    sampling = (
        {"batch_size": len(data)} if "sample_rate" not in options else {"sample_rate": options.pop("sample_rate")}
    )
    steps = options.pop("steps", 6)
    plan = Plan.calibrate(Budget(epsilon, 1e-5), size=len(data), steps=steps, clipping=clipping, **sampling)
    model = nn.Sequential(nn.Linear(data.tensors[0].shape[1], 60), nn.ReLU(), nn.Linear(60, 2))
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return Trainer(model, CROSS_ENTROPY, plan, lr=0.1, audit=canaries, test_seed=seed, **options).fit(data)


def test_a_sound_run_stays_below_its_epsilon_and_the_bound_grows_with_it() -> None:
    weak, strong = (train(Canaries(1000), epsilon=epsilon, seed=1) for epsilon in (1.0, 8.0))
    assert weak.audit().epsilon < weak.epsilon <= 1.0
    assert 1.0 < strong.audit().epsilon < strong.epsilon <= 8.0
    assert strong.audit().gaussian_epsilon > strong.audit().epsilon


class WithoutNoise(Recorder):
    """Releases the exact sums of a network."""

    def release(self, entry: TapeEntry, outputs: Any) -> Any:
        del outputs
        return [torch.from_numpy(value) for value in entry.inputs]


def test_no_noise_is_caught() -> None:
    with tape(WithoutNoise()):
        found = train(Canaries(1000), epsilon=4.0, seed=1)
    assert found.audit().epsilon > found.epsilon


def clip_nothing(self: Constant, norms: Tensor, state: Any) -> tuple[Tensor, Tensor]:
    """Every record at its full length."""
    del self, state
    return torch.ones_like(norms), norms.new_zeros(len(norms), 0)


def test_no_clipping_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constant, "clip", clip_nothing)
    found = train(Canaries(1000), epsilon=2.0, seed=1)
    assert found.audit().epsilon > found.epsilon


def test_clipping_after_the_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of a batch is clipped and multiplied back, as where a framework's own clipping is left in place."""
    from dpilot import private_sum

    sound = private_sum.clip_and_sum

    def clip_the_mean(gradients: Any, clip: Any, state: Any, *, add: Any = None) -> Any:
        raw = sound(gradients, partial(clip_nothing, None), state, add=add)
        if raw is None:
            return None
        length = torch.stack([part.norm() for part in raw[0].values()]).norm() / 500
        factor = min(1.0, float(state.bound) / float(length))
        return {name: part * factor for name, part in raw[0].items()}, raw[1]

    monkeypatch.setattr(private_sum, "clip_and_sum", clip_the_mean)
    found = train(Canaries(1000), epsilon=2.0, seed=1)
    assert found.audit().epsilon > found.epsilon


def test_records_as_canaries_are_trained_on_like_any_other_and_judged_by_their_loss(monkeypatch: Any) -> None:
    width = 20
    public = TensorDataset(3 * torch.randn(400, width), torch.randint(0, 2, (400,)))
    sound = train(Canaries(400, public), epsilon=1.0, seed=1, steps=10)
    assert sound.record.audit is not None
    assert sound.record.audit.kind == "record"
    assert sound.audit().epsilon < sound.epsilon
    monkeypatch.setattr(Constant, "clip", clip_nothing)
    with tape(WithoutNoise()):
        broken = train(Canaries(400, public), epsilon=1.0, seed=1, steps=100)
    assert broken.audit().epsilon > broken.epsilon  # learnt by heart


def test_epsilon_and_the_batches_of_the_records_are_those_of_a_run_without() -> None:
    with_canaries, without = (train(each, seed=3, sample_rate=0.5) for each in (Canaries(500), None))
    assert with_canaries.epsilon == without.epsilon
    assert with_canaries.record.plan == without.record.plan
    assert without.record.audit is None
    with pytest.raises(InvalidInput, match="no canaries"):
        without.audit()


@pytest.mark.parametrize("clipping", ["slack", "quantile", "bounded", "histogram-e", "auto-s", "psac", "one-shot"])
def test_canaries_pass_every_rule_like_a_record(clipping: str) -> None:
    found = train(Canaries(300), clipping=clipping, seed=2, sample_rate=0.5)
    assert found.audit().epsilon < found.epsilon


def test_layer_wise_rules_and_persons_take_canaries() -> None:
    from dpilot import clipping

    found = train(Canaries(300), clipping=clipping.get("quantile", groups=4), seed=2)
    assert found.audit().epsilon < found.epsilon
    by_person = train(Canaries(300), seed=2, units=[i // 2 for i in range(60)], rows_per_unit=2)
    assert by_person.audit().epsilon < by_person.epsilon


def test_coins_and_scores_are_kept_with_the_run(tmp_path: Any) -> None:
    found = train(Canaries(200), seed=1)
    read = RunRecord.from_json(found.record.to_json())
    assert read.audit == found.record.audit
    assert 60 < sum(read.audit.included) < 140
    found.save(tmp_path / "run")
    assert replace(found, record=read).audit() == found.audit()


def test_one_record_moves_nothing_but_the_sums_of_an_audited_run(replay: Any) -> None:
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    y = np.zeros(12, dtype=np.int64)

    def run(data: Any) -> Any:
        tensors = TensorDataset(torch.from_numpy(data[0]), torch.from_numpy(data[1]))
        plan = Plan.calibrate(Budget(1.0, 1e-5), size=12, batch_size=12, steps=2, clipping="slack")
        torch.manual_seed(0)
        done = Trainer(nn.Linear(3, 2), CROSS_ENTROPY, plan, lr=0.1, audit=Canaries(4)).fit(tensors)
        return done.record.audit, done.thresholds

    replay(run, (x, y), opaque=("*",))


def test_what_a_run_cannot_hold_is_refused_before_it_is_paid(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match=r"the model trains \d+ numbers: expected at most one canary"):
        train(Canaries(10_000))
    with pytest.raises(InvalidInput, match="audit and checkpoint"):
        train(Canaries(10), checkpoint=tmp_path / "run")
    with pytest.raises(InvalidInput, match="holds 60 records for 100 canaries"):
        Canaries(100, records())
    data = records()
    with pytest.raises(InvalidInput, match="the data set to train on"):
        train(Canaries(20, data), data=data)
    with pytest.raises(InvalidInput, match="loss cannot be computed"):
        train(Canaries(20, TensorDataset(torch.zeros(20, 7), torch.zeros(20, dtype=torch.long))))


@pytest.mark.slow
def test_two_hundred_sound_runs_raise_at_most_two_alarms() -> None:
    alarms = sum(found.audit().epsilon > found.epsilon for found in (train(Canaries(500)) for _ in range(200)))
    assert alarms <= 2


def test_lower_bounds_of_a_gaussian_hold_and_are_not_idle() -> None:
    """The worst case for canaries: one score each, mu apart, for many runs."""
    noise = np.random.default_rng(0)
    epsilon = audit.one_run.__globals__["gdp_epsilon"](1.0, 1e-5)
    bounds = []
    for _ in range(20):
        coins = noise.random(2000) < 0.5
        bounds.append(audit.one_run(noise.normal(size=2000) + coins, coins, delta=1e-5))
    assert max(each.gaussian_epsilon for each in bounds) < epsilon
    assert np.mean([each.gaussian_epsilon for each in bounds]) > 0.5 * epsilon
    assert np.mean([each.epsilon for each in bounds]) > 0.3 * epsilon
