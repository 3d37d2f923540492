"""Made-up samples: what they refuse before a record is read, also where labels are masked or buffers remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dpilot import engine
from dpilot.engine import batch as batches
from dpilot.engine import made_up as examination
from dpilot.engine.batch import Chunk
from dpilot.engine.made_up import BoundsCheckMode, check_values_first
from dpilot.errors import UnsupportedModel
from dpilot.numerics.devices import use_policy
from tests.devices import checking_indices

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
IDS = 5
Batch = dict[str, Tensor]


class Sequence(nn.Module):
    def __init__(self, scripted: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(IDS, 8), nn.Linear(8, IDS)
        self.between = torch.jit.script(nn.ReLU()) if scripted else nn.ReLU()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.between(self.embed(ids)))


def written(labels: Tensor) -> Tensor:
    shifted = labels.new_full(labels.shape, 0)
    shifted[:] = labels
    return shifted


def same_places(labels: Tensor) -> Tensor:
    return torch.arange(labels.shape[1], device=labels.device).expand_as(labels)


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "ne": lambda y: y != -100,
    "setitem": lambda y: written(y) != -100,
    "copy_": lambda y: torch.empty_like(y).copy_(y) != -100,
    "not_equal": lambda y: torch.not_equal(y, -100),
    "sign": lambda y: torch.sign(y) >= 0,
    "sort": lambda y: y.sort(1)[0] != -100,
    "isin": lambda y: ~torch.isin(y, torch.tensor([-100], device=y.device)),
    "swapaxes": lambda y: y.swapaxes(0, 1).swapaxes(0, 1) != -100,
    "gather": lambda y: y.gather(1, same_places(y)) != -100,
    "scatter": lambda y: torch.zeros_like(y).scatter(1, same_places(y), y) != -100,
    "masked_fill_": lambda y: y.clone().masked_fill_(y == -100, -1) != -1,
    "division": lambda y: (y // 100) != -1,
    "repr": lambda y: torch.full_like(y, len(repr(y)) > 0) * y != -100,
}


def mean_count(kind: str) -> Callable[[nn.Module, Batch], Tensor]:
    """Losses divided by how many labels the samples of the batch have on average."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        y = batch["labels"]
        each = F.cross_entropy(model(batch["ids"]).flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return each.sum(1) / COUNTED[kind](y).sum(1).float().mean().clamp_min(1)

    return loss


def ids_and_labels() -> Batch:
    return {"ids": torch.randint(IDS, (4, 6)), "labels": torch.randint(IDS, (4, 6))}


@pytest.fixture(params=["as it is", "as on a GPU"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """On the CPU nothing is looked at first; the second time it is, as it would be on a GPU."""
    with use_policy(**(checking_indices() if request.param == "as on a GPU" else {})):
        yield str(request.param)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("kind", COUNTED)
def test_a_mean_over_the_labels_of_all_samples_is_refused_however_they_are_counted(kind: str, scripted: bool) -> None:
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Sequence(scripted), mean_count(kind), ids_and_labels(), per_batch=True)


def own_mean(model: nn.Module, batch: Batch) -> Tensor:
    y = batch["labels"]
    each = F.cross_entropy(model(batch["ids"]).flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return each.sum(1) / (y != -100).sum(1).clamp_min(1)


@pytest.mark.usefixtures("where")
def test_a_mean_over_a_samples_own_labels_is_taken() -> None:
    assert torch.isfinite(engine.per_sample(Sequence(False), own_mean, ids_and_labels(), per_batch=True).norms).all()


def mean_mask(out: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
    labels, mask = y
    losses = F.cross_entropy(out.transpose(1, 2), labels, reduction="none") * mask
    return losses.sum(1) * mask.shape[0] / mask.sum()


@pytest.mark.usefixtures("where")
def test_a_mean_over_the_mask_of_all_samples_is_refused() -> None:
    made = ids_and_labels()
    batch = made["ids"], (made["labels"], torch.rand(4, 6) < 0.5)
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Sequence(False), mean_mask, batch)


def picked(model: nn.Module, batch: Batch) -> Tensor:
    """Divides by the mean count of rows that are picked by number: whose they are is not known."""
    y = batch["labels"]
    each = F.cross_entropy(model(batch["ids"]).flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    counts = (y.index_select(0, torch.arange(len(y), device=y.device)) != -100).sum(1)
    return each.sum(1) / counts.float().mean().clamp_min(1)


@pytest.mark.usefixtures("where")
def test_a_mean_over_rows_that_are_picked_is_taken_one_sample_at_a_time() -> None:
    model, batch = Sequence(False), ids_and_labels()
    batch["labels"][0, 1:] = -100
    ps = engine.per_sample(model, picked, batch, per_batch=True)
    assert ps.engine in ("vmap", "loop")
    alone = [engine.per_sample(model, picked, batches.rows(batch, 4, i, i + 1), per_batch=True) for i in range(4)]
    assert torch.allclose(ps.norms, torch.cat([each.norms for each in alone]), rtol=1e-5)


class Relative(nn.Module):
    """Attention with relative positions: negative whole numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.bias, self.head = nn.Linear(4, 4), nn.Embedding(7, 1), nn.Linear(4, 1)
        self.side = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        apart = place[None] - place[:, None]
        bucket = (torch.sign(apart) * torch.log2(apart.abs().float() + 1).long()).clamp(-3, 3) + 3
        bias = self.bias(bucket.expand(x.shape[0], -1, -1)).squeeze(-1) + self.side[apart]
        scores = (self.inner(x) @ x.mT + bias).masked_fill(~mask[:, None, :], -1e4)
        return self.head(scores.softmax(-1) @ x).squeeze(-1)


def mean_length(model: nn.Module, batch: Batch) -> Tensor:
    kept = batch["mask"].float()
    return ((model(batch["x"], batch["mask"]) - batch["y"]).square() * kept).sum(1) / kept.sum(1).mean()


def own_length(model: nn.Module, batch: Batch) -> Tensor:
    kept = batch["mask"].float()
    return ((model(batch["x"], batch["mask"]) - batch["y"]).square() * kept).sum(1) / kept.sum(1).clamp_min(1)


@pytest.mark.usefixtures("where")
def test_negative_numbers_of_the_model_hide_no_mask() -> None:
    batch = {"x": torch.randn(4, 6, 4), "mask": torch.ones(4, 6, dtype=torch.bool), "y": torch.randn(4, 6)}
    assert engine.per_sample(Relative(), own_length, batch, per_batch=True).engine == "single-backward"
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Relative(), mean_length, batch, per_batch=True)


def rectangle(model: nn.Module, batch: Batch) -> Tensor:
    """Negative subscripts, masked labels, a mean over all of them."""
    y = batch["labels"]
    scores = model(batch["x"], torch.ones_like(y, dtype=torch.bool))
    return (scores * (y != -100)).sum(1) / (y != -100).sum(1).float().mean()


@pytest.mark.usefixtures("where")
def test_negative_subscripts_hide_no_label() -> None:
    batch = {"x": torch.randn(4, 6, 4), "labels": torch.randint(2, (4, 6))}
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Relative(), rectangle, batch, per_batch=True)


def ours(labels: Tensor) -> dict[str, Callable[[], Any]]:
    """Uses of labels as places, all of which fail on the CPU if one of them is -100."""
    table, wide = torch.eye(3), torch.zeros(4, 3)
    ones = torch.ones_like(labels)
    return {
        "embedding": lambda: F.embedding(labels, table),
        "embedding_bag": lambda: F.embedding_bag(labels[:, None], table),
        "getitem": lambda: table[labels],
        "getitem behind a mask": lambda: wide[None][torch.ones(1, 4, dtype=torch.bool)][:, labels],
        "setitem": lambda: wide.__setitem__((slice(None), labels), 1.0),
        "gather": lambda: wide.gather(1, labels[:, None]),
        "take": lambda: torch.take(wide, labels),
        "scatter_": lambda: torch.zeros(4, 3).scatter_(1, labels[:, None], 1.0),
        "scatter_add": lambda: wide.scatter_add(1, labels[:, None], torch.ones(4, 1)),
        "one_hot": lambda: F.one_hot(labels, 3),
        "index_select": lambda: table.index_select(0, labels),
        "index_add": lambda: table.index_add(0, labels, torch.ones(4, 3)),
        "put": lambda: table.put(labels, torch.ones(4)),
        "cross_entropy": lambda: F.cross_entropy(wide, labels, ignore_index=-1),
        "nll_loss of images": lambda: F.nll_loss(wide[:, :, None, None], labels[:, None, None], ignore_index=-1),
        "multi_margin_loss": lambda: F.multi_margin_loss(wide, labels),
        "multilabel_margin_loss": lambda: F.multilabel_margin_loss(wide, labels[:, None].expand(4, 3)),
        "repeat_interleave": lambda: torch.repeat_interleave(ones, labels),
    }


@pytest.mark.parametrize("kind", ours(torch.zeros(4, dtype=torch.long)))
def test_a_place_that_does_not_exist_is_found_before_it_is_used(kind: str) -> None:
    good, negative, large = torch.tensor([0, 1, 2, 1]), torch.tensor([0, -100, 2, 1]), torch.tensor([0, 1, 156, 1])
    with BoundsCheckMode():
        ours(good)[kind]()
        with pytest.raises((IndexError, RuntimeError), match=r"a place that does not exist|must be non-negative"):
            ours(negative)[kind]()
        if kind not in ("repeat_interleave", "one_hot"):
            with pytest.raises(IndexError, match="a place that does not exist"):
                ours(large)[kind]()


def test_scripts_are_looked_into() -> None:
    """On the CPU: elsewhere the first of them would end the process."""
    with torch.device("cpu"):
        scripted, missing = torch.jit.script(nn.Embedding(3, 2)), torch.tensor([-100])
    with pytest.raises(RuntimeError) as itself:
        scripted(missing)
    with pytest.raises(RuntimeError) as looked, BoundsCheckMode():
        scripted(missing)
    assert "index out of range" in str(itself.value)
    assert "index out of range" not in str(looked.value)
    with pytest.raises(IndexError, match="embedding: a place that does not exist"):
        check_values_first(lambda: scripted(missing))


def taken(value: float) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Uses of a number between 0 and 1, all of which end the process on a GPU if it is not; what is said of others."""
    x = torch.full((2, 3), 0.5)
    x[1, 2] = value
    half, whole = torch.full((2, 3), 0.5), x.long()
    image = torch.ones(1, 1, 2, 2)
    return {
        "binary_cross_entropy": ("not between 0 and 1", lambda: F.binary_cross_entropy(x, half)),
        "binary_cross_entropy targets": ("not between 0 and 1", lambda: F.binary_cross_entropy(half, x)),
        "bernoulli": ("not between 0 and 1", lambda: torch.bernoulli(x)),
        "bernoulli_": ("not between 0 and 1", lambda: torch.empty(2, 3).bernoulli_(x)),
        "multinomial": ("negative, not finite", lambda: torch.multinomial(x, 2)),
        "multinomial of nothing": ("all 0", lambda: torch.multinomial((x[:, 2:] >= 0).float(), 1)),
        "poisson": ("must be non-negative", lambda: torch.poisson(x)),
        "_assert_async": ("an assertion that fails", lambda: torch._assert_async((x >= 0).all())),
        "masked_scatter": ("fewer numbers", lambda: x.masked_scatter(x != 0.5, torch.ones(int(value == 0.25)))),
        "max_unpool2d": (
            "a place that does not exist",
            lambda: F.max_unpool2d(image, whole.sum().expand(1, 1, 2, 2), 2),
        ),
    }


@pytest.mark.parametrize("kind", taken(0.25))
def test_a_number_that_is_not_taken_is_found_before_it_is_used(kind: str) -> None:
    bad = (-0.25, math.nan, -math.inf) if kind not in ("masked_scatter", "max_unpool2d") else (-2.0,)
    with BoundsCheckMode():
        taken(0.25)[kind][1]()
        for value in bad:
            trouble, use = taken(value)[kind]
            with pytest.raises(IndexError, match=f"^{kind.split()[0]}_?: .*{trouble}"):
                use()


def test_numbers_that_are_only_written_over_are_not_looked_at() -> None:
    with BoundsCheckMode():
        for made in (torch.full((3,), 9.0).bernoulli_(), torch.bernoulli(torch.full((3,), 9.0), 0.5)):
            assert set(made.tolist()) <= {0.0, 1.0}
        assert torch.repeat_interleave(torch.tensor([2, 1], dtype=torch.int32)).tolist() == [0, 0, 1]


@pytest.mark.parametrize("offsets", [[1, 2], [0, 2, 1], [0, 9], [0, -1, 2]])
def test_bags_that_do_not_ascend_are_found_before_they_are_used(offsets: list[int]) -> None:
    ids, table = torch.tensor([0, 1, 1]), torch.eye(3)
    with BoundsCheckMode():
        assert F.embedding_bag(ids, table, torch.tensor([0, 0, 2, 3]), include_last_offset=True).shape == (3, 3)
        with pytest.raises(IndexError, match=r"offsets .* rows, with padding_idx"):
            F.embedding_bag(ids, table, torch.tensor(offsets))
        with pytest.raises(IndexError, match="a place that does not exist"):
            F.embedding_bag(ids + 2, table, torch.tensor([0, 2]))


@pytest.fixture
def _as_on_a_gpu() -> Iterator[None]:
    with use_policy(**checking_indices()):
        yield


class Ended(BaseException):
    """What a bad number does on a GPU: nothing goes on after it."""


class Placed(nn.Module):
    """Turns floats into places, in the modes that it is told; an error of torch itself ends everything."""

    def __init__(self, *modes: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.modes, self.inner, self.drop = modes, nn.Linear(64, 2), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(self.drop(x.repeat(1, 32)))
        if self.training not in self.modes:
            return out
        try:
            return out.gather(1, self.places(x))
        except (IndexError, RuntimeError) as error:
            raise error if "a place that does not exist" in str(error) else Ended from None

    def places(self, x: Tensor) -> Tensor:
        return (10 * x).long()


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    "model", [lambda: Placed(True), lambda: Placed(False, dropout=0.5)], ids=["training", "evaluating"]
)
def test_made_up_places_are_looked_at_before_they_are_used(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(UnsupportedModel, match=r"cannot run on made-up samples .*gather: a place that does not exist"):
        engine.per_sample(model(), distance, (torch.zeros(3, 2), torch.zeros(3)), "single-backward")


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_places_are_looked_at_before_another_engine_is_tried() -> None:
    batch = torch.zeros(3, 2), torch.zeros(3)
    ps = engine.per_sample(Placed(True), distance, batch)
    assert ps.engine == "loop"
    assert "gather: a place that does not exist" in ps.reason


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_mask_that_makes_a_bad_place_says_nothing() -> None:
    class LastOne(Placed):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            self.last = mask.long().sum(1, keepdim=True) - 1
            return super().forward(x)

        def places(self, x: Tensor) -> Tensor:
            return self.last

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["x"], batch["mask"])[:, 0]

    batch = {"x": torch.zeros(3, 2), "mask": torch.ones(3, 1, dtype=torch.bool)}
    assert engine.per_sample(LastOne(True), loss, batch, per_batch=True).engine == "single-backward"


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_made_up_offsets_are_looked_at_and_refused_with_a_remedy() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["ids"], batch["offsets"]).sum(1)

    batch = {"first": torch.zeros(4, 5), "ids": torch.zeros(12, dtype=torch.long), "offsets": torch.arange(0, 12, 3)}
    assert examination.sizes(Chunk(nn.EmbeddingBag(8, 5), loss, batch, 4))[0] == 7
    made_up = batches.synthetic(batch, 4, 7, torch.Generator("cpu").manual_seed(0))["offsets"]
    assert bool(made_up[0]) or bool((made_up.diff() < 0).any()), "made-up offsets that ascend show nothing"
    with pytest.raises(UnsupportedModel, match=r"IndexError: _embedding_bag: offsets .* rows, with padding_idx"):
        engine.per_sample(nn.EmbeddingBag(8, 5), loss, batch, "single-backward", per_batch=True)


class Alone(nn.Linear):
    """Cannot run where it is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        if any(isinstance(mode, BoundsCheckMode) for mode in _get_current_dispatch_mode_stack()):
            raise NotImplementedError("no rule for this operation under this mode")
        return super().forward(x)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_model_that_cannot_be_looked_at_keeps_its_engine() -> None:
    batch = torch.randn(3, 2), torch.zeros(3)
    assert engine.per_sample(Alone(2, 1), distance, batch).engine == "single-backward"
    assert engine.self_check(Alone(2, 1), distance, batch) == []


def test_a_verdict_is_found_where_nobody_looks() -> None:
    model, batch = Alone(2, 1), (torch.randn(3, 2), torch.zeros(3))
    assert check_values_first(lambda: engine.per_sample(model, distance, batch)).engine == "single-backward"


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("at", ["once", "other samples", "not finite"])
def test_the_self_check_looks_before_it_uses(at: str) -> None:
    class Least(Placed):
        def places(self, x: Tensor) -> Tensor:
            bad = {"once": x < 9, "other samples": x > 2.5, "not finite": x.isnan()}[at]
            return bad.any(1, keepdim=True).long() * 100

    (problem,) = engine.self_check(Least(True), distance, (torch.zeros(1, 2), torch.zeros(1)))
    assert "IndexError: gather: a place that does not exist" in problem.what


def test_labels_of_a_spelling_are_looked_at() -> None:
    """Where torch reads beyond its memory, on the CPU too."""
    sounds, lengths = torch.zeros(5, 2, 3).log_softmax(-1), torch.tensor([2, 2])
    with BoundsCheckMode():
        F.ctc_loss(sounds, torch.ones(2, 2, dtype=torch.long), lengths + 3, lengths)
        with pytest.raises(IndexError, match="_ctc_loss"):
            F.ctc_loss(sounds, torch.full((2, 2), -100), lengths + 3, lengths)


def test_a_label_that_a_loss_ignores_is_no_place() -> None:
    labels = torch.full((4,), -100)
    with BoundsCheckMode():
        assert not F.cross_entropy(torch.ones(4, 3), labels, reduction="none").any()
        with pytest.raises(IndexError, match="nll_loss"):
            F.cross_entropy(torch.ones(4, 3), labels, ignore_index=-1)


def looked_up(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["ids"]).flatten(1).gather(1, batch["labels"]).sum(1)


def looked_up_where_it_is_one(model: nn.Module, batch: Batch) -> Tensor:
    y = batch["labels"]
    return (model(batch["ids"]).flatten(1).gather(1, y.clamp_min(0)) * (y >= 0)).sum(1) / (y >= 0).float().mean()


@pytest.mark.usefixtures("where")
def test_a_label_that_is_looked_up_is_never_negative() -> None:
    """On a GPU -100 as an index would end the process; a loss that guards against it is judged with it."""
    gradients = engine.per_sample(Sequence(False), looked_up, ids_and_labels(), per_batch=True)
    assert gradients.engine == "single-backward"
    assert torch.isfinite(gradients.norms).all()
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Sequence(False), looked_up_where_it_is_one, ids_and_labels(), per_batch=True)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_model_that_cannot_be_looked_at_is_judged_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:

    def fails(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError("no rule for this operation under this mode")

    monkeypatch.setattr(BoundsCheckMode, "__torch_dispatch__", fails)
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Sequence(False), mean_count("ne"), ids_and_labels(), per_batch=True)


def test_nothing_is_looked_at_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.get_default_device().type != "cpu":
        pytest.skip("there -100 must be looked at")
    looks = list[BoundsCheckMode]()
    monkeypatch.setattr(BoundsCheckMode, "__enter__", lambda self: looks.append(self))
    monkeypatch.setattr(BoundsCheckMode, "__exit__", lambda *_: None)
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Sequence(False), mean_count("ne"), ids_and_labels(), per_batch=True)
    assert not looks


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_masks_are_tried_on_a_gpu_where_nothing_can_be_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(BoundsCheckMode, "__enter__", never)
    batch = {"x": torch.randn(4, 6, 4), "mask": torch.ones(4, 6, dtype=torch.bool), "y": torch.randn(4, 6)}
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Relative(), mean_length, batch, per_batch=True)


def by_data(module: nn.Module, x: Tensor) -> None:
    module.seen.data.copy_(torch.maximum(module.seen, x))


def by_other_data(module: nn.Module, x: Tensor) -> None:
    module.seen.data = torch.maximum(module.seen, x)


def by_larger_data(module: nn.Module, x: Tensor) -> None:
    module.seen.data = torch.maximum(module.seen, x).expand(3).clone()


def by_view(module: nn.Module, x: Tensor) -> None:
    module.seen.detach().copy_(torch.maximum(module.seen, x))


def by_name(module: nn.Module, x: Tensor) -> None:
    module.seen = torch.maximum(module.seen, x)


def by_numpy(module: nn.Module, x: Tensor) -> None:
    module.seen.numpy()[...] = max(float(module.seen), float(x))


def by_a_new_one(module: nn.Module, x: Tensor) -> None:
    if x > module.seen:
        module.register_buffer("another", x)


def by_one_that_was_none(module: nn.Module, x: Tensor) -> None:
    module.later = x if x > module.seen else None


def by_deletion(module: nn.Module, x: Tensor) -> None:
    if x > module.seen and "other" in module._buffers:
        del module.other


def by_saving_it(module: nn.Module, x: Tensor) -> None:
    module.register_buffer("other", module.other, persistent=bool(x > module.seen))


IN_TENSORS = [by_data, by_other_data, by_larger_data, by_view, by_name]
IN_PYTHON = [by_numpy, by_a_new_one, by_one_that_was_none, by_deletion, by_saving_it]
WRITES = IN_TENSORS + IN_PYTHON


class Peak(nn.Module):
    """Remembers the largest number it saw, if that is larger than where it starts."""

    def __init__(self, write: Callable[[nn.Module, Tensor], None], start: float) -> None:
        super().__init__()
        self.write, self.inner = write, nn.Linear(2, 1)
        self.register_buffer("seen", torch.tensor(start))
        self.register_buffer("later", None)
        self.register_buffer("other", torch.ones(2), persistent=False)
        self.register_buffer("spread", torch.tensor([3.0]).expand(4))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x.detach().abs().max())
        kept = [self.seen, getattr(self, "another", None), self.later, getattr(self, "other", None)]
        return self.inner(x) * sum(1 + each.sum() for each in kept if each is not None)


def distance(out: Tensor, y: Tensor) -> Tensor:
    return (out[:, 0] - y).square()


@pytest.mark.parametrize("name", ["auto", "single-backward", "loop"])
@pytest.mark.parametrize("write", WRITES)
def test_every_buffer_is_put_back_however_it_was_written(write: Any, name: str) -> None:
    if write is by_numpy and torch.get_default_device().type != "cpu":
        pytest.skip("numpy writes into no memory but the CPU's")
    model = Peak(write, 5e8)
    before, saved = dict(model.named_buffers()), list(model.state_dict())
    batch = torch.full((3, 2), 1.2e9), torch.zeros(3)
    for _ in range(2):
        with suppress(UnsupportedModel):  # then it ran on made-up samples only, which leave nothing either
            engine.per_sample(model, distance, batch, name)
        after = dict(model.named_buffers())
        assert list(after) == list(before)
        assert list(model.state_dict()) == saved
        assert all(after[kind] is buffer for kind, buffer in before.items())
        assert float(model.seen) == 5e8
        assert model.seen.shape == ()
        assert model.later is None


class Counts(nn.Module):
    """Counts the ids it saw, or the records."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.embed, self.head = what, nn.Embedding(10, 3), nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(10))

    def forward(self, ids: Tensor) -> Tensor:
        if self.what == "ids":
            self.seen += torch.bincount(ids.flatten(), minlength=10)
        elif self.what == "rows":
            self.seen += ids.shape[0]
        return self.head(self.embed(ids).mean(1))


def class_loss(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


@pytest.mark.parametrize("name", ["auto", "single-backward", "vmap", "loop"])
@pytest.mark.parametrize("what", ["ids", "rows"])
def test_no_engine_leaves_a_count_in_a_buffer(what: str, name: str) -> None:
    model = Counts(what)
    if name == "vmap" and what == "ids":
        pytest.skip("torch.func cannot run this model")
    batch = torch.randint(2, 10, (6, 4)), torch.randint(2, (6,))
    with suppress(UnsupportedModel):  # refusing is as good
        engine.per_sample(model, class_loss, batch, name).weighted_sum(torch.ones(6))
    assert torch.equal(model.seen, torch.zeros(10))


@pytest.mark.parametrize("start", [0.0, 5.0])
@pytest.mark.parametrize("write", IN_TENSORS)
def test_a_buffer_that_keeps_what_is_large_is_refused(write: Any, start: float) -> None:
    model = Peak(write, start)
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(model, distance, (torch.zeros(3, 2), torch.zeros(3)))
    assert float(model.seen) == start


@pytest.mark.parametrize("write", IN_PYTHON)
def test_what_python_keeps_in_a_buffer_is_computed_one_sample_at_a_time(write: Any) -> None:
    if write is by_numpy and torch.get_default_device().type != "cpu":
        pytest.skip("numpy writes into no memory but the CPU's")
    model, x, y = Peak(write, 5.0), torch.tensor([[1.0, 2.0], [9.0, 1.0], [3.0, 4.0]]), torch.zeros(3)
    ps = engine.per_sample(model, distance, (x, y))
    assert ps.engine == "loop"
    alone = [engine.per_sample(model, distance, (x[i : i + 1], y[i : i + 1])).norms for i in range(3)]
    assert torch.allclose(ps.norms, torch.cat(alone))
    assert float(model.seen) == 5.0


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(5e8))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.maximum(self.seen, x.abs().max())
        return x


def test_buffers_of_scripts_are_put_back() -> None:
    model = nn.Sequential(torch.jit.script(Written()), nn.Linear(2, 1))
    engine.per_sample(model, distance, (torch.full((3, 2), 1.2e9), torch.zeros(3)), "loop")
    assert float(model[0].seen) == 5e8


def counts_calls(module: nn.Module, x: Tensor) -> None:
    module.seen.add_(1)


def test_a_buffer_that_counts_calls_is_put_back_and_not_refused() -> None:
    model = Peak(counts_calls, 5.0)
    engine.per_sample(model, distance, (torch.zeros(3, 2), torch.zeros(3)), "single-backward")
    assert float(model.seen) == 5.0


class Scaled(nn.Module):
    """Multiplies by a buffer that nothing writes to; its backward pass needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def test_putting_back_leaves_a_second_backward_pass_possible() -> None:
    ps = engine.per_sample(Scaled(), distance, (torch.randn(3, 2), torch.zeros(3)), low_memory=True)
    assert torch.isfinite(ps.weighted_sum(torch.full((3,), 0.3))["inner.weight"]).all()


class Small(nn.Module):
    """Takes small numbers only, and may remember their sum."""

    def __init__(self, remembers: bool) -> None:
        super().__init__()
        self.remembers, self.inner = remembers, nn.Linear(2, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 5:
            raise ValueError("too large")
        if self.remembers:
            self.seen += x.detach().sum()
        return self.inner(x)


def test_a_model_that_takes_small_numbers_only_is_judged_by_those() -> None:
    batch = torch.zeros(3, 2), torch.zeros(3)
    assert engine.per_sample(Small(False), distance, batch).engine == "loop"
    with pytest.raises(UnsupportedModel, match="depends on the others"):
        engine.per_sample(Small(True), distance, batch)


@pytest.mark.parametrize("seed", [5, 12, 15])
def test_dropout_that_leaves_nothing_is_random_all_the_same(seed: int) -> None:
    """The losses of a few samples are the same twice where everything is dropped."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.8))
    assert engine.per_sample(model, distance, (torch.randn(3, 4), torch.zeros(3))).engine == "single-backward"
