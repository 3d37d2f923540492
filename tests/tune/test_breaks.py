"""Ways in which one record once changed more than its own term, or an output told of the trials: none does now."""

from __future__ import annotations

import copy
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from dpilot import Budget, Ledger, tune
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.privacy.receipt import Receipt
from dpilot.train.run import predict
from dpilot.tune import AutoClassifier, ModuleTask, classifier
from dpilot.tune.pilot.autopilot_table import autopilot_table
from dpilot.tune.pilot.learners import Modules
from dpilot.tune.task import Outlay, fixed_noise
from tests.tune.helpers import LOSS, LOUD, arrays, dataset, with_keys

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

    def fitted(features, **options):
        seen.extend(features.labels.tolist())
        raise InterruptedError

    monkeypatch.setattr(classifier, "autopilot", fitted)
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


SPACE = tune.Space(tune.LogUniform(0.1, 1.0), tune.Always(2))


class Noisy(nn.Module):
    """Draws from all generators, when it is made and when it is called."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        shift = torch.rand(1) + np.random.random() + random.random()
        return self.last(self.frozen(x)) + 0 * shift


def module_task(model_fn, train=None, held_out=None, **options):
    options = {"options": {"chunk_size": 64}, "clipping": "constant", **options}
    parts = dataset() if train is None else train, dataset(arrays(30, 1)) if held_out is None else held_out
    return ModuleTask(model_fn, LOSS, *parts, 40, 30, 2, **options)


def states():
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


def seeded():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def test_no_generator_tells_how_many_trials_there_were():
    seeded()
    before = states()
    task = module_task(Noisy)
    task.untrained()
    tune.private_selection(task, SPACE, LOUD, mean_trials=5)
    assert states() == before


def test_initial_weights_do_not_tell_the_place_of_the_winner():
    """Foretold by the seed that a script shows, the frozen weights of the n-th model would be known."""
    seeded()
    foretold = [Noisy().frozen.weight for _ in range(40)]
    seeded()
    model = tune.private_selection(module_task(Noisy), SPACE, LOUD, mean_trials=5).model
    assert not any(torch.equal(model.frozen.weight, each) for each in foretold)
    assert not torch.equal(module_task(Noisy).untrained().last.weight, module_task(Noisy).untrained().last.weight)


def test_a_fixed_key_fixes_initial_weights():
    one, other = (with_keys(3, module_task(Noisy).untrained) for _ in range(2))
    assert torch.equal(one.last.weight, other.last.weight)


BACKBONE, COUNTED = nn.Linear(3, 4), nn.Linear(3, 2)
COUNTED.register_buffer("seen", torch.zeros(1))


@pytest.mark.parametrize(
    "model_fn",
    [
        lambda: BACKBONE,
        lambda: nn.Sequential(BACKBONE, nn.Linear(4, 2)),
        lambda: nn.Sequential(copy.copy(COUNTED)),
        lambda: nn.Sequential(copy.deepcopy(COUNTED).requires_grad_(False), COUNTED.requires_grad_(False)),
    ],
    ids=["one module", "one backbone", "a copy that is not deep", "one buffer"],
)
def test_modules_that_share_what_training_changes_are_refused(model_fn):
    with pytest.raises(InvalidInput, match="expected fresh trainable parameters and buffers"):
        module_task(model_fn)


def test_a_frozen_backbone_may_be_shared():
    frozen = nn.Linear(3, 4).requires_grad_(False)
    task = module_task(lambda: nn.Sequential(frozen, nn.Linear(4, 2)))
    before = frozen.weight.clone()
    tune.private_selection(task, SPACE, LOUD, mean_trials=3)
    assert torch.equal(frozen.weight, before)


def test_what_is_no_module_is_refused():
    with pytest.raises(InvalidInput, match="expected a torch module"):
        module_task(lambda: 3)


FORM = torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)


class Listed(torch.utils.data.Dataset):
    """Records one by one, whatever they are; the last or the first may be odd."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, place):
        return self.records[place]


def plain(count=30):
    return [(torch.tensor([1.0, place / count, 0.5]), torch.tensor(place % 2)) for place in range(count)]


ODD_RECORDS = [
    (torch.ones(3), torch.tensor([1, 0])),
    (torch.ones(3), torch.tensor(0.5)),
    (torch.ones(1, 3), torch.tensor(0)),
    (torch.full((3,), 1j), torch.tensor(0)),
    (torch.ones(3),),
    "no record",
]


@pytest.mark.parametrize("objective", ["accuracy", "macro"])
@pytest.mark.parametrize("odd", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_an_odd_held_out_record_is_null_and_changes_no_other(odd, objective):
    model, found = nn.Linear(3, 2), []
    for records in (plain(), [*plain(), odd], [odd, *plain()]):
        task = module_task(lambda: nn.Linear(3, 2), Listed(plain()), Listed(records), example=FORM)
        found.append(task.exact_table(model, objective))
        assert Modules(task).predictions(model).target.tolist() == [place % 2 for place in range(30)]
    assert found[0].sum() == 30
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


class Parity(nn.Module):
    """Right for whole numbers as they are; a chunk that became float32 would lose them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 2)

    def forward(self, x):
        return (x.double() % 2 - 0.5).float() @ torch.tensor([[-1.0, 1.0]]) + 0 * self.last.weight.sum()


def test_one_float_among_whole_numbers_rounds_no_other():
    whole = [(torch.tensor([(1 << 24) + 2 * place + 1]), torch.tensor(1)) for place in range(40)]
    form = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    odd = (torch.tensor([0.5]), torch.tensor(0))
    task = module_task(Parity, Listed(whole), Listed([*whole, odd]), example=form)
    assert task.exact_table(Parity(), "accuracy").tolist() == [[0.0, 40.0]]


def test_an_odd_record_in_front_does_not_decide_what_the_others_are():
    trained = []
    for records in (plain(), [(torch.ones(1, 3), torch.tensor(0)), *plain()]):
        torch.manual_seed(0)
        task = module_task(lambda: nn.Linear(3, 2), Listed(records), example=FORM, noise=fixed_noise(1))
        outlay = Outlay(1e-3)
        trained.append(task.train([outlay.trial(tune.Candidate(0.5, 2), Receipt(outlay.event))])[0].weight)
    assert torch.equal(*trained)


def test_a_form_that_only_a_record_shows_is_refused_before_anything_is_paid(tmp_path):
    for data in (Listed(plain()), torch.utils.data.Subset(Listed(plain()), range(5))):
        with pytest.raises(InvalidInput, match="expected example="):
            module_task(lambda: nn.Linear(3, 2), data)
    with pytest.raises(InvalidInput, match="y one class"):
        module_task(lambda: nn.Linear(3, 2), Listed(plain()), example=torch.zeros(1, 3))
    fly = partial(tune.autopilot, lambda: nn.Linear(3, 2), Listed(plain()), Budget(1.0, 1e-5), classes=2, epochs=1)
    with pytest.raises(InvalidInput, match="expected example="):
        fly(size=100, ledger=tmp_path / "ledger")
    assert fly(size=100, example=FORM).spent.epsilon <= 1.0


@pytest.mark.parametrize("together", [True, False])
def test_an_empty_part_is_noise_alone_and_raises_nothing(together):
    nobody = dataset((np.zeros((0, 3), np.float32), np.zeros(0, np.int64)))
    task = module_task(lambda: nn.Linear(3, 2), nobody, nobody, together=together)
    one, other = (Outlay(1.0) for _ in range(2))
    models = task.train([each.trial(tune.Candidate(0.5, 2), Receipt(each.event)) for each in (one, other)])
    assert not torch.equal(models[0].weight, models[1].weight)
    assert task.exact_table(models[0], "accuracy").sum() == 0
    assert Modules(task).predictions(models[0]).target.tolist() == []


def test_coins_that_leave_a_part_empty_raise_nothing():
    for key in range(8):
        split = Split({"train": 0.5, "held-out": 0.5}, bytes([key] * 32))
        task = ModuleTask.of(lambda: nn.Linear(3, 2), LOSS, dataset(arrays(1)), split, size=40, classes=2)
        assert len(task.train_data) + len(task.held_out) == 1
    nobody = dataset((np.zeros((0, 3), np.float32), np.zeros(0, np.int64)))
    task = ModuleTask.of(lambda: nn.Linear(3, 2), LOSS, nobody, split, size=40, classes=2)
    assert len(task.train_data) + len(task.held_out) == 0


@pytest.mark.parametrize("count", [1, 511, 513, 1023, 1024])
def test_which_records_are_scored_together_follows_from_their_places(count, monkeypatch):
    """Sums are rounded by the shape of a chunk: how many records there are in all must not decide it."""
    data = torch.utils.data.TensorDataset(torch.randn(count, 3), torch.zeros(count, dtype=torch.long))
    task, model, sizes = module_task(lambda: nn.Linear(3, 2), data, data), nn.Linear(3, 2), []

    def noted(model, inputs, **options):
        sizes.append(len(inputs))
        return predict(model, inputs, **options)

    monkeypatch.setattr("dpilot.tune.module_task.predict", noted)
    monkeypatch.setattr("dpilot.tune.pilot.learners.predict", noted)
    seen = lambda: len(Modules(task).predictions(model).target)  # noqa: E731
    for score in (lambda: task.exact_table(model, "accuracy").sum(), seen):
        sizes.clear()
        assert score() == count
        assert set(sizes[:-1]) <= {512}
        assert sizes[-1] == (count - 1) % 512 + 1


@pytest.mark.parametrize("count", [1, 3, 513, 515])
def test_one_more_held_out_record_changes_no_bit_of_what_others_are_scored_by(count, monkeypatch):
    torch.manual_seed(0)
    inputs, model = torch.randn(count + 1, 240), nn.Sequential(nn.Linear(240, 100), nn.Linear(100, 2))
    labels, outputs = torch.zeros(count + 1, dtype=torch.long), []

    def noted(model, inputs, **options):
        outputs.append(predict(model, inputs, **options))
        return outputs[-1]

    monkeypatch.setattr("dpilot.tune.module_task.predict", noted)
    monkeypatch.setattr("dpilot.tune.pilot.learners.predict", noted)
    scores = (lambda task: task.exact_table(model, "accuracy"), lambda task: Modules(task).predictions(model))
    for score in scores:
        seen = []
        for size in (count, count + 1):
            outputs.clear()
            data = torch.utils.data.TensorDataset(inputs[:size], labels[:size])
            score(module_task(lambda: nn.Linear(240, 2), data, data))
            seen.append(torch.cat(outputs))
        assert torch.equal(seen[0], seen[1][:count])


def test_a_table_too_wide_for_a_run_folder_is_refused_before_it_is_paid(tmp_path):
    columns = {f"x{place}": {"type": "numeric", "bounds": [0, 1]} for place in range(65)}
    target = {"type": "categorical", "categories": ["no", "yes"], "role": "target"}
    wide = Schema.from_dict({"columns": {**columns, "y": target}})
    frame = {**{name: np.full(50, 0.5) for name in columns}, "y": ["no", "yes"] * 25}
    book = Ledger.open(tmp_path / "ledger", dataset="wide", budget=Budget(1.0, 1e-5))
    for ledger in (book, None):
        with pytest.raises(InvalidInput, match="more than 64 numeric columns"):
            autopilot_table(frame, wide, epsilon=1.0, delta=1e-5, ledger=ledger, run_folder=tmp_path / "run")
    assert book.entries() == ()
    assert not (tmp_path / "run").exists()


def test_times_in_the_ledger_are_listed_as_unprotected():
    tuned = tune.private_selection(module_task(lambda: nn.Linear(3, 2)), SPACE, LOUD, mean_trials=2)
    assert "times of rows in the ledger" in " ".join(tuned.unprotected)
