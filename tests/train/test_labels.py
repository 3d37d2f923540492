"""A label outside the classes on a GPU: the loss that says so, tried on the CPU, where the kernel would only raise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpilot import engine
from dpilot.train import job
from dpilot.train.gradients import null_outside_classes
from tests.train.helpers import LOSS, data, fit, same

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def test_nothing_changes_on_the_cpu_nor_for_other_losses():
    assert null_outside_classes(LOSS, CPU) is LOSS
    for own in (nn.MSELoss(reduction="none"), nn.functional.cross_entropy, lambda out, y: out[:, 0]):
        assert null_outside_classes(own, GPU) is own


@pytest.mark.parametrize("name", ["single-backward", "vmap", "loop"])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 0.5])], ids=["plain", "weighted"])
def test_a_record_of_no_class_is_null_and_the_others_are_as_beside_a_class(name, weight):
    loss = nn.CrossEntropyLoss(weight=weight, reduction="none", label_smoothing=0.1)
    net, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.tensor([0, 7, 2, -1, 1, -100])
    kept = torch.tensor([True, False, True, False, True, True])
    made = engine.per_sample(net, null_outside_classes(loss, GPU), (x, y), name)
    valid = engine.per_sample(net, loss, (x, y.where(kept, 0)), name)
    assert torch.isfinite(made.norms).tolist() == kept.tolist()
    torch.testing.assert_close(made.norms[kept], valid.norms[kept])
    ours, theirs = made.weighted_sum(torch.ones(6)), valid.weighted_sum(kept.float())
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key])


@pytest.mark.parametrize("labels", [[5], [-1, 3, 99]])
def test_records_of_no_class_alone_add_zeros(labels):
    y = torch.tensor(labels)
    made = engine.per_sample(nn.Linear(4, 3), null_outside_classes(LOSS, GPU), (torch.randn(len(y), 4), y))
    assert not torch.isfinite(made.norms).any()
    assert all(not total.any() for total in made.weighted_sum(torch.ones(len(y))).values())


@pytest.mark.parametrize("ignored", [-100, 2, 255, -1])
def test_what_the_loss_ignores_is_taken(ignored):
    plain = nn.CrossEntropyLoss(reduction="none", ignore_index=ignored)
    safe, out = null_outside_classes(plain, GPU), torch.randn(3, 3)
    y = torch.tensor([0, ignored, 1])
    assert torch.equal(safe(out, y), plain(out, y))
    assert torch.isnan(safe(out, torch.tensor([0, 4, -7]))).tolist() == [False, True, True]


def test_bytes_are_labels_and_none_is_taken_for_what_is_ignored():
    safe, y = null_outside_classes(LOSS, GPU), torch.tensor([0, 2, 156], dtype=torch.uint8)  # 156 is -100 of a byte
    assert torch.isnan(safe(torch.randn(3, 3), y)).tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_a_model_with_that_loss_is_found_to_keep_samples_apart(dtype):
    y = torch.tensor([0, 2, 9, 1]).to(dtype)
    made = engine.per_sample(nn.Linear(4, 3), null_outside_classes(LOSS, GPU), (torch.randn(4, 4), y))
    assert made.engine == "single-backward"
    assert torch.isfinite(made.norms).tolist() == [True, True, False, True]


def test_probabilities_and_images_go_to_the_loss_as_they_are():
    safe, out = null_outside_classes(LOSS, GPU), torch.randn(2, 3)
    shares = out.softmax(1)
    assert torch.equal(safe(out, shares), LOSS(out, shares))
    picture, y = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    assert torch.equal(safe(picture, y), LOSS(picture, y))


def test_a_run_on_a_device_takes_that_loss_and_is_the_same_run(monkeypatch):
    asked = []

    def on_a_gpu(loss_fn, device):
        asked.append(device)
        return null_outside_classes(loss_fn, GPU)

    plain = fit()
    monkeypatch.setattr(job, "null_outside_classes", on_a_gpu)
    found = fit()
    assert asked
    assert same(found.model, plain.model)
    bad = data()
    bad.tensors[1][[3, 17]] = torch.tensor([-1, 7])
    absent = data()
    absent.tensors[0][[3, 17]] = torch.nan
    for one, other in zip(fit(dataset=bad).model.parameters(), fit(dataset=absent).model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert not same(fit(dataset=bad).model, plain.model)
