"""Which whole numbers model and loss take, found on made-up samples; an error of torch itself is a dead process."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpilot import engine
from dpilot.engine import locality, ranges, within
from dpilot.engine.base import PerSample
from dpilot.engine.masking import LookingFirst
from dpilot.engine.ranges import Range, known
from dpilot.engine.within import Within
from tests.engine.test_locality import Alone, Ended

LOSS = nn.CrossEntropyLoss(reduction="none")
WHOLE = torch.iinfo(torch.int64)


def ended(work: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What a GPU does where torch refuses a number that was not looked at."""

    def deadly(*args: Any) -> Tensor:
        try:
            return work(*args)
        except (IndexError, RuntimeError) as error:
            looked = any(said in str(error) for said in ("that does not exist", "binary_cross_entropy: "))
            raise error if looked else Ended from None

    return deadly


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On the CPU always, where torch's own error stands for a process that ends; a GPU's are in train/test_gpu."""
    monkeypatch.setattr(within, "elsewhere", lambda *tensors: True)
    monkeypatch.setattr(locality, "on_accelerator", lambda model, batch: True)
    with torch.device("cpu"):
        yield


class Words(nn.Module):
    """Ids, and one embedding of them each."""

    def __init__(self, *sizes: int, classes: int = 3) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        self.last = nn.Linear(4, classes)

    def forward(self, *ids: Tensor) -> Tensor:
        parts = [
            table(each.int() if each.dtype == torch.uint8 else each)
            for table, each in zip(self.tables, ids, strict=True)
        ]
        result: Tensor = self.last(torch.stack([part.flatten(1, -2).mean(1) for part in parts]).sum(0))
        return result


def whole(*shape: int, dtype: torch.dtype = torch.long, fill: int = 0) -> Tensor:
    return torch.full(shape, fill, dtype=dtype)


def labelled(loss: Callable[..., Tensor], dtype: torch.dtype = torch.long, classes: int = 3) -> Range:
    """The range of labels of a linear classifier."""
    found = known(nn.Linear(2, classes), ended(loss), (torch.zeros(4, 2), whole(4, dtype=dtype)), 4, False)
    assert found is not None
    assert found.ranges[0] is None
    assert not found.floats_decide
    assert found.ranges[1] is not None
    return found.ranges[1]


def test_labels_are_the_classes_and_what_the_loss_ignores() -> None:
    assert labelled(LOSS) == Range(0, 2, (-100,), 0)
    assert labelled(LOSS, classes=1000) == Range(0, 999, (-100,), 0)
    assert labelled(LOSS, classes=1) == Range(0, 0, (-100,), 0)


@pytest.mark.parametrize("ignored", [255, -7, 40, 3, -1])
def test_what_a_loss_ignores_is_taken_beside_the_classes(ignored: int) -> None:
    found = labelled(nn.CrossEntropyLoss(reduction="none", ignore_index=ignored))
    labels = whole(7)
    labels[:] = torch.tensor([-8, -7, -1, 2, 3, 40, 255])
    taken = (labels >= 0) & (labels < 3) | (labels == ignored)
    assert torch.equal(found.outside(labels), ~taken)


def test_a_label_that_is_masked_by_hand_is_taken() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y.where(y != 255, 0), reduction="none") * (y != 255)

    assert labelled(loss) == Range(0, 2, (-100, 255), 0)


def test_subscripts_count_from_the_end_too() -> None:
    assert labelled(lambda out, y: out[torch.arange(len(y)), y]) == Range(-3, 2, (), 0)


def test_a_number_is_no_place_because_a_narrower_type_wraps() -> None:
    assert labelled(lambda out, y: out[torch.arange(len(y)), y.int()]) == Range(-3, 2, (), 0)


def test_arithmetic_takes_every_number() -> None:
    found = labelled(lambda out, y: (out[:, 0] - y) ** 2)
    assert found == Range(WHOLE.min, WHOLE.max, (), 0)
    assert found.everything(torch.int64)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_narrow_types_have_narrow_ends(dtype: torch.dtype) -> None:
    low = dtype != torch.uint8
    assert labelled(lambda out, y: LOSS(out, y.long()), dtype) == Range(0, 2, (-100,) if low else (), 0)
    kind = torch.iinfo(dtype)
    assert labelled(lambda out, y: out[:, 0] * y, dtype) == Range(kind.min, kind.max, (), 0)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_ids_are_the_vocabulary(kind: torch.dtype) -> None:
    batch = (whole(4, 5, dtype=kind), whole(4, 2, 3)), whole(4)
    found = known(Words(200, 50257), ended(LOSS), batch, 4, False)
    assert found is not None
    assert found.ranges == (Range(0, 199, (), 0), Range(0, 50256, (), 0), Range(0, 2, (-100,), 0))


def test_dicts_of_whole_batches() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return LOSS(model(batch["ids"]), batch["labels"]) * batch["mask"].sum(1)

    batch = {"ids": whole(4, 5), "mask": torch.ones(4, 5, dtype=torch.bool), "labels": whole(4), "shared": whole(9)}
    found = known(Words(30), ended(loss), batch, 4, True)
    assert found is not None
    assert found.ranges == (Range(0, 29, (), 0), None, Range(0, 2, (-100,), 0), None)


def test_numbers_of_a_sample_are_tried_together() -> None:
    def sums(out: Tensor, y: Tensor) -> Tensor:
        return out.gather(1, y.sum(1, True))[:, 0]

    def differences(out: Tensor, y: Tensor) -> Tensor:
        return out.gather(1, y.diff(dim=1).abs())[:, 0]

    batch = torch.zeros(4, 2), whole(4, 2)
    both = [known(nn.Linear(2, 5), ended(loss), batch, 4, False) for loss in (sums, differences)]
    assert [each.ranges[1] for each in both if each] == [Range(0, 2, (), 0), Range(0, 4, (), 0)]


def test_tensors_that_do_not_go_together_are_looked_at() -> None:
    def loss(out: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        return out.gather(1, (y[0] + y[1])[:, None])[:, 0]

    found = known(nn.Linear(2, 5), ended(loss), (torch.zeros(4, 2), (whole(4), whole(4))), 4, False)
    assert found is not None
    assert found.floats_decide


def test_few_passes_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, runs = list[Any](), list[Any]()
    fill, run = ranges.tried, ranges.Trial.run
    monkeypatch.setattr(ranges, "tried", lambda t, *values: tried.append((t.dim(), *values)) or fill(t, *values))
    monkeypatch.setattr(ranges.Trial, "run", lambda self, samples: runs.append(samples) or run(self, samples))
    known(Words(50257), LOSS, (whole(4, 6), whole(4)), 4, False)
    assert len(tried) == len(set(tried))
    assert len(tried) < len(runs) <= 30


@pytest.mark.parametrize("places", [1, 2, 3, 1000, 50257, 2**20])
def test_the_last_number_is_found_whatever_operations_name(places: int) -> None:
    for ends in ((), (places - 1,), (7, 12), (places + 100,)):
        up = ranges.furthest(lambda v: 0 <= v < places, 0, WHOLE.max, ends)
        down = ranges.furthest(lambda v: 0 >= v > -places, 0, WHOLE.min, [-e for e in ends])
        assert (up, down) == (places - 1, 1 - places)


def test_beyond_what_has_places_only_every_number_is_believed() -> None:
    assert ranges.furthest(lambda v: v < 2**40, 0, WHOLE.max, ()) == ranges.MOST
    assert ranges.furthest(lambda v: True, 0, WHOLE.max, ()) == WHOLE.max


def test_samples_of_at_least_one_are_made_up_too() -> None:
    """Lengths: there are none of 0."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return out.gather(1, (y - 1)[:, None])[:, 0]

    assert labelled(loss) == Range(1, 3, (), 1)
    x, kept = torch.randn(3, 2), torch.tensor([False, True, False])
    made = safe(nn.Linear(2, 3), loss)((x, torch.tensor([0, 3, 4])))
    assert torch.isfinite(made.norms).tolist() == kept.tolist()


def test_a_loss_that_goes_on_takes_no_more_for_it() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        try:
            return LOSS(out, y)
        except IndexError:
            return out[:, 0]

    assert labelled(loss) == Range(0, 2, (-100,), 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_large_floats_that_are_places_decide(sign: int) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return out.gather(1, (sign * y.nan_to_num().amax(1) > 1e3).long()[:, None] * 9)[:, 0]

    found = known(nn.Linear(2, 3), ended(loss), (torch.zeros(4, 2), torch.zeros(4, 1)), 4, False)
    assert found is not None
    assert found.floats_decide


def test_losses_that_need_gradients_have_them() -> None:
    model = nn.Linear(2, 3)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(out.sum(), model.weight, retain_graph=True)
        return LOSS(out, y) + slope.sum()

    with torch.no_grad():
        assert known(model, loss, (torch.zeros(4, 2), whole(4)), 4, False) is not None


class Poisoned(Tensor):
    """A tensor of whose values nothing may be read."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in ("__get__", "dim", "size", "is_floating_point", "is_complex", "type"):
            raise AssertionError(f"read by {name}")
        return super().__torch_function__(func, types, args, kwargs)


def test_nothing_of_the_batch_is_read_but_its_form() -> None:
    plain = torch.full((4, 2), math.nan), whole(4, fill=10**9)
    poisoned = tuple(t.as_subclass(Poisoned) for t in plain)
    expected = known(nn.Linear(2, 3), LOSS, (torch.zeros(4, 2), whole(4)), 4, False)
    made = ranges.batches.synthetic(plain, 4, 3, torch.Generator().manual_seed(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges.batches, "synthetic", lambda *_: made)
        assert known(nn.Linear(2, 3), LOSS, poisoned, 4, False) == expected
    assert known(nn.Linear(2, 3), LOSS, plain, 4, False) == expected


class Counting(nn.Module):
    """Changes a buffer, and draws random numbers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(2, 3), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.drawn = set[float]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.drawn |= {random.random(), np.random.random(), float(torch.rand(()))}
        result: Tensor = self.drop(self.inner(x))
        return result


def test_nothing_is_left_behind() -> None:
    model = Counting()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert known(model, LOSS, (torch.zeros(4, 2), whole(4)), 4, False) is not None
    assert float(model.calls) == 0.0
    assert model.training
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
    assert all(p.grad is None for p in model.parameters())
    random.random(), np.random.random(), torch.rand(())
    known(model, LOSS, (torch.zeros(4, 2), whole(4)), 4, False)
    assert len(model.drawn) == 3, "the same whatever was drawn before"


def test_what_is_found_is_found_under_the_runs_own_autocast() -> None:
    """This loss has no rule for bfloat16 as BCELoss has none under autocast: the range is none there."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if out.dtype == torch.bfloat16:
            raise RuntimeError("unsafe to autocast")
        return LOSS(out, y)

    batch = torch.zeros(4, 2), whole(4)
    assert known(nn.Linear(2, 3), loss, batch, 4, False) is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert known(nn.Linear(2, 3), loss, batch, 4, False) is None


def test_a_model_that_cannot_be_looked_at_is_left_as_it_is() -> None:
    model, batch = Alone(2, 3), (torch.randn(4, 2), whole(4))
    assert known(model, LOSS, batch, 4, False) is None
    runs = list[Any]()

    def run(chunk: Any) -> PerSample:
        runs.append(chunk)
        return engine.per_sample(model, LOSS, chunk)

    Within(model, LOSS, False).of(run, run)(batch)
    assert runs == [batch]


# chunks


def safe(model: nn.Module, loss: Callable[..., Tensor], **options: Any) -> Callable[[Any], PerSample]:
    run = partial(engine.per_sample, model, ended(loss), **options)
    return Within(model, ended(loss), options.get("per_batch", False)).of(run, run)


def same(one: PerSample, other: PerSample, kept: Tensor) -> bool:
    """Bit for bit: norms of those kept, and sums with the same weights."""
    weights = torch.where(kept, torch.linspace(0.2, 1.0, len(kept)), 0.0)
    sums = one.weighted_sum(torch.linspace(0.2, 1.0, len(kept))), other.weighted_sum(weights)
    equal = [torch.equal(sums[0][name], sums[1][name]) for name in one.names]
    return all(equal) and torch.equal(one.norms[kept], other.norms[kept])


@pytest.mark.parametrize("name", ["single-backward", "vmap", "loop"])
def test_a_record_with_another_label_is_null_and_the_others_are_as_beside_a_valid_one(name: str) -> None:
    model, x = nn.Linear(2, 3), torch.randn(6, 2)
    labels = torch.tensor([0, 7, 2, -1, 1, -100])
    made = safe(model, LOSS, engine=name)((x, labels))
    kept = torch.tensor([True, False, True, False, True, True])
    valid = engine.per_sample(model, LOSS, (x, labels.where(kept, 0)), name)
    assert torch.isinf(made.norms).tolist() == (~kept).tolist()
    assert all(torch.isinf(square).tolist() == (~kept).tolist() for square in made.squares.values())
    assert same(made, valid, kept)


@pytest.mark.parametrize("labels", [[5], [5, -1, 99]])
def test_chunks_of_bad_records_only_add_zeros(labels: list[int]) -> None:
    y = torch.tensor(labels)
    made = safe(nn.Linear(2, 3), LOSS)((torch.randn(len(y), 2), y))
    assert torch.isinf(made.norms).all()
    assert all(not total.any() for total in made.weighted_sum(torch.ones(len(y))).values())


def test_where_every_number_is_taken_none_is_compared() -> None:
    batch = torch.zeros(4, 2), whole(4)
    found = within.usual_for_others(batch, (None, Range(WHOLE.min, WHOLE.max, (), 0)))
    assert found[0] is batch
    assert found[1] is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_every_whole_type_is_compared_and_stays_what_it_is(dtype: torch.dtype) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return LOSS(out, y.long())

    labels = torch.tensor([0, 99, 2]).to(dtype)
    made = safe(nn.Linear(2, 3), loss, engine="loop")((torch.randn(3, 2), labels))
    assert torch.isinf(made.norms).tolist() == [False, True, False]
    chunk, _ = within.usual_for_others((labels,), (Range(0, 2, (), 0),))
    assert chunk[0].dtype == dtype
    assert chunk[0].long().tolist() == [0, 0, 2]


def test_looking_that_fails_makes_no_record_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("not on this device")

    monkeypatch.setattr(within, "known", fails)
    assert torch.isfinite(safe(nn.Linear(2, 3), LOSS)((torch.randn(3, 2), whole(3))).norms).all()


def test_an_empty_chunk_has_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within, "known", None)
    assert safe(nn.Linear(2, 3), LOSS)((torch.randn(0, 2), whole(0))).norms.shape == (0,)


def test_one_bad_id_makes_its_record_null_in_every_tensor() -> None:
    model, first, second = Words(20, 30), torch.randint(0, 20, (4, 5)), torch.randint(0, 30, (4, 2, 3))
    bad = second.clone()
    bad[2, 1, 1] = 30
    kept = torch.tensor([True, True, False, True])
    valid = engine.per_sample(model, LOSS, ((first, second), whole(4)))
    made = safe(model, LOSS)(((first, bad), whole(4)))
    assert torch.isinf(made.norms).tolist() == (~kept).tolist()
    assert same(made, valid, kept)


def test_what_is_taken_is_found_once_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    monkeypatch.setattr(within, "known", lambda *args: asked.append(args[3]) or known(*args))
    run = safe(nn.Linear(2, 3), LOSS)
    for n in (4, 2, 3, 4):
        run((torch.randn(n, 2), torch.full((n,), 8)))
    run((torch.randn(3, 2), whole(3, dtype=torch.uint8)))
    assert asked == [4, 3]


def probability(out: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy(out[:, 0].sigmoid(), y.float(), reduction="none")


@pytest.mark.parametrize("y", [torch.tensor([0, 1, 0]), torch.tensor([0.0, 0.3, 1.0])], ids=["whole", "floats"])
def test_floats_that_make_trouble_are_an_error_before_they_are_used(y: Tensor) -> None:
    model, x = nn.Linear(2, 1), torch.randn(3, 2)
    run = safe(model, probability)
    assert torch.isfinite(run((x, y)).norms).all()
    x[1] = math.nan
    with pytest.raises(IndexError, match="between 0 and 1"):
        run((x, y))


def test_where_made_up_records_cannot_be_looked_at_by_the_engine_nothing_changes() -> None:
    """The loss can, the engine cannot: all records would be null."""
    model, launched = nn.Linear(2, 1), list[Any]()

    def run(chunk: Any) -> PerSample:
        if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            raise NotImplementedError("no rule under this mode")
        launched.append(chunk)
        return engine.per_sample(model, probability, chunk)

    batch = torch.randn(3, 2), torch.tensor([0, 1, 0])
    assert torch.isfinite(Within(model, probability, False).of(run, run)(batch).norms).all()
    assert launched == [batch]


def test_a_loss_that_goes_on_after_trouble_is_found_out() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        try:
            return probability(out, y)
        except IndexError:
            return out[:, 0]

    run = safe(nn.Linear(2, 1), loss, engine="loop")
    with pytest.raises(IndexError):
        run((torch.full((3, 2), math.nan), torch.tensor([0, 1, 0])))


def test_chunks_are_not_looked_at_where_ranges_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    run = safe(nn.Linear(2, 3), LOSS)
    run((torch.randn(3, 2), whole(3)))

    def never(self: Any) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(LookingFirst, "__enter__", never)
    assert torch.isinf(run((torch.randn(3, 2), whole(3, fill=4))).norms).all()


def test_parts_that_are_no_tensors_are_left_as_they_are() -> None:
    model = nn.Linear(2, 3)
    batch = {"x": torch.randn(3, 2), "y": whole(3), "name": "a"}
    made = safe(model, lambda m, b: LOSS(m(b["x"]), b["y"]), per_batch=True)(batch)
    assert torch.isfinite(made.norms).all()


def test_on_the_cpu_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    run = partial(engine.per_sample, nn.Linear(2, 3), LOSS)
    assert Within(nn.Linear(2, 3), LOSS, False).of(run, run) is run
