"""Looks at public records: the numbers are those of the gradients themselves, and everything says "not private"."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Ledger, Plan, Trainer, diagnose
from dpilot.errors import InvalidInput
from dpilot.report.promise import alarms

LOSS = nn.CrossEntropyLoss(reduction="none")
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(90, 5, generator=GENERATOR) * torch.logspace(-1, 1, 90)[:, None]
LABELS = torch.arange(90) % 3
DATA = TensorDataset(INPUTS, LABELS)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))


def rows(model):
    """Every gradient, one record at a time, in float64."""
    model = model.double().eval()
    found = []
    for x, y in zip(INPUTS.double(), LABELS, strict=True):
        parts = torch.autograd.grad(LOSS(model(x[None]), y[None]).sum(), list(model.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    model.float().train()
    return torch.stack(found)


def least_error(g, sigma, batch):
    """The minimiser of Eq. 5 by its quadratic on each interval between two norms, from the Gram matrix."""
    n, order = g.norm(dim=1).sort(descending=True)
    u = g[order] / n[:, None]
    gram = u @ u.T
    nn_, ng, gg = (
        torch.cumsum(torch.cumsum(m, 0), 1).diagonal() / len(g) ** 2
        for m in (gram, gram * n[None, :], gram * n[None, :] * n[:, None])
    )
    s = sigma**2 * g.shape[1] / batch**2
    low = torch.cat([n[1:], n.new_zeros(1)])
    c = torch.minimum(torch.maximum(ng / (nn_ + s), low), n)
    error = c * c * s + gg - 2 * c * ng + c * c * nn_
    return float(c[error.argmin()]), float(error.min())


@pytest.mark.parametrize("sigma", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("batch", [None, 40.0])
def test_figures_are_those_of_the_gradients(sigma, batch):
    model = network()
    g = rows(model)
    look = diagnose.gradients(model, LOSS, DATA, noise_multiplier=sigma, batch_size=batch, public=True)
    n = g.norm(dim=1)
    assert look.norms == pytest.approx(n.numpy(), rel=1e-4)
    assert look.length == pytest.approx(float(g.mean(0).norm()), rel=1e-4)
    best, least = least_error(g, sigma, batch or 90)
    assert look.at(look.optimum)["error"] == pytest.approx(least, rel=1e-3)
    assert look.optimum == pytest.approx(best, rel=0.02)
    for row in look.frame().iloc[::5].itertuples():
        kept = torch.clamp(row.threshold / n, max=1.0)
        clipped = kept[:, None] * g
        assert row.bias == pytest.approx(float((g - clipped).mean(0).norm()), abs=1e-5 * float(n.max()))
        assert row.noise == pytest.approx(sigma * row.threshold * g.shape[1] ** 0.5 / (batch or 90))
        assert row.cosine == pytest.approx(float(torch.cosine_similarity(clipped.mean(0), g.mean(0), dim=0)), abs=1e-4)
        assert row.clipped == pytest.approx(float((n > row.threshold).double().mean()), abs=0.02)
        for each in range(3):
            mine = float(kept[each == LABELS].mean())
            assert getattr(row, f"retained_{each}") == pytest.approx(mine, rel=1e-4)


def test_layers_are_the_parts_of_the_norm():
    look = diagnose.gradients(network(), LOSS, DATA, noise_multiplier=1.0, public=True)
    frame = look.norms_frame()
    assert list(frame.columns) == ["class", "norm", "0", "3"]
    assert np.hypot(frame["0"], frame["3"]).to_numpy() == pytest.approx(frame["norm"].to_numpy(), rel=1e-4)


def test_thresholds_can_be_named_and_records_be_few():
    look = diagnose.gradients(network(), LOSS, DATA, noise_multiplier=1.0, public=True, thresholds=[0.123], most=20)
    assert look.at(0.123)["threshold"] == 0.123
    assert len(look.norms) == 20 == look.batch_size
    quiet = diagnose.gradients(network(), LOSS, DATA, noise_multiplier=0.0, public=True)
    assert quiet.at(quiet.optimum)["bias"] == 0.0


def test_other_targets_and_losses_have_no_classes(tmp_path):
    loss = lambda model, batch: (model(batch["x"])[:, 0] - batch["y"]) ** 2  # noqa: E731
    data = [{"x": x, "y": x.sum()} for x in INPUTS]
    look = diagnose.gradients(network(), loss, data, noise_multiplier=1.0, public=True, per_batch=True)
    assert look.classes is None
    assert not look.frame().columns.str.startswith("retained_").any()
    assert look.plot(tmp_path / "look.svg").stat().st_size > 1000


@pytest.mark.parametrize("said", [False, None, "yes", 1])
def test_public_must_be_said(said):
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=90, batch_size=30, steps=2, clipping="constant")
    for look in (
        lambda: diagnose.gradients(network(), LOSS, DATA, noise_multiplier=1.0, public=said),
        lambda: diagnose.run(network(), LOSS, plan, DATA, public=said),
        lambda: diagnose.heat_map(lambda a, b: 0.0, a=[1], b=[1], public=said),
    ):
        with pytest.raises(InvalidInput, match="public=True"):
            look()


def test_a_run_that_is_looked_into_is_stamped_everywhere_and_ends_as_without(tmp_path):
    plans = [Plan.calibrate(Budget(20.0, 1e-5), size=90, batch_size=30, steps=6, clipping="slack") for _ in range(2)]
    options = {"lr": 0.3, "test_seed": 5, "chunk_size": 16}
    book = Ledger.open(tmp_path / "ledger", dataset="public", budget=Budget(30.0, 1e-4))
    heard = []
    found = diagnose.run(
        network(), LOSS, plans[0], DATA, public=True, every=4, ledger=book, callback=heard.append, **options
    )
    plain = Trainer(network(), LOSS, plans[1], **options).fit(DATA)
    assert found.run.record.steps == plain.record.steps == tuple(heard)
    assert all(torch.equal(a, b) for a, b in zip(found.run.model.parameters(), plain.model.parameters(), strict=True))
    assert found.taken == (0, 4, 6)
    assert diagnose.NOT_PRIVATE in alarms(found.run.record.stamps)
    assert "not private" in book.entries()[0].purpose
    found.run.save(tmp_path / "run")
    assert "not private: exact values" in (tmp_path / "run" / "record.json").read_text()
    frame = found.frame()
    assert (frame["least_error"] <= frame["error"] * (1 + 1e-9)).all()
    assert frame["threshold"].tolist() == [found.run.thresholds[place] for place in (0, 3, 5)]
    assert frame.attrs["stamp"] == found.looks[0].frame().attrs["stamp"] == diagnose.NOT_PRIVATE
    for drawn in (found.plot(tmp_path / "run.svg"), found.looks[0].plot(tmp_path / "look.svg")):
        assert "not private: exact values" in drawn.read_text()
    with pytest.raises(InvalidInput, match="save the run"):
        diagnose.run(network(), LOSS, plans[1], DATA, public=True, checkpoint=tmp_path / "other")


def test_a_heat_map_has_a_cell_for_each_pair(tmp_path):
    seen = []

    def measure(threshold, batch_size, seed):
        seen.append((threshold, batch_size, seed))
        return threshold * batch_size + seed

    made = diagnose.heat_map(measure, public=True, repeats=2, threshold=[0.1, 1.0, 10.0], batch_size=[64, 256])
    assert len(set(seen)) == 12
    assert made.frame().loc[1.0, 256] == 256.5
    assert (made.spread == 0.5).all()
    assert made.best == {"threshold": 10.0, "batch_size": 256}
    assert "not private" in made.plot(tmp_path / "map.svg", title="a map").read_text()
    with pytest.raises(InvalidInput, match="expected two"):
        diagnose.heat_map(measure, public=True, threshold=[1.0])
