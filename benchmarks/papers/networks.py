"""One private run of a small network: by a clipping rule with given settings, the data-free default, or tuned and paid.

Settings of a cell, beside its rule's own in "clipping":

| name | what |
|---|---|
| batch, epochs or steps | expected batch size, length of the run |
| sigma | the noise multiplier, where it is the paper's; else ours, by PLD from epsilon and delta |
| lr, momentum, decay, schedule | of SGD; optimizer: or of another |
| normalized | gradients in units of the threshold |
| watch | score the test part every so many steps |
| quick | the smallest form: 256 records, two steps |

Methods beside the rules: "default" (data-free step size, bounded slack; nothing is chosen, so nothing is paid beside
the run), "autopilot" (tuned inside the budget), "non-private". The test part is public, figures are exact.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.papers import data as sets
from benchmarks.papers.cell import Cell
from benchmarks.papers.data import Data
from benchmarks.papers.lines import Figures
from benchmarks.papers.models import make
from dpilot import Budget, Plan, Trainer, clipping, tune
from dpilot.privacy.budget import Cost
from dpilot.tune.defaults import module_lr

DELTA = 1e-5
EPOCHS = 30
BATCH = 512


def measure(cell: Cell, device: str) -> Figures:
    """Train and score; everything that is chosen is in the cell."""
    settings = dict(cell.settings)
    train, test = (sets.load(cell.data, part) for part in ("train", "test"))
    if settings.pop("quick", False):
        train, test = train.first(256), test.first(256)
        settings |= {"batch": min(settings.get("batch", BATCH), 64), "steps": 2}
        settings.pop("epochs", None)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(cell.seed)
    if cell.method == "group":
        from benchmarks.papers import by_group

        return by_group.measure(cell, settings, train, test)
    ways = {"non-private": _plain, "autopilot": _autopilot}
    return ways.get(cell.method, _private)(cell, settings, train, test, device)


def _private(cell: Cell, settings: dict[str, Any], train: Data, test: Data, device: str) -> Figures:
    default = cell.method == "default"
    plan = plan_of(cell, settings, len(train))
    batch, steps = plan.expected_batch_size, plan.steps
    lr = module_lr(noise_multiplier=plan.noise_multiplier, batch_size=batch, steps=steps) if default else settings["lr"]
    optimizer, own = settings.get("optimizer", "sgd"), {"weight_decay": settings.get("decay", 0.0)}
    if optimizer == "sgd":
        own["momentum"] = settings.get("momentum", 0.9)
    more: dict[str, Any] = {}
    if "watch" in settings:
        more = {"public_validation": _dataset(cell, test), "checkpoint_every": settings["watch"]}
    model = make(cell.model, train.inputs, _outputs(cell, train))
    trainer = Trainer(
        model, _loss(cell), plan, optimizer=optimizer, lr=lr, optimizer_options=own,
        schedule=settings.get("schedule", "cosine" if default else "constant"),
        device=device, **more,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = trainer.fit(_dataset(cell, train))
    found = {**scores(predicted(run.model, test.inputs, device), test), "epsilon": run.epsilon}
    found |= {"noise_multiplier": plan.noise_multiplier, "steps": steps, "lr": lr}
    found["last_threshold"] = float(run.thresholds[-1])
    found["thresholds"] = _thinned([float(each) for each in run.thresholds])
    if "watch" in settings:
        found["path"] = [[each.step, each.accuracy] for each in run.record.validation]
    return found


def plan_of(cell: Cell, settings: Mapping[str, Any], size: int) -> Plan:
    """The plan: at the paper's own noise multiplier where the cell has one, else calibrated."""
    budget = Budget(cell.epsilon, settings.get("delta", DELTA))
    name = "bounded-slack" if cell.method == "default" else cell.method
    normalized = settings.get("normalized", cell.method == "default")
    rule = clipping.get(name, normalized=normalized, **settings.get("clipping", {}))
    batch = min(settings.get("batch", BATCH), size)
    length = {"steps": settings["steps"]} if "steps" in settings else {"epochs": settings.get("epochs", EPOCHS)}
    if "sigma" not in settings or length.get("steps") == 2:
        return Plan.calibrate(budget, size=size, batch_size=batch, clipping=rule, **length)
    steps = length.get("steps") or math.ceil(size / batch) * length["epochs"]
    return Plan(budget, size, batch / size, steps, settings["sigma"], rule, Cost(budget.epsilon, budget.delta))


def _autopilot(cell: Cell, settings: dict[str, Any], train: Data, test: Data, device: str) -> Figures:
    budget = Budget(cell.epsilon, settings.get("delta", DELTA))
    tuned = tune.autopilot(
        lambda: make(cell.model, train.inputs, _outputs(cell, train, two=True)),
        TensorDataset(train.inputs, train.labels), budget, classes=train.classes,
        epochs=min(settings.get("epochs", EPOCHS), settings.get("steps", 1 << 30)), device=device,
    )  # fmt: skip
    found = {**scores(predicted(tuned.model, test.inputs, device), test), "epsilon": tuned.spent.epsilon}
    return {**found, "trials": len(tuned.tuned.trials), "said": list(tuned.decisions)}


def _plain(cell: Cell, settings: dict[str, Any], train: Data, test: Data, device: str) -> Figures:
    """Without privacy: Adam, the same number of epochs."""
    model = make(cell.model, train.inputs, _outputs(cell, train)).to(device)
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=settings.get("lr", 1e-3)), _loss(cell)
    inputs, labels = (each.to(device) for each in _dataset(cell, train).tensors)
    batch, epochs = settings.get("batch", BATCH), 1 if "steps" in settings else settings.get("epochs", EPOCHS)
    for _ in range(epochs):
        for rows in torch.randperm(len(train), device=device).split(batch):
            optimizer.zero_grad()
            loss(model(inputs[rows]), labels[rows]).mean().backward()
            optimizer.step()
    return scores(predicted(model, test.inputs, device), test)


def _outputs(cell: Cell, data: Data, *, two: bool = False) -> int:
    """A logistic regression has one output, as the papers have it; the autopilot wants one a class."""
    return 1 if cell.model == "logistic" and not two else data.classes


def _dataset(cell: Cell, data: Data) -> TensorDataset:
    labels = data.labels.float() if cell.model == "logistic" else data.labels
    return TensorDataset(data.inputs, labels)


def _loss(cell: Cell) -> Any:
    return binary_loss if cell.model == "logistic" else nn.CrossEntropyLoss(reduction="none")


def binary_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels, reduction="none")


def predicted(model: nn.Module, inputs: Tensor, device: str) -> Tensor:
    """The classes that a model finds."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(rows.to(device)).cpu() for rows in inputs.split(2048)])
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def scores(found: Tensor, test: Data) -> dict[str, float]:
    """Accuracy in all, by class (mean and worst), and by group with the ratio of positive rates."""
    right = (found == test.labels).double()
    recalls = [
        right[test.labels == label].mean().item() for label in range(test.classes) if (test.labels == label).any()
    ]
    figures = {"accuracy": right.mean().item(), "macro": sum(recalls) / len(recalls), "worst": min(recalls)}
    if test.groups.any():
        rates = [(found[test.groups == group] == 1).double().mean().item() for group in (0, 1)]
        figures |= {"male": right[test.groups == 0].mean().item(), "female": right[test.groups == 1].mean().item()}
        figures["parity"] = min(rates) / max(rates) if max(rates) else 1.0
    return figures


def _thinned(values: list[float], most: int = 32) -> list[float]:
    """About ``most`` of them, the last one included."""
    every = max(1, len(values) // most)
    return [float(f"{value:.4g}") for value in [*values[::every], values[-1]]]
