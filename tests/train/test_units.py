"""Units: a person with all their rows is one record of a step, and one record's worth of every promise."""

from __future__ import annotations

import itertools
import re
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from dpilot import Budget, Ledger, Plan, PrivateStep, Trainer, audit, clipping, engine, poisson_loader
from dpilot.audit import Pair
from dpilot.data.units import UnitRows
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.unit import PrivacyUnit
from dpilot.tape import tape
from dpilot.train.batches.reader import Reader
from dpilot.train.batches.unit_chunk import repeat_rows, unit_losses
from dpilot.train.batches.unit_reader import UnitReader, UnitsById
from dpilot.train.dry_run import largest_fast_size
from tests.tapes import Recorder, exact_sum
from tests.thin import thin
from tests.train.helpers import LOSS, plan, same

CAP, STEPS, WIDTH = 4, 3, 3
SIZES = (1, 4, 2, 6, 3, 1, 5, 4)  # rows of each person: fewer than the cap, as many, and more
made = np.random.default_rng(0)
PERSONS = [
    (f"p{number}", made.normal(size=(rows, WIDTH)).astype(np.float32), made.integers(0, 2, rows))
    for number, rows in enumerate(SIZES)
]


def person(value, rows, name="last", label=1):
    return name, np.full((rows, WIDTH), value, dtype=np.float32), np.full(rows, label)


def table(persons):
    """The rows of all, in turns, so that a person's are apart; the last person's first row comes after all others'."""
    longest = max((len(labels) for *_, labels in persons), default=0)
    turns = [(who, turn) for turn in range(longest) for who, (*_, labels) in enumerate(persons) if turn < len(labels)]
    inputs = np.array([persons[who][1][turn] for who, turn in turns], dtype=np.float32).reshape(-1, WIDTH)
    labels = np.array([persons[who][2][turn] for who, turn in turns], dtype=np.int64)
    return torch.from_numpy(inputs), torch.from_numpy(labels), [persons[who][0] for who, _ in turns]


def by_unit(rule="constant", *, rate=1.0, steps=STEPS, rows=CAP, name="person", missing="null"):
    return replace(plan(rule, rate=rate, steps=steps), unit=PrivacyUnit(name, rows, missing))


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 2))


def in_tensors(persons, rule="constant", **options):
    inputs, labels, ids = table(persons)
    return trained(TensorDataset(inputs, labels), rule, units=ids, **options)


def in_items(persons, rule="constant", **options):
    inputs, labels, ids = table(persons)
    return trained(list(zip(inputs, labels, strict=True)), rule, units=ids, **options)


def in_lists(persons, rule="constant", **options):
    items = [list(zip(*map(torch.from_numpy, rows), strict=True)) for _, *rows in persons]
    return trained(items, rule, **options)


def trained(dataset, rule, *, rate=0.7, model=None, rows=CAP, missing="null", **options):
    chosen = by_unit(rule, rate=rate, rows=rows, missing=missing)
    options = {"lr": 0.1, "chunk_size": 3, "example": EXAMPLE, **options}
    return Trainer(model or net(), LOSS, chosen, **options).fit(dataset)


EXAMPLE = torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.long)
WAYS = [in_tensors, in_items, in_lists]


def seen(run):
    """Everything a run hands out."""
    entries = [{**entry.as_dict(), "time": ""} for entry in run.ledger.entries()]
    return run.model, run.record, run.epsilon, run.thresholds, entries


VALUES = {"zeros": 0.0, "1e30": 1e30, "large": 1e3, "nan": np.nan, "-inf": -np.inf}
PAIRS = [
    *(
        Pair(f"a person of {rows} rows of {name} added", PERSONS, [*PERSONS, person(value, rows)])
        for rows in (1, CAP, 1000)
        for name, value in VALUES.items()
    ),
    Pair("a person with a label that is no class added", PERSONS, [*PERSONS, person(1.0, 3, label=9)]),
    Pair("the last person removed", PERSONS, PERSONS[:-1]),
    Pair("a person added to no data", [], [person(1.0, 2)]),
    Pair("a person made null", [*PERSONS, person(1.0, 6, name=None)], [*PERSONS, person(1e3, 9)]),
]
HOSTILE = [
    pair for pair in PAIRS if any(word in pair.name for word in ("1000 rows of large", "1 rows of 1e30", "null"))
]
RULES = [*clipping.names(), clipping.get("slack", groups=2), clipping.get("histogram-e", normalized=True)]


@pytest.mark.parametrize("every", thin([3, 1], 2))
@pytest.mark.parametrize("way", thin(WAYS, 2))
def test_a_person_moves_a_release_by_its_bound_at_most_and_nothing_else(way, every, replay):
    pairs = [pair for pair in PAIRS[::every] if way is not in_lists or "null" not in pair.name]
    results = replay(lambda persons: seen(way(persons, "slack")), pairs=pairs)
    assert {result.releases for result in results} == {STEPS}
    assert max(result.largest for result in results) > 0.5  # the replay could fail


@pytest.mark.parametrize("gradient", thin(["sum", "mean"], 2))
@pytest.mark.parametrize("rule", thin(RULES, 3), ids=str)
def test_every_rule_clips_a_person_once(rule, gradient, replay):
    replay(lambda persons: seen(in_tensors(persons, rule, unit_gradient=gradient)), pairs=HOSTILE)


@pytest.mark.parametrize(
    "chosen", [{"engine": "vmap"}, {"engine": "loop"}, {"low_memory": True}, {"amp": True}], ids=str
)
def test_every_engine_clips_a_person_once(chosen, replay):
    replay(lambda persons: seen(in_tensors(persons, **chosen)), pairs=HOSTILE)


def test_a_loop_of_ones_own_clips_a_person_once(replay):
    def run(persons):
        inputs, labels, ids = table(persons)
        chosen, model = by_unit("slack", rate=0.7), net()
        loader = poisson_loader(TensorDataset(inputs, labels), chosen, units=ids)
        step = PrivateStep(model, LOSS, torch.optim.Adam(model.parameters(), lr=0.1), chosen, chunk_size=3)
        return [step(batch) for batch in loader], model, step.record

    replay(run, pairs=HOSTILE)


def test_one_row_more_is_less_than_a_person(replay):
    """The second half of a person's rows turned hostile: one person is another, which is two bounds at most."""
    half = person(1.0, CAP)
    turned = half[0], np.where(np.arange(CAP)[:, None] < 2, half[1], np.float32(1e3)), half[2]
    result = audit.replay(lambda persons: seen(in_tensors(persons)), [*PERSONS, half], [*PERSONS, turned])
    assert [each for each in result.differences if "moves by" not in each] == []
    assert result.largest <= 2.0 + 1e-6


IDS = {
    "text": lambda names: names,
    "numpy text": np.array,
    "bytes": lambda names: [name.encode() for name in names],
    "whole numbers": lambda names: [int(name[1:]) for name in names],
    "int64": lambda names: np.array([int(name[1:]) for name in names]),
    "floats": lambda names: np.array([float(name[1:]) for name in names]),
    "tensor": lambda names: torch.tensor([int(name[1:]) for name in names]),
    "decimals": lambda names: [Decimal(name[1:]) for name in names],
    "pandas": lambda names: pd.Series(names),
    "nullable": lambda names: pd.Series([int(name[1:]) for name in names], dtype="Int64"),
    "categorical": lambda names: pd.Series(pd.Categorical(names)),
    "index": pd.Index,
    "arrow": pa.array,
    "chunked": lambda names: pa.chunked_array([names[:5], names[5:]]),
    "mixed types": lambda names: [int(n[1:]) if i % 2 else float(n[1:]) for i, n in enumerate(names)],
}


@pytest.mark.parametrize("kind", thin(IDS, 2))
def test_ids_of_every_type_group_alike(kind):
    inputs, labels, ids = table(PERSONS)
    options = {"rows": 10, "rate": 1.0}
    expected = exact_sums(lambda: in_tensors(PERSONS, test_seed=1, **options))
    found = exact_sums(
        lambda: trained(TensorDataset(inputs, labels), "constant", units=IDS[kind](ids), test_seed=1, **options)
    )
    assert found == pytest.approx(expected, abs=1e-6)


ODD_IDS = [None, float("nan"), pd.NA, pd.NaT, "", object(), [], {}, 2**60, b"\xff", "p0 "]


@pytest.mark.parametrize("odd", ODD_IDS, ids=map(str, range(len(ODD_IDS))))
def test_no_id_raises(odd):
    inputs, labels, ids = table(PERSONS)
    trained(TensorDataset(inputs, labels), "constant", units=[odd, *ids[1:]])


def exact_sums(run):
    """What the first release of a run adds noise to."""
    recorder = Recorder()
    with tape(recorder):
        run()
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in recorder.entries[0].inputs])


def test_rows_without_an_id_count_for_nothing_or_as_persons():
    bare = [*PERSONS, (None, PERSONS[3][1][:2], PERSONS[3][2][:2])]
    options = {"rate": 1.0, "rows": 10, "test_seed": 1}
    assert exact_sums(lambda: in_tensors(bare, **options)) == pytest.approx(
        exact_sums(lambda: in_tensors(PERSONS, **options)), abs=1e-6
    )
    single = [*PERSONS, *(("x" + str(i), PERSONS[3][1][i : i + 1], PERSONS[3][2][i : i + 1]) for i in range(2))]
    assert exact_sums(lambda: in_tensors(bare, missing="row", **options)) == pytest.approx(
        exact_sums(lambda: in_tensors(single, **options)), abs=1e-6
    )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.encode = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.encode(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.read, self.out = nn.Embedding(9, 8), nn.GRU(8, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.read(self.embed(x))[0][:, -1])


MODELS = {
    "linear": (net, (WIDTH,)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)),
        (2, 6, 6),
    ),
    "norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)), (6,)),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(16, 2)),
        (2, 6),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2)), None),
    "attention": (Attention, None),
    "recurrent": (Recurrent, None),
}


@pytest.mark.parametrize("gradient", thin(["mean", "sum"], 2))
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_a_loop_over_persons(name, gradient):
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model, rows = build().double(), sum(SIZES)
    inputs = torch.randint(9, (rows, 5)) if shape is None else torch.randn(rows, *shape, dtype=torch.float64)
    labels = torch.randint(2, (rows,))
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    expected = loop_over_persons(model, inputs, labels, ids, gradient)
    assert_engine(model, inputs, labels)
    options = {"units": ids, "unit_gradient": gradient, "chunk_size": 3, "lr": 1e-9}
    for more in ({}, {"per_batch": True}):
        data = TensorDataset(inputs, labels)
        loss = LOSS if not more else lambda model, batch: LOSS(model(batch[0]), batch[1])
        found = exact_sum(Trainer(deepcopy(model), loss, by_unit(steps=1, rows=6), **options, **more).fit, data)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def loop_over_persons(model, inputs, labels, ids, gradient):
    """The clipped sum, person by person, by plain autograd and the rule."""
    rule, flats = clipping.get("constant"), []
    for who in range(len(SIZES)):
        own = np.flatnonzero(ids == who)
        losses = LOSS(model(inputs[own]), labels[own])
        made = torch.autograd.grad(losses.mean() if gradient == "mean" else losses.sum(), list(model.parameters()))
        flats.append(torch.cat([each.flatten() for each in made]))
    state = rule.init(noise_multiplier=1.0, expected_batch_size=8, dimension=flats[0].numel())
    weights, _ = rule.clip(torch.stack(flats).norm(dim=1), state)
    return (weights @ torch.stack(flats)).numpy()


def assert_engine(model, inputs, labels):
    """One backward pass for all persons."""
    chunk = repeat_rows((inputs[:3], labels[:3]), 3, 2)

    def loss(model, batch):
        return unit_losses(LOSS, False, "mean", model, batch)

    assert engine.per_sample(model, loss, chunk, per_batch=True).engine == "single-backward"


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_cannot_be_read_or_have_another_shape_are_left_out_of_their_person(way):
    """A person is what its readable rows are, however many others it has."""
    kept = [(name, inputs[:2], labels[:2]) for name, inputs, labels in PERSONS]

    class Odd(list):
        def __getitem__(self, index):
            found = list.__getitem__(self, index)
            if found == "unreadable":
                raise OSError
            return found

    def odd_rows(persons):
        return [[*zip(*map(torch.from_numpy, rows), strict=True), *ODD] for _, *rows in persons]

    bad = odd_rows(kept)
    options = {"test_seed": 1, "rate": 1.0, "rows": 10}
    if way is in_lists:
        found = exact_sums(lambda: trained([Odd(rows) for rows in bad], "constant", **options))
    else:
        ids = [name for (name, *_), rows in zip(kept, bad, strict=True) for _ in rows]
        flat = Odd(itertools.chain.from_iterable(bad))
        dataset = flat if way is in_items else Subset(flat, range(len(flat)))
        found = exact_sums(lambda: trained(dataset, "constant", units=ids, **options))
    assert found == pytest.approx(exact_sums(lambda: in_tensors(kept, **options)), abs=1e-6)


ODD = ["unreadable", None, (torch.zeros(WIDTH),), (torch.zeros(WIDTH), torch.tensor(0.5)), ("a", "b")]


def test_rows_of_another_type_in_tensors_are_left_out_of_their_person():
    inputs, labels, ids = table(PERSONS)
    wrong = labels.double()
    first_of_second = ids.index("p1")
    wrong[first_of_second] = 0.5
    keep = np.arange(len(ids)) != first_of_second
    options = {"test_seed": 1, "rate": 1.0, "rows": 10}
    found = exact_sums(lambda: trained(TensorDataset(inputs, wrong), "constant", units=ids, **options))
    left = TensorDataset(inputs[keep], labels[keep])
    names = [each for each, kept in zip(ids, keep, strict=True) if kept]
    assert found == pytest.approx(exact_sums(lambda: trained(left, "constant", units=names, **options)), abs=1e-6)


def test_a_collate_function_sees_one_row_and_shared_parts_stay_shared():

    def collate(rows):
        ((x, y),) = rows
        return {"x": x[None], "y": y[None], "scale": torch.arange(1.0, 8.0)}

    def loss(model, batch):
        return LOSS(model(batch["x"]) * batch["scale"].mean(), batch["y"])

    def four_times(outputs, labels):
        return LOSS(outputs * 4.0, labels)

    inputs, labels, ids = table(PERSONS)
    options = {"units": ids, "chunk_size": 7, "test_seed": 1}
    rows, data = list(zip(inputs, labels, strict=True)), TensorDataset(inputs, labels)
    trainer = Trainer(net(), loss, by_unit(), per_batch=True, collate_fn=collate, **options)
    expected = exact_sums(lambda: Trainer(net(), four_times, by_unit(), **options).fit(data))
    assert exact_sums(lambda: trainer.fit(rows)) == pytest.approx(expected, abs=1e-6)


def test_persons_are_sampled_with_all_their_rows_at_the_plans_rate():
    inputs, labels, ids = table(PERSONS)
    rate, steps, read = 0.3, 150, []

    class Watched(list):
        def __getitem__(self, index):
            read.append(index)
            return list.__getitem__(self, index)

    drawn = []

    def note(record):
        drawn.append(sorted(read))
        read.clear()

    chosen = by_unit(rate=rate, steps=steps)
    Trainer(net(), LOSS, chosen, units=ids, example=EXAMPLE, callback=note, chunk_size=8, test_seed=3).fit(
        Watched(zip(inputs, labels, strict=True))
    )
    whole = {name: {place for place, each in enumerate(ids) if each == name} for name in ids}
    times = dict.fromkeys(whole, 0)
    for places in drawn:
        assert len(places) == len(set(places))
        for name in {ids[place] for place in places}:
            own = set(places) & whole[name]
            assert len(own) == min(CAP, len(whole[name]))
            times[name] += 1
    assert [count / steps for count in times.values()] == pytest.approx([rate] * len(SIZES), abs=0.15)
    chosen_rows = {frozenset(set(places) & whole["p3"]) for places in drawn if set(places) & whole["p3"]}
    assert len(chosen_rows) == 1  # of six rows the same four, in every step


@pytest.mark.parametrize("way", WAYS)
def test_which_rows_of_a_person_count_is_a_secret_choice_of_each_run(way):
    """The first four rows have the label 0 and the others 1: another choice is another sum."""
    long = [(name, np.ones((50, WIDTH), dtype=np.float32), np.arange(50) // 4) for name in ("a", "b")]
    long = [(name, inputs * np.arange(50, dtype=np.float32)[:, None], labels % 2) for name, inputs, labels in long]
    sums = [exact_sums(lambda seed=seed: way(long, rate=1.0, test_seed=seed)) for seed in (1, 2, 3)]
    first = [(name, inputs[:CAP], labels[:CAP]) for name, inputs, labels in long]
    sums.append(exact_sums(lambda: way(first, rate=1.0, test_seed=1)))
    assert all(np.abs(one - other).max() > 1e-3 for one, other in itertools.combinations(sums, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_own_loop_is_the_trainer(workers):
    inputs, labels, ids = table(PERSONS)
    dataset, first, second = TensorDataset(inputs, labels), net(), net()
    chosen = plan("slack", rate=0.5)  # for records: the loader says that they are units
    loader = poisson_loader(dataset, chosen, units=ids, rows_per_unit=CAP, num_workers=workers)
    step = PrivateStep(first, LOSS, torch.optim.SGD(first.parameters(), lr=0.5), chosen, chunk_size=8, test_seed=7)
    for batch in loader:
        step(batch)
    options = {"units": ids, "rows_per_unit": CAP, "lr": 0.5, "chunk_size": 8, "test_seed": 7}
    run = Trainer(second, LOSS, plan("slack", rate=0.5), **options).fit(dataset)
    assert same(first, second)
    assert step.record.plan == run.record.plan
    assert step.record.plan["unit"] == {"name": "unit", "rows": CAP, "missing": "null"}


def test_a_loop_over_lists_is_the_trainer_over_lists():
    items = [list(zip(*map(torch.from_numpy, rows), strict=True)) for _, *rows in PERSONS]
    first, second, chosen = net(), net(), by_unit("slack", rate=0.5)
    loader = poisson_loader(items, chosen)
    step = PrivateStep(first, LOSS, torch.optim.SGD(first.parameters(), lr=0.1), chosen, chunk_size=3, test_seed=7)
    for batch in loader:
        step(batch)
    run = in_lists(PERSONS, "slack", rate=0.5, test_seed=7, model=second, example=None)
    assert same(first, run.model)


class Stop(Exception):
    pass


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_is_the_uninterrupted_one(way, tmp_path):
    def stop(record):
        if record.step == 1:
            raise Stop

    options = {"test_seed": 5, "model": None}
    with pytest.raises(Stop):
        way(PERSONS, "slack", checkpoint=tmp_path / "run", checkpoint_every=1, callback=stop, **options)
    expected = way(PERSONS, "slack", **options)
    inputs, labels, ids = table(PERSONS)
    dataset = {
        in_tensors: TensorDataset(inputs, labels),
        in_items: list(zip(inputs, labels, strict=True)),
        in_lists: [list(zip(*map(torch.from_numpy, rows), strict=True)) for _, *rows in PERSONS],
    }[way]
    more = {"example": EXAMPLE}
    wrong, right = ({"units": ids}, {}) if way is in_lists else ({}, {"units": ids})
    with pytest.raises(InvalidInput, match="ids"):
        Trainer.resume(tmp_path / "run", net(), LOSS, dataset, **more, **wrong)
    found = Trainer.resume(tmp_path / "run", net(), LOSS, dataset, **more, **right)
    assert same(found.model, expected.model)
    assert found.record == expected.record


def test_secret_keys_choose_the_same_rows_after_a_resume(tmp_path):
    """Without a test seed too: another choice would be another sum, which the log of sums refuses."""
    inputs, labels, ids = table([person(0.1 * i, 50, name=str(i)) for i in range(6)])
    inputs = torch.randn_like(inputs)

    def stop(record):
        if record.step == 1:
            raise Stop

    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 3, "callback": stop}
    with pytest.raises(Stop):
        trained(TensorDataset(inputs, labels), "constant", units=ids, rate=1.0, **options)
    data = TensorDataset(inputs, labels)
    Trainer.resume(tmp_path / "run", net(), LOSS, data, units=ids, example=EXAMPLE)


def test_what_contradicts_itself_is_refused():
    inputs, labels, ids = table(PERSONS)
    data = TensorDataset(inputs, labels)

    def refused(match, chosen, **options):
        with pytest.raises(InvalidInput, match=match):
            Trainer(net(), LOSS, chosen, **options).fit(data)

    refused("one id for each row", by_unit(), units=ids[1:])
    refused("one id for each row", by_unit(), units=iter(ids))
    refused("one id for each row", by_unit(), units=np.array([ids, ids]).T)
    refused("units are missing", by_unit())
    with pytest.raises(InvalidInput, match="first item"):
        Trainer(net(), LOSS, by_unit()).fit(list(data))
    refused("what it was made for", by_unit(), units=ids, rows_per_unit=CAP + 1)
    refused("what it was made for", by_unit(), units=ids, missing_unit="row")
    refused("what it was made for", plan(), rows_per_unit=3)
    refused("unit_gradient", plan(), unit_gradient="sum")
    refused("unit_gradient", by_unit(), units=ids, unit_gradient="median")
    Trainer(net(), LOSS, by_unit(), units=ids, rows_per_unit=CAP, missing_unit="null").fit(data)


def test_a_plan_for_records_is_used_once_for_units_too():
    inputs, labels, ids = table(PERSONS)
    chosen, data = plan(rate=1.0, steps=1), TensorDataset(inputs, labels)
    Trainer(net(), LOSS, chosen, units=ids).fit(data)
    with pytest.raises(InvalidInput, match="used already"):
        Trainer(net(), LOSS, chosen, units=ids).fit(data)


def test_batches_are_of_the_unit_that_was_paid():
    inputs, labels, ids = table(PERSONS)
    data, model = TensorDataset(inputs, labels), net()
    chosen = plan()
    PrivateStep(model, LOSS, torch.optim.SGD(model.parameters()), chosen)
    with pytest.raises(InvalidInput, match="before the step"):
        poisson_loader(data, chosen, units=ids)
    chosen = plan()
    rows, _ = poisson_loader(data, chosen), poisson_loader(data, chosen, units=ids)
    step = PrivateStep(model, LOSS, torch.optim.SGD(model.parameters()), chosen)
    with pytest.raises(InvalidInput, match="protects unit, 8 rows"):
        next(iter(rows))
    assert step.record.plan["unit"]["rows"] == 8


def test_ledgers_of_rows_and_of_persons_are_apart(tmp_path):
    inputs, labels, ids = table(PERSONS)
    data = TensorDataset(inputs, labels)
    Ledger.open(tmp_path / "rows", dataset="rows", budget=Budget(9.0, 1e-4))
    with pytest.raises((LedgerError, InvalidInput), match="record"):
        Trainer(net(), LOSS, by_unit(), units=ids, ledger=tmp_path / "rows").fit(data)
    run = Trainer(net(), LOSS, by_unit(), units=ids, ledger=tmp_path / "persons").fit(data)
    assert run.ledger.unit == "person"
    other = Trainer(net(), LOSS, plan(), units=ids, ledger=tmp_path / "units").fit(data)
    assert other.ledger.unit == "unit"
    assert run.record.plan["unit"] == {"name": "person", "rows": CAP, "missing": "null"}
    with pytest.raises((LedgerError, InvalidInput), match="person"):
        Trainer(net(), LOSS, plan(), ledger=tmp_path / "persons").fit(data)


def test_dropout_draws_for_each_row():
    """Rows of a person that are equal are not dropped out alike: with one draw for all, the sum would be sparse."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2))
    data = TensorDataset(torch.ones(400, 64), torch.ones(400, dtype=torch.long))
    chosen = by_unit(steps=1, rows=400)
    total = exact_sum(Trainer(model, LOSS, chosen, units=["one"] * 400, lr=0.1).fit, data)
    assert (np.abs(total) > 0).all()


def test_chunks_count_persons_and_the_search_knows_how_many_rows_they_have():
    tried = []
    largest_fast_size(lambda size: tried.append(size) or size / 1e9, 1e6, rows=100)
    assert (min(tried), max(tried)) == (1, 16)
    assert largest_fast_size(lambda size: None, 1000.0, rows=8) == 4
    inputs, labels, ids = table(PERSONS)
    run = Trainer(net(), LOSS, by_unit(rows=100), units=ids).fit(TensorDataset(inputs, labels))
    assert run.record.options["chunk_size"] <= 16


def test_a_step_on_no_persons_is_noise_alone():
    empty = TensorDataset(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.long))
    run = Trainer(net(), LOSS, by_unit(), units=[]).fit(empty)
    assert len(run.record.steps) == STEPS
    chosen = replace(plan(rate=1.0, steps=STEPS), unit=PrivacyUnit("person"))
    assert len(Trainer(net(), LOSS, chosen).fit([[], None, "rows"]).record.steps) == STEPS


def test_a_step_draws_the_same_whatever_another_person_is():
    """An augmentation's draws for the persons before are the same, whether the last one can be read or not."""

    class Noisy(list):
        def __getitem__(self, index):
            x, y = list.__getitem__(self, index)
            return x + torch.randn(WIDTH), y

    def run(last):
        inputs, labels, ids = table(PERSONS)
        rows = [*zip(inputs, labels, strict=True), last]
        return exact_sums(
            lambda: trained(Noisy(rows), "constant", units=[*ids, "last"], rate=1.0, test_seed=1, rows=10)
        )

    absent = run((torch.zeros(WIDTH), torch.tensor(0.5)))  # no class
    assert run((torch.zeros(WIDTH + 1), torch.tensor(1))) == pytest.approx(absent, abs=1e-6)


def test_the_examples_of_the_page_run():
    page = (Path(__file__).parents[2] / "docs" / "persons.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page.partition("## In PyTorch")[2].partition("\n## ")[0], re.DOTALL)
    assert len(examples) == 3
    exec("\n".join(examples), {})


def test_a_calibrated_plan_counts_persons():
    chosen = Plan.calibrate(
        Budget(3.0, 1e-5), size=100, batch_size=10, steps=2, clipping="constant", unit="patient", rows_per_unit=2
    )
    inputs, labels, ids = table(PERSONS)
    run = Trainer(net(), LOSS, chosen, units=ids).fit(TensorDataset(inputs, labels))
    assert run.record.plan["unit"]["name"] == "patient"
    assert run.epsilon <= 3.0


@pytest.mark.parametrize(("chosen", "found"), [([0, 3], [0]), ([3], []), ([0, 2, 3], [0, 2]), ([1, 3], [])])
def test_a_unit_of_no_rows_is_in_no_chunk(chosen, found):
    """Its place is not taken by the rows of the next, and behind the last there are none to take."""
    rows = TensorDataset(torch.arange(4.0)[:, None])
    units = UnitsById(rows, UnitRows(np.arange(4), np.array([0, 0, 2, 2]), 4))
    reader = UnitReader(units, Reader(rows, None, (torch.zeros(1, 1),)), CAP)
    chunks = list(reader.counted_chunks([np.array(chosen)]))
    assert [count for _, count in chunks] == ([len(found)] if found else [])
    for (real, (values,)), _ in chunks:
        assert values[:, 0, 0].tolist() == [float(number) for number in found]
        assert real.sum(1).tolist() == [2] * len(found)


class Unreadable(list):
    """A unit's own list of rows that raises whatever it is asked."""

    def __len__(self):
        raise SystemExit

    __iter__ = __getitem__ = __len__


@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_list_that_raises_is_a_null_unit_wherever_it_lies(place):
    persons = [[(torch.ones(WIDTH), torch.tensor(1))] * rows for rows in (1, 2, 5, 3)]
    persons.insert(place, Unreadable([1]))
    assert Trainer(net(), LOSS, by_unit(), lr=0.1).fit(persons).epsilon > 0


def test_how_many_rows_there_are_is_in_no_error():
    data = TensorDataset(torch.zeros(1234, WIDTH), torch.zeros(1234, dtype=torch.long))
    with pytest.raises(InvalidInput, match="one id for each row") as problem:
        Trainer(net(), LOSS, by_unit(), units=range(1233)).fit(data)
    assert "123" not in str(problem.value)
