"""Values that leave torch and come back, parts that cannot be watched, and other threads."""

from __future__ import annotations

import copy
import ctypes
import io
import json
import pickle
import random
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tests.attacks.case import Case, Net, attack, flagging, mixing, not_held
from tests.functions import Identity


@attack
def list_and_back() -> Case:
    """tolist, a mean in Python, and back."""

    def body(m: Net, x: Tensor) -> Tensor:
        rows = x.detach().tolist()
        return m.a(x) - torch.tensor([sum(column) / len(rows) for column in zip(*rows, strict=True)])

    return mixing(body)


@attack
def numpy_and_back() -> Case:
    """numpy, a mean there, and back."""
    return mixing(lambda m, x: m.a(x) - torch.from_numpy(x.detach().numpy().mean(0)))


@attack
def array_protocol() -> Case:
    """np.asarray of the batch, reversed."""
    return mixing(lambda m, x: m.a(x) * torch.tensor(np.asarray(x.detach())[::-1].copy()))


@attack
def numbers_by_item() -> Case:
    """Every number by item()."""
    return mixing(lambda m, x: m.a(x) - sum(float(v) for v in x.detach().flatten()) / x.numel())


@attack
def python_branch_on_a_sum() -> Case:
    """if x.sum() > 0."""
    return mixing(lambda m, x: m.a(x) if x.detach()[:, 0].abs().sum() < 50 else -m.a(x))


@attack
def python_sort() -> Case:
    """sorted() over rows of Python numbers."""
    return mixing(lambda m, x: m.a(x) * torch.tensor(sorted(x.detach().tolist())))


@attack
def dlpack_and_back() -> Case:
    """Through a dlpack capsule."""
    return mixing(lambda m, x: m.a(x) - torch.from_dlpack(np.from_dlpack(x.detach()).mean(0)))


@attack
def pickled_and_back() -> Case:
    """Through pickle, with the rows in another order."""
    return mixing(lambda m, x: m.a(x) * pickle.loads(pickle.dumps(x.detach())).flip(0))


@attack
def saved_and_loaded() -> Case:
    """Through torch.save into memory."""

    def body(m: Net, x: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(x.detach(), file)
        file.seek(0)
        return m.a(x) * torch.load(file).flip(0)

    return mixing(body)


@attack
def text_and_back() -> Case:
    """Through JSON text."""
    return mixing(lambda m, x: m.a(x) * torch.tensor(json.loads(json.dumps(x.detach().tolist()))).flip(0))


@attack
def raw_memory() -> Case:
    """The floats of the batch read by their address."""

    def body(m: Net, x: Tensor) -> Tensor:
        rows = x.detach().contiguous()
        numbers = (ctypes.c_float * rows.numel()).from_address(rows.data_ptr())
        return m.a(x) - sum(numbers) / rows.numel()

    return mixing(body)


@attack
def storage_and_back() -> Case:
    """The untyped storage of the batch, viewed again with its rows shifted."""

    def body(m: Net, x: Tensor) -> Tensor:
        rows = torch.cat([x.detach(), x.detach()[:1]]).contiguous()
        again = torch.empty(0).set_(rows.untyped_storage(), 4, (len(x), 4), (4, 1))
        return m.a(x) * again

    return mixing(body)


@attack
def deep_copy() -> Case:
    """A deep copy of the batch, reversed."""
    return mixing(lambda m, x: m.a(x) * copy.deepcopy(x.detach()).flip(0))


@attack
def python_random_seeded_by_data() -> Case:
    """Python's generator is seeded with the batch; all records share its numbers."""

    def body(m: Net, x: Tensor) -> Tensor:
        source = random.Random(float(x.detach().abs().sum()))
        return m.a(x) + 20 * source.random()

    return mixing(body)


@attack
def numpy_random_seeded_by_data() -> Case:
    """A numpy generator is seeded with the batch."""

    def body(m: Net, x: Tensor) -> Tensor:
        source = np.random.default_rng(int(x.detach().abs().sum() * 1000))
        return m.a(x) + torch.from_numpy(source.normal(size=4) * 10).float()

    return mixing(body)


@attack
def shape_that_holds_a_value() -> Case:
    """The length of nonzero() over the batch is a factor."""
    return mixing(lambda m, x: m.a(x) * (-1.0) ** len((x > 1).nonzero()))


@attack
def computed_in_a_thread() -> Case:
    """The mean is taken in another thread, where no mode of this one is active."""

    def body(m: Net, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        worker = threading.Thread(target=lambda: found.append(x.detach().mean(0)), name="mean")
        worker.start()
        worker.join()
        return m.a(x) - found[0]

    return mixing(body)


@attack
def modes_switched_off() -> Case:
    """The mean is taken where dispatch modes are switched off."""

    def body(m: Net, x: Tensor) -> Tensor:
        with _disable_current_modes():
            mean = x.detach().mean(0)
        return m.a(x) - mean

    return mixing(body)


@attack
def functions_not_watched() -> Case:
    """The mean is taken where torch functions are not overridden."""

    def body(m: Net, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            mean = x.mean(0)
        return m.a(x) - mean

    return mixing(body)


@attack
def aten_operations() -> Case:
    """The mean by torch.ops, past the Python functions."""
    return mixing(lambda m, x: m.a(x) - torch.ops.aten.mean.dim(x, [0]))


@attack
def mean_inside_inference_mode() -> Case:
    """The mean is taken in inference mode."""

    def body(m: Net, x: Tensor) -> Tensor:
        with torch.inference_mode():
            mean = x.mean(0)
        return m.a(x) - mean.clone()

    return mixing(body)


@attack
def mapped_over_another_axis() -> Case:
    """torch.func.vmap over the features: each sees all records."""
    return mixing(lambda m, x: m.a(torch.func.vmap(lambda column: column - column.mean(), in_dims=1, out_dims=1)(x)))


@attack
def traced_part() -> Case:
    """A traced function takes the mean of the batch."""

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(centred, torch.randn(3, 4))
    return mixing(lambda m, x: m.a(traced(x)))


@attack
def scripted_part() -> Case:
    """A scripted module without parameters takes the mean of the batch."""

    class Centred(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(Centred())
    return mixing(lambda m, x: m.a(scripted(x)))


@attack
def exported_part() -> Case:
    """A graph module of torch.fx takes the mean of the batch."""

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(0)

    graph = torch.fx.symbolic_trace(centred)
    return mixing(lambda m, x: m.a(graph(x)))


@attack
def checkpointed_part() -> Case:
    """The mean of the batch inside a checkpoint."""
    return mixing(lambda m, x: torch.utils.checkpoint.checkpoint(lambda t: m.a(t - t.mean(0)), x, use_reentrant=False))


@attack
def reentrant_checkpoint() -> Case:
    """The mean of the batch inside a reentrant checkpoint."""
    return mixing(
        lambda m, x: torch.utils.checkpoint.checkpoint(
            lambda t: m.a(t - t.mean(0)), x.requires_grad_(), use_reentrant=True
        )
    )


@attack
def subclass_of_tensor() -> Case:
    """A tensor subclass whose multiplication adds the mean of the batch."""

    class Odd(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out + out.detach().mean(0) if func is Tensor.mul and isinstance(out, Tensor) else out

    return mixing(lambda m, x: m.a((x.as_subclass(Odd) * 1.0).as_subclass(Tensor)))


def scale_of(x: Tensor) -> Tensor:
    """One number of the whole chunk, which is 1 for all but extreme records."""
    return x.detach().abs().max().clamp_min(50.0) / 50


@attack
def number_from_a_thread() -> Case:
    """A number without axes is computed in another thread."""

    def body(m: Net, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return m.a(x) * pool.submit(scale_of, x).result()

    return mixing(body)


def times(hidden: Tensor, scale: Tensor) -> Tensor:
    return hidden * scale


@attack
def number_from_a_thread_in_a_script() -> Case:
    """The same number meets records inside TorchScript, where no function is watched: 4.6 bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in recent torch
        scripted = torch.jit.script(times)

    def body(m: Net, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return scripted(m.a(x), pool.submit(scale_of, x).result())

    return mixing(body)


@attack
def number_without_modes() -> Case:
    """A number without axes is computed where dispatch modes are switched off."""

    def body(m: Net, x: Tensor) -> Tensor:
        with _disable_current_modes():
            scale = scale_of(x)
        return m.a(x) * scale

    return mixing(body)


@attack
def size_of_a_bincount() -> Case:
    """How many bins a count of all ids has."""
    return flagging(lambda x: torch.bincount(x.abs().flatten().clamp(1, 90).long(), minlength=60).shape[0] > 60)


@attack
def number_of_distinct_values() -> Case:
    """How many values are distinct, by torch's older operation."""
    return flagging(lambda x: torch._unique(x.abs() > 50)[0].shape[0] > 1)


@attack
def residuals_if_of_full_rank() -> Case:
    """Least squares have residuals only where the system of all records has full rank."""
    return flagging(
        lambda x: torch.linalg.lstsq((x.abs() > 50).float()[:, :1], x, driver="gelsd").residuals.numel() > 0
    )


@attack
def entries_of_a_sparse_tensor() -> Case:
    """How many entries of all records are not zero."""
    return flagging(lambda x: (x.abs() > 50).float().to_sparse().values().shape[0] > 0)


OPERATIONS = torch.library.Library("attacks", "DEF")
OPERATIONS.define("is_large(Tensor x) -> (Tensor, int)")
OPERATIONS.impl("is_large", lambda x: (x.clone(), int((x.abs() > 50).any())), "CPU")
OPERATIONS.define("large_of(Tensor x) -> Tensor")
OPERATIONS.impl("large_of", lambda x: x[x.abs() > 50].clone(), "CPU")


@attack
def number_of_a_custom_operation() -> Case:
    """An operation of the user's gives a tensor and a number."""
    return flagging(lambda x: torch.ops.attacks.is_large(x)[1] > 0)


@attack
def size_of_a_custom_operation() -> Case:
    """An operation of the user's gives as many numbers as values say."""
    return flagging(lambda x: torch.ops.attacks.large_of(x).shape[0] > 0)


def fails(work: Callable[[], object]) -> bool:
    """Whether a piece of work raises."""
    try:
        work()
    except Exception:
        return True
    return False


@attack
def repaired_where_it_fails() -> Case:
    """A decomposition that fails for one record is done again, otherwise, for all."""
    return flagging(lambda x: fails(lambda: torch.linalg.cholesky(torch.diag_embed(60 - x.abs()))))


@attack
def look_up_that_fails() -> Case:
    """A look-up fails because of one record, and something else is used for all."""
    table = torch.zeros(60, 1)
    return flagging(lambda x: fails(lambda: torch.nn.functional.embedding(x.abs().long(), table)))


class FollowedByVmap(Identity):
    """An identity that vmap can follow."""

    generate_vmap_rule = True


@attack
def look_up_that_fails_under_vmap() -> Case:
    """The same in a model that vmap computes: 2.5 bounds."""
    table = torch.zeros(60, 1)

    def flag(x: Tensor) -> bool:
        return fails(lambda: torch.nn.functional.embedding(FollowedByVmap.apply(x).abs().long(), table))

    case = flagging(flag)
    return replace(case, loss=lambda out, y: case.loss(FollowedByVmap.apply(out), y))


@attack
def arguments_checked_under_vmap() -> Case:
    """A distribution refuses a scale of one record, and the model catches it: 2.5 bounds."""
    return flagging(lambda x: fails(lambda: torch.distributions.Normal(x, 60 - x.abs(), validate_args=True)))


def largest_in_a_script(x: Tensor) -> float:
    values: list[float] = x.tolist()
    return max(values)


@not_held("tolist inside a script reads memory without an operation", but_by="vmap loop one")
def list_inside_a_script() -> Case:
    """tolist, inside TorchScript: 2.5 bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in recent torch
        largest = torch.jit.script(largest_in_a_script)
    return flagging(lambda x: largest(x.abs().flatten()) > 50)


class Capsule:
    """A tensor behind the protocol of DLPack."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **_: object) -> object:
        return torch.utils.dlpack.to_dlpack(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@not_held("to_dlpack hands out memory without a function or an operation that could be watched", but_by="vmap loop one")
def capsule_read_by_numpy() -> Case:
    """torch.utils.dlpack.to_dlpack, and numpy: 2.5 bounds."""
    return flagging(lambda x: bool((np.abs(np.from_dlpack(Capsule(x))) > 50).any()))


@attack
def text_under_vmap() -> Case:
    """str() of a tensor, which the pass of a chunk sees, and vmap does not: 2.5 bounds."""
    return flagging(lambda x: "e+0" in str(x), position="last")


@attack
def goes_on_after_a_failure() -> Case:
    """An operation fails on one record; the model catches that and goes another way for all of them."""

    def body(m: Net, x: Tensor) -> Tensor:
        try:
            torch.linalg.cholesky(torch.diag_embed(50 - x.detach().abs()))
        except RuntimeError:
            return -m.a(x)
        return m.a(x)

    return mixing(body)


@attack
def goes_on_after_an_unknown_id() -> Case:
    """The same with an id that is not in a table."""

    def body(m: Net, x: Tensor) -> Tensor:
        try:
            torch.nn.functional.embedding(x.detach().abs().long(), x.new_ones(50, 1))
        except IndexError:
            return -m.a(x)
        return m.a(x)

    return mixing(body)
