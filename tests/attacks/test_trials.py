"""Attacks on tuning: trials whose gradients are computed together, and the scores of trained modules."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import Budget, audit, tune
from dpilot.errors import UnsupportedModel
from dpilot.privacy.events import Gaussian, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.tune import Candidate, ModuleTask, select
from dpilot.tune.task import Trial, fixed_noise
from tests.attacks.case import normal
from tests.attacks.catalogue.edges import ROWS, WIDE, Edged, record_at_the_edge
from tests.attacks.catalogue.exits import fails
from tests.attacks.judge import TOLERANCE

LOSS = nn.CrossEntropyLoss(reduction="none")
N = 11
Flag = Callable[[Tensor], bool]

FLAGS: dict[str, Flag] = {
    "text": lambda x: "e+0" in str(x),
    "failing look-up": lambda x: fails(lambda: nn.functional.embedding(x.abs().long(), torch.zeros(50, 1))),
    "checked arguments": lambda x: fails(lambda: torch.distributions.Normal(x, 60 - x.abs(), validate_args=True)),
}
"""What vmap shows of all records: 2.6 to 3.0 bounds before it was watched."""


class Turned(nn.Module):
    """A linear map that is turned round where a flag is set."""

    def __init__(self, flag: Flag) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.flag = nn.Linear(3, 2), flag

    def forward(self, x: Tensor) -> Tensor:
        return -self.a(x) if self.flag(x.detach()) else self.a(x)


def task(model_fn: Callable[[], nn.Module], train: Any, held_out: Any, **options: Any) -> ModuleTask:
    more = {"clipping": "constant", "optimizer": "sgd", "options": {"chunk_size": 16}, "noise": fixed_noise(5)}
    parts = TensorDataset(*train), TensorDataset(*held_out)
    return ModuleTask(model_fn, LOSS, *parts, ROWS, ROWS, 2, 1.0, **more, **options)


def data(n: int = N) -> tuple[Tensor, Tensor]:
    return normal(n, 3), torch.arange(n) % 2


def with_one_more(rows: Any, record: Any) -> Any:
    return tuple(torch.cat([have, more]) for have, more in zip(rows, record, strict=True))


def trial() -> Trial:
    return Trial(Candidate(0.5, 2), 2.0, Receipt(Repeated(Gaussian(2.0), 2)))


def train_together(model_fn: Callable[[], nn.Module], train: Any) -> Any:
    trained = task(model_fn, train, train, together=True).train([trial(), trial()])
    return [p.detach().clone() for model in trained for p in model.parameters()]


def largest_label(model: nn.Module, x: Tensor) -> Tensor:
    """The class that the model does not give a record: its gradient is long."""
    return model(x).argmin(1)


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_trials_together_let_no_model_see_another_record(flag: Flag) -> None:
    x = torch.full((1, 3), 60.0 if flag is not FLAGS["text"] else 1e4)
    record = x, largest_label(Turned(lambda _: False), x)
    run = partial(train_together, partial(Turned, flag))
    result = audit.replay(run, data(), with_one_more(data(), record), tolerance=TOLERANCE)
    assert 0.5 < result.largest <= 1 + TOLERANCE
    assert not result.differences


def test_a_record_that_raises_moves_no_record_at_an_edge_in_trials_together() -> None:
    """Beside it the others are computed again, each among copies of itself."""
    n = ROWS - 1
    train = record_at_the_edge().repeat(n, 1), torch.arange(n) % 2
    record = normal(1, WIDE), torch.tensor([7])  # no class: the loss raises
    result = audit.replay(partial(train_together, Edged), train, with_one_more(train, record), tolerance=TOLERANCE)
    assert result.largest <= TOLERANCE
    assert not result.differences


class Centred(nn.Module):
    """Centred by the batch where it does not train, if ``when`` says so; remembers what it saw."""

    def __init__(self, when: Flag) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.when = nn.Linear(3, 2), when

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.when(x):
            x = x - x.mean(0)
        return self.a(x)


class Remembering(nn.Module):
    """Adds to its outputs what it saw before, where it does not train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.seen = nn.Linear(3, 2), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        made = self.a(x)
        if not self.training:
            made = made + sum(self.seen)
            self.seen.append(self.a(x[:1].detach()))
        return made


class Sized(nn.Module):
    """Takes the other side in every second size of a batch, where it does not train: as kernels do in their last bit.

    On an H200 a linear map of 784 features has another last bit for 8 to 256 rows than for 512.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        made = self.a(x)
        return made if self.training or len(x).bit_length() % 2 else -made


def score(model_fn: Callable[[], nn.Module], held_out: Any) -> Any:
    scored = task(model_fn, data(), held_out)
    return scored.table(model_fn(), "accuracy", noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))


def test_a_module_that_combines_records_where_it_does_not_train_is_refused() -> None:
    """23 records of 200 changed their score for the sake of one."""
    with pytest.raises(UnsupportedModel, match="combines records where it does not train"):
        task(partial(Centred, lambda _: True), data(), data())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "centred beside a large record": partial(Centred, lambda x: bool((x.abs() > 50).any())),
    "centred beside a failure": partial(Centred, FLAGS["failing look-up"]),
    "remembering": Remembering,
}


@pytest.mark.parametrize("model_fn", MODELS.values(), ids=MODELS)
def test_one_more_record_changes_the_score_of_no_other(model_fn: Callable[[], nn.Module]) -> None:
    """5, 5 and 76 bounds before passes that score were watched."""
    held_out, record = (normal(60, 3), torch.zeros(60, dtype=torch.long)), (torch.full((1, 3), 1e3), torch.tensor([0]))
    for more in (with_one_more(held_out, record), with_one_more(record, held_out)):
        result = audit.replay(partial(score, model_fn), held_out, more, tolerance=TOLERANCE)
        assert 0 < result.largest <= 1 + TOLERANCE
        assert not result.differences


def test_a_record_in_front_changes_the_score_of_no_other() -> None:
    """6.4 bounds where the first records were computed in smaller batches than the others."""
    x, size = torch.ones(300, 3), torch.cat([torch.full((n,), n) for n in (8, 8, 16, 32, 64, 128, 256)])[:300]
    side = Sized().eval()(torch.ones(1, 3)).argmax(1)
    shown = torch.tensor([side if int(n).bit_length() % 2 else 1 - side for n in size])
    # records on the edge of a size are counted right where they stand, and wrong one place further
    for more in (with_one_more((x, shown), (x[:1], shown[:1])), with_one_more((x[:1], shown[:1]), (x, shown))):
        result = audit.replay(partial(score, Sized), (x, shown), more, tolerance=TOLERANCE)
        assert result.largest <= 1 + TOLERANCE
        assert not result.differences


class Telling(nn.Module):
    """Draws once for all records, which is told, and warns when it is made and when it is called."""

    def __init__(self) -> None:
        super().__init__()
        warnings.warn("a module is made", stacklevel=1)
        self.a = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("a module is called", stacklevel=1)
        return self.a(x) + 0 * random.random()


def test_no_line_tells_how_many_trials_there_were(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line a trial was logged: the secret number of trials."""

    class Law:
        def __init__(self, count: int) -> None:
            self.count = count

        def draw(self, _: Any) -> int:
            return self.count

    def lines(count: int) -> list[str]:
        monkeypatch.setattr(select, "law_of", lambda _: Law(count))
        with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG):
            warnings.simplefilter("always")
            telling = task(Telling, data(), data())
            warned.clear()
            caplog.clear()
            tune.private_selection(telling, space, Budget(50.0, 1e-5), mean_trials=4)
        said = [str(each.message) for each in warned if "ledger" not in str(each.message)]
        return said + [each.getMessage() for each in caplog.records]

    space = tune.Space(tune.LogUniform(0.1, 1.0), tune.Always(2))
    assert lines(1) == lines(5)
