"""What a GPU does with TF32 and bfloat16 products, tried on the CPU by cutting numbers as tensor cores do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpilot.engine import per_sample
from dpilot.engine.base import inflate
from dpilot.engine.batch import Chunk
from dpilot.engine.layers.base import Dense
from dpilot.engine.layers.conv import Correlation, Geometry, by_entry, convolution_use, patch_gram, unfold, worth_it
from dpilot.engine.layers.linear import Product, SharedInput, finish_bounds, gram_parts, gram_sums, product
from dpilot.engine.single_backward import Measured, Recorder, SideBySide
from dpilot.engine.trace import Pass
from dpilot.numerics import kernels, precision
from dpilot.numerics.devices import use_policy
from tests import devices
from tests.contracts.zoo import DEVICE, cross_entropy
from tests.devices import CPU, CUDA


def cut_product(a: Tensor, e: Tensor) -> Product:
    return Product(precision.truncate_tf32(a), precision.truncate_tf32(e), grade=precision.TF32)


def away(values: Tensor) -> Tensor:
    """The next TF32 numbers away from zero: the worst a kernel may make of its operands."""
    return precision.truncate_tf32(values * (1 + 2**-10 * (values != precision.truncate_tf32(values))))


@pytest.fixture(params=[precision.truncate_tf32, away], ids=["towards zero", "away from zero"])
def tensor_cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products see TF32 numbers only, however the operands came about."""
    fit = request.param
    monkeypatch.setattr(precision, "mm", lambda x, y: torch.mm(fit(x), fit(y)))
    monkeypatch.setattr(precision, "bmm", lambda x, y: torch.bmm(fit(x), fit(y)))
    with use_policy(cpu=replace(CPU, tf32=True), cuda=replace(CUDA, tf32=True)):
        yield


def test_cutting_keeps_ten_bits_and_never_grows() -> None:
    values = torch.randn(7, 33)
    kept = precision.truncate_tf32(values)
    assert torch.equal(precision.truncate_tf32(kept), kept)
    assert (kept.abs() <= values.abs()).all()
    assert ((values - kept).abs() <= 2**-10 * values.abs()).all()
    assert (values - kept).abs().max() > 2**-13 * values.abs().max()


def test_cutting_keeps_what_is_not_finite_not_finite() -> None:
    odd = torch.tensor([[math.nan, math.inf, -math.inf]])
    payload = torch.tensor([[0x7F800001, 0x7FFFFFFF, -1]], dtype=torch.int32).view(torch.float32)
    assert not torch.isfinite(precision.truncate_tf32(torch.cat([odd, payload]))).any()


@pytest.mark.parametrize(("tokens", "d", "p"), [(1, 64, 32), (5, 96, 64), (16, 256, 128), (40, 128, 512)])
@pytest.mark.parametrize("part", [1.0, 1e-2, 1e-4, 0.0])
@pytest.mark.usefixtures("tensor_cores")
def test_tf32_norms_bound_what_tf32_sums_add(tokens: int, d: int, p: int, part: float) -> None:
    torch.manual_seed(0)
    a = (torch.rand(5, 1, d) + 0.5).expand(5, tokens, d) + part * torch.randn(5, tokens, d)
    e = torch.randn(5, tokens, p)
    e = e - (e.mean(1, keepdim=True) if tokens > 1 else 0) + part * torch.randn(5, 1, p)
    use = cut_product(a, e)
    squares, kept = use.measure()
    for weight in (1.0, 0.7371, 3e-5):
        added = [kept.weighted_sum(weight * torch.eye(5)[i]).double().norm() / weight for i in range(5)]
        assert (inflate(squares).double() >= torch.stack(added)).all()


@pytest.mark.usefixtures("tensor_cores")
def test_tf32_norms_of_ordinary_tokens_are_tight() -> None:
    torch.manual_seed(0)
    use = cut_product(torch.randn(4, 64, 768), torch.randn(4, 64, 768))
    true = torch.bmm(use.errors.double().mT, use.inputs.double()).flatten(1).norm(dim=1)
    ours = inflate(use.measure()[0]).double()
    assert (ours >= true).all()
    assert (ours <= 1.01 * true).all()


@pytest.mark.usefixtures("tensor_cores")
def test_rounding_is_what_the_bound_is_for() -> None:
    """Without the part added for rounding, one token's sum exceeds its norm for some weight."""
    torch.manual_seed(0)
    a, e = precision.truncate_tf32(torch.rand(64, 1, 1)), precision.truncate_tf32(torch.rand(64, 1, 1))
    plain = Product(a, e).magnitude().double()
    weights = torch.rand(64)
    rounded = (precision.truncate_tf32(weights[:, None] * e[:, 0]) * a[:, 0]).double().flatten()
    nearest = ((weights[:, None] * e[:, 0]).bfloat16().float() * a[:, 0]).double().flatten()
    assert (rounded <= weights.double() * plain).all()  # cutting only shrinks
    assert (nearest > weights.double() * plain).any()  # rounding to nearest does not
    shave = precision.BFLOAT16.shave
    assert (nearest <= weights.double() * plain * (1 + shave)).all()


def test_norms_finished_together_are_those_finished_alone() -> None:
    torch.manual_seed(0)
    uses = [cut_product(torch.randn(4, 6, 40), torch.randn(4, 6, 30 + j)) for j in range(3)]
    parts = [gram_parts(u.inputs, u.errors, u.grade, rounds_inputs=False) for u in uses]
    together = finish_bounds(parts)
    alone = [u.measure()[0] for u in uses]
    assert all(torch.allclose(t, s, rtol=1e-6) for t, s in zip(together, alone, strict=True))


def test_small_gradients_side_by_side_are_the_same() -> None:
    torch.manual_seed(0)
    parts = {"b": Dense(torch.randn(5, 7)), "s": Dense(torch.randn(5)), "w": Dense(torch.randn(5, 2, 3)),
             "c": Dense(torch.randn(5, 7))}  # fmt: skip
    bundle = SideBySide.of(parts)
    for name, square in bundle.squares().items():
        assert torch.allclose(square, parts[name].measure()[0])
    shared = torch.rand(5)
    each = {name: torch.rand(5) for name in parts}
    for weights in (dict.fromkeys(parts, shared), each):
        sums = bundle.weighted_sums(weights)
        assert all(torch.allclose(sums[name], parts[name].weighted_sum(weights[name])) for name in parts)


def test_null_samples_side_by_side_add_exact_zeros() -> None:
    values = torch.randn(3, 4)
    values[1, 2] = math.nan
    bundle = SideBySide.of({"b": Dense(values)}).keep(torch.tensor([True, False, True]))
    total = bundle.weighted_sums({"b": torch.tensor([1.0, 0.0, 1.0])})["b"]
    assert torch.allclose(total, values[0] + values[2])


def test_measuring_joins_small_gradients_on_the_devices_named() -> None:
    found, joined = Measured(), Measured()
    with use_policy(**{DEVICE.type: replace(CPU, joins_small=False)}):
        found.add("b", [Dense(torch.ones(3, 4))])
    assert "b" in found.squares
    with use_policy(**{DEVICE.type: replace(CPU, joins_small=True)}):
        joined.add("b", [Dense(torch.ones(3, 4))])
        joined.finish()
    assert torch.allclose(joined.squares["b"], found.squares["b"])
    assert len(joined.side_by_side) == 1


@pytest.mark.parametrize(
    ("space", "kernel", "padding", "dilation"),
    [((7,), (3,), (1,), (2,)), ((6, 5), (3, 2), (1, 0), (1, 2)), ((4, 3, 5), (2, 3, 1), (0, 1, 0), (1, 1, 1))],
)
def test_entry_by_entry_is_the_unfolded_gradient(space, kernel, padding, dilation) -> None:
    torch.manual_seed(0)
    sizes = zip(space, kernel, padding, dilation, strict=True)
    positions = [s + 2 * p - d * (k - 1) for s, k, p, d in sizes]
    a, e = torch.randn(4, 3, *space).double(), torch.randn(4, 5, *positions).double()
    use = Correlation(a, e, Geometry(kernel, (1,) * len(space), padding, dilation, 1), 4)
    other = by_entry(a, e, kernel, padding, dilation)
    assert torch.allclose(other.gradients(0, 4), use.gradients(0, 4))
    weights = torch.rand(4).double()
    assert torch.allclose(other.weighted_sum(weights), use.weighted_sum(weights))
    assert torch.allclose(other.measure()[0], use.gradients(0, 4).flatten(1).square().sum(1))


@pytest.mark.parametrize(
    ("space", "kernel", "stride", "padding", "dilation"),
    [
        ((9,), (3,), (2,), (1,), (1,)),
        ((8, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
        ((6, 5), (3, 2), (2, 1), (1, 0), (1, 2)),
        ((4, 3, 5), (2, 3, 1), (1, 1, 2), (0, 1, 0), (1, 1, 1)),
    ],
)
def test_inner_products_of_patches_are_sums_of_those_of_pixels(space, kernel, stride, padding, dilation) -> None:
    torch.manual_seed(0)
    geometry = Geometry(kernel, stride, padding, dilation, 1)
    sizes = zip(space, kernel, stride, padding, dilation, strict=True)
    positions = tuple((s + 2 * p - d * (k - 1) - 1) // m + 1 for s, k, m, p, d in sizes)
    images = torch.randn(3, 5, *space).double()
    tokens = math.prod(positions)
    seen = unfold(images, geometry, positions).reshape(3, -1, tokens)
    found = patch_gram(images, geometry, positions)
    assert torch.allclose(found, seen.mT @ seen)
    assert found.stride()[2] == 1


@pytest.mark.parametrize("size", [2, 4])
def test_norms_from_pixels_bound_those_of_gradients(size: int) -> None:
    """Whether patches are unfolded or not, the norm is at least that of the gradient of the cut records."""
    with use_policy(**devices.tensor_cores()):
        check_pixels(size)


def check_pixels(size: int) -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = True
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    make = convolution_use(geometry, 4, transposed=False)
    use: Any = make((torch.randn(4, 64, size, size),), torch.randn(4, 96, size, size))
    assert use.grade is precision.TF32
    assert worth_it(use.inputs, geometry, (size, size)) == (size == 4)
    true = Correlation(use.inputs.double(), use.errors.double(), geometry, 4).gradients(0, 4).flatten(1).norm(dim=1)
    norms = inflate(finish_bounds([use.gram_parts()])[0]).double()
    assert (norms >= true * (1 + use.grade.shave / 50)).all()
    assert (norms <= true * 1.03).all()


def leaning(grade: precision.Grade, tokens: int, p: int) -> tuple[Tensor, float]:
    """Errors (1, p, 1, T) that nearly cancel, and a weight whose rounding makes those of the larger side larger."""
    whole = 1024 if grade is precision.TF32 else 128
    fit = precision.truncate_tf32 if grade is precision.TF32 else (lambda t: t.bfloat16().float())
    grid, weights = 1 + torch.arange(whole) / whole, torch.linspace(0.5, 1, 997)[:, None]
    moved = fit(grid * weights) / (grid * weights)
    best = int((moved.amax(1) - moved.amin(1)).argmax())
    up, down = float(grid[moved[best].argmax()]), float(grid[moved[best].argmin()])
    share = 0.55 * down / (0.45 * up + 0.55 * down)
    return torch.where(torch.rand(1, p, 1, tokens) < share, up, -down), float(weights[best])


@pytest.mark.parametrize("kernel", [1, 2], ids=["1x1", "1x2"])
@pytest.mark.parametrize(("tokens", "d", "p"), [(77, 256, 288), (49, 512, 2048), (77, 288, 256)])
@pytest.mark.parametrize("grade", [precision.TF32, precision.BFLOAT16], ids=["tf32", "bfloat16"])
def test_norms_of_convolutions_bound_sums_of_rounded_errors_whatever_the_widths_are(
    tokens: int, d: int, p: int, kernel: int, grade: precision.Grade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal inputs in every position: rounding of errors then moves the sum by far more than rounding of inputs."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if grade is precision.BFLOAT16 else torch.float32
    monkeypatch.setattr(precision, "use_grade", lambda _: precision.NOTHING)
    monkeypatch.setattr(precision, "bmm", lambda x, y: torch.bmm(*(precision.truncate_tf32(t.float()) for t in (x, y))))
    errors, weight = leaning(grade, tokens, p)
    inputs = torch.ones(1, d // kernel, 1, tokens + kernel - 1)
    geometry = Geometry((1, kernel), (1, 1), (0, 0), (1, 1), 1)
    use = Correlation(inputs.to(kind), errors.to(kind), geometry, 1, grade)
    added = float(use.weighted_sum(torch.tensor([weight])).double().norm()) / weight
    with use_policy(cpu=replace(CPU, gram_factor=12)):
        together, (alone, kept) = use.gram_parts(), use.measure()
    assert together is not None
    assert kept is use
    assert float(inflate(finish_bounds([together])[0])) >= added
    assert float(inflate(alone)) >= added


def test_the_settings_of_newer_names_are_put_back() -> None:
    backend = torch.backends.cuda.matmul
    if not hasattr(backend, "fp32_precision"):
        pytest.skip("this torch has the older names only")
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "tf32"
        with precision.use_full_precision():
            assert backend.fp32_precision == "ieee"
        assert backend.fp32_precision == "tf32"
    finally:
        backend.fp32_precision = before


@pytest.mark.parametrize("tokens", [1, 5, 16, 130, 197])
@pytest.mark.parametrize("rounds_inputs", [False, True])
def test_the_sums_of_gram_matrices_are_those_in_float64(tokens: int, rounds_inputs: bool) -> None:
    """By plain operations, and on a GPU by the kernel too, from matrices that are parts of wider ones."""
    torch.manual_seed(0)
    rows = torch.randn(3, tokens, 40), torch.randn(3, tokens, 24) * 1e-3
    a, e = (torch.bmm(r, r.mT) for r in rows)
    wide = [torch.full((3, tokens + 3, tokens + 3), math.nan) for _ in range(2)]
    for whole, part in zip(wide, (a, e), strict=True):
        whole[:, :tokens, :tokens] = part
    views = [whole[:, :tokens, :tokens] for whole in wide]
    roots = 1e-3, 2e-3
    kernel = kernels.gram_sums(*views, rounds_inputs, roots)
    assert (kernel is None) == (DEVICE.type == "cpu")
    x, y = a.double(), e.double()
    own = [t.diagonal(dim1=1, dim2=2).sqrt() + root for t, root in zip((x, y), roots, strict=True)]
    expected = (
        (x * y).sum((1, 2)),
        (y if rounds_inputs else x).square().sum((1, 2)),
        (own[0] * own[1]).sum(1),
        own[0 if rounds_inputs else 1].square().sum(1),
        (roots[0] * own[1] + roots[1] * own[0]).sum(1),
    )
    for found in filter(None, (gram_sums(*views, rounds_inputs, roots), kernel)):
        assert all(torch.allclose(s.double(), t, rtol=1e-5) for s, t in zip(found, expected, strict=True))


def test_a_gram_matrix_that_is_not_finite_keeps_its_sums_not_finite() -> None:
    a, e = torch.ones(2, 20, 20), torch.ones(2, 20, 20)
    a[1, 3, 4] = math.nan
    roots = 0.0, 0.0
    for found in filter(None, (kernels.gram_sums(a, e, False, roots), gram_sums(a, e, False, roots))):
        assert torch.isfinite(found[0]).tolist() == [True, False]


def test_small_records_keep_the_part_that_rounding_may_add() -> None:
    """Squares of Gram matrices vanish long before the gradient does: the bound may not vanish with them."""
    torch.manual_seed(0)
    for size in (1.0, 1e-9, 1e-13, 1e-15):
        use = cut_product(torch.randn(3, 16, 96), torch.randn(3, 16, 128) * size)
        true = torch.bmm(use.errors.double().mT, use.inputs.double()).flatten(1).norm(dim=1)
        assert (inflate(use.measure()[0]).double() >= true * (1 + use.grade.shave)).all()


def test_maps_of_one_input_share_its_record_and_its_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made: list[int] = []
    original = precision.gram
    monkeypatch.setattr(precision, "gram", lambda rows: made.append(rows.shape[2]) or original(rows))
    monkeypatch.setattr(kernels, "gram_products", lambda *_: None)
    shared = SharedInput(users=3)
    x, errors = torch.randn(4, 5, 40), [torch.randn(4, 5, 32) for _ in range(3)]
    monkeypatch.setattr(precision, "grade_of", lambda *_: (precision.TF32, torch.float32))
    uses = [product(x, e, 4, shared=shared) for e in errors]
    assert all(use.inputs is uses[0].inputs for use in uses)
    together = [use.measure()[0] for use in uses]
    assert made == [40, 32, 32, 32]
    alone = [product(x, e, 4).measure()[0] for e in errors]
    assert all(torch.equal(t, s) for t, s in zip(together, alone, strict=True))


def test_an_input_written_between_two_maps_is_not_shared() -> None:
    x, model = torch.ones(3, 2), nn.Linear(2, 2)
    with Pass.over(Chunk(model, cross_entropy, x, 3)) as watched:
        scope = Recorder(dict(model.named_parameters()), watched.tracker, watched.exits)
        first, again = scope.input_of_several(x, x), scope.input_of_several(x, x)
        assert first[1] is again[1]
        assert first[0] is again[0]
        x += 1
        assert scope.input_of_several(x, x)[1] is not first[1]
        half = x.bfloat16()
        assert scope.input_of_several(x, half)[0].dtype == torch.bfloat16


ON_GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="kernels run on a GPU only")


@ON_GPU
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7), (5, 11, 13), (4, 197, 768), (2, 3, 33, 35)])
def test_the_kernel_weighs_as_plain_products_do(shape: tuple[int, ...], kind: torch.dtype) -> None:
    rows, weights = torch.randn(shape).to(kind), torch.rand(shape[0])
    found = kernels.weighted(rows, weights)
    assert found is not None
    assert torch.equal(found, (rows.float() * weights.view(-1, *[1] * (len(shape) - 1))).to(kind))


@ON_GPU
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "padding"), [((2, 3, 5, 7), (1, 2)), ((3, 70, 9, 8), (0, 0)), ((1, 64, 32, 32), (1, 1))]
)
def test_the_kernel_lays_images_as_plain_copies_do(shape: Any, padding: Any, kind: torch.dtype) -> None:
    values = torch.randn(shape).to(kind)
    grid = [size + 2 * side for size, side in zip(shape[2:], padding, strict=True)]
    for start in (padding, (0, 0)):
        found = kernels.on_grid(values, grid, start)
        expected = torch.zeros(shape[0], *grid, shape[1]).to(kind)
        expected[:, start[0] : start[0] + shape[2], start[1] : start[1] + shape[3]] = values.movedim(1, -1)
        assert found is not None
        assert torch.equal(found, expected.flatten(1, -2))


@ON_GPU
@pytest.mark.parametrize("shape", [(3, 1, 5), (4, 197, 768), (2, 33, 70), (5, 512, 64)])
def test_the_kernel_cuts_as_plain_operations_do_and_sums_what_was_uncut(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(shape)
    found = precision.truncate_and_sum(values)
    assert found is not None
    assert torch.equal(found[0], precision.truncate_tf32(values))
    assert torch.allclose(found[1].double(), values.double().sum(1), rtol=1e-5, atol=1e-4)
    values[0, 0, 0] = math.nan
    cut, sums = precision.truncate_and_sum(values)
    assert torch.isnan(cut[0, 0, 0])
    assert torch.isnan(sums).sum() == 1


@ON_GPU
@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 197, 768), (6, 2, 33, 70)])
def test_the_kernel_sums_a_normalisation_as_float64_does(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, e = torch.randn(shape) * 3 + 5, torch.randn(shape)
    width = shape[-1]
    _, mean, rate = torch.native_layer_norm(x, (width,), None, None, 1e-5)
    found = kernels.norm_sums(x, e, mean, rate, 2 if shape[0] == 6 else shape[0])
    assert found is not None
    rows = torch.nn.functional.layer_norm(x.double(), (width,)) * e.double()
    for ours, theirs in zip(found, (rows, e.double()), strict=True):
        expected = theirs.view(found[0].shape[0], -1, width).sum(1)
        assert torch.allclose(ours.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@ON_GPU
@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 64, 1024), (7, 3, 1500), (2, 5, 1)])
def test_the_kernel_sums_rows_as_float64_does(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, e = torch.randn(shape), torch.randn(shape)
    found = kernels.row_sums(x, e)
    assert found is not None
    expected = (x.double() * e.double()).sum(-1), e.double().sum(-1)
    assert all(torch.allclose(a.double(), b, rtol=1e-4, atol=1e-4) for a, b in zip(found, expected, strict=True))


def test_group_normalisation_finds_the_gradients_that_a_loop_finds() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6 * 8, 5)).double()
    x = torch.randn(4, 6, 2, 4).double() * 3 + 5
    batch = (x, torch.arange(4))
    loss = nn.CrossEntropyLoss(reduction="none")
    ours, oracle = (per_sample(model, loss, batch, way) for way in ("single-backward", "loop"))
    assert torch.allclose(ours.norms, oracle.norms)
    weights = torch.rand(4).double()
    left, right = ours.weighted_sum(weights), oracle.weighted_sum(weights)
    assert all(torch.allclose(left[name], right[name]) for name in right)
