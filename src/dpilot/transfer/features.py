"""Features: what a frozen backbone says of each record, computed once and kept.

Everything here but ``private_center`` looks at one record at a time, so it needs no budget: a record's features are a
function of that record alone.

    >>> features = Features.of([[3.0, 4.0], [0.0, float("nan")]], labels=[1, 0], classes=2)
    >>> features.unit().values.tolist(), features.labels.tolist()          # the second record is null
    ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], [1, -1])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from dpilot import _validate
from dpilot._quiet import try_quietly
from dpilot.data.disk import DiskArray
from dpilot.data.sparse import SparseRows
from dpilot.data.units import UnitRows, UnitsOnDisk, group_rows
from dpilot.engine.batch import synthetic
from dpilot.engine.outputs import judge_outputs, outputs
from dpilot.errors import InvalidInput, UnsupportedModel
from dpilot.keys import Chain, fresh_key
from dpilot.mechanism import SYSTEM, Draws, Noise
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.sampling import blocks
from dpilot.statistics import Ball, mean
from dpilot.transfer.numbers import as_numbers
from dpilot.transfer.pixels import as_pixels

__all__ = ["NULL", "DiskValues", "Features", "centred", "extract", "extract_rows", "private_center"]

NULL: Final = -1
"""The label of a null record."""
_ROWS: Final = 8192  # worked on at a time: temporaries stay small
_LEAST: Final = 8  # images in the first block, so that few are quick
_FLAT: Final = 1e-5  # what GroupNorm adds to a variance


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """One row of finite float32 features a record, and its class; a null record has a row of zeros and label -1.

    Guarantee:
        ``of``, ``unit``, ``grouped``, ``take`` and ``shuffled`` treat each record on its own. With ``shares``, that add
        up to 1 in each unit (``by_unit``), every sum over the rows moves by at most what one row can add to it when a
        unit comes or goes: a mean of vectors that are no longer than a bound is no longer than the bound.

    Edge cases:
        A row with a value that is not finite, or a label that is not one of 0 .. classes - 1, is a null record:
        silently, as no message may depend on one record. Lists and arrays of objects are read cell by cell (slower):
        what is no number, and a row that is not as long as the first one, makes its own record null.
    """

    values: Tensor  # (n, d) float32; or SparseValues or DiskValues, of which a slice is such a tensor
    labels: Tensor  # (n,) int64
    classes: int
    shares: Tensor | None = None  # (n,) float32: what each row adds of its unit, where a unit has several
    units: Tensor | None = None  # (n,) int64: the number of its unit; rows of one unit lie together, a drawn one first
    protects: PrivacyUnit = RECORD

    @classmethod
    def of(cls, values: Any, labels: Any, classes: int) -> Features:
        """Features from arrays, tensors or lists of numbers, whatever their types."""
        classes = _validate.count(least=2, classes=classes)
        rows, found = as_numbers(values, rows=True), as_numbers(labels, rows=False)
        if rows.ndim != 2 or found.ndim != 1 or len(rows) != len(found):
            dimensions = f"{rows.ndim} and {found.ndim}"  # how many records there are is protected
            raise InvalidInput(
                f"values and labels have {dimensions} dimensions, or differ in length: expected (n, d) and (n,). "
                "Flatten images."
            )
        rows, found = rows.detach().to(torch.float32), found.detach().to(rows.device)
        valid = torch.isfinite(rows).all(1) & _is_class(found, classes)
        codes = torch.where(valid, found, 0).to(torch.int64)
        return cls(torch.where(valid[:, None], rows, 0.0), torch.where(valid, codes, NULL), classes)

    @classmethod
    def of_sparse(cls, rows: SparseRows, labels: Any, classes: int) -> Features:
        """Rows of unit length, by their entries; a row of zeros for a null record."""
        found = as_numbers(labels, rows=False)
        with np.errstate(all="ignore"):
            lengths = np.sqrt(rows.square_lengths() + (rows.others.astype(np.float64) ** 2).sum(axis=1))
        valid = np.isfinite(lengths) & _is_class(found, classes).numpy()
        over = np.where(valid & (lengths > 0), 1 / np.where(lengths > 0, lengths, 1.0), 0.0).astype(np.float32)
        others = np.where(valid[:, None], rows.others * over[:, None], np.float32(0.0))
        unit = replace(rows, scales=np.where(valid, rows.scales * over, np.float32(0.0)), others=others)
        codes = torch.where(torch.from_numpy(valid), found, NULL).to(torch.int64)
        return cls(cast(Tensor, SparseValues(unit)), codes, classes)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        """The number of features of a record."""
        return int(self.values.shape[1])

    def take(self, indices: Any) -> Features:
        """Only the records at ``indices`` (or where a mask is true), in that order."""
        places = torch.as_tensor(indices, device=self.values.device)
        places = places if places.dtype == torch.bool else places.to(torch.int64)
        shares = None if self.shares is None else self.shares[places]
        units = None if self.units is None else self.units[places]
        return replace(self, values=self.values[places], labels=self.labels[places], shares=shares, units=units)

    def by_unit(self, ids: Any, unit: PrivacyUnit, *, key: bytes | None = None) -> Features:
        """The rows that count of each unit, at most ``unit.rows``, with their shares; ``ids`` has one for each row.

        Guarantee:
            Which rows of a unit count is a function of its own id and rows and of a secret key. Null rows take no part
            in their unit's mean.
        """
        if len(ids) != len(self):
            raise InvalidInput("ids and features differ in length: expected one id for each row, in its order.")
        rows = group_rows(ids, unit, key=fresh_key("rows of units") if key is None else key)
        counted = self.take(rows.places)
        usable = (counted.labels != NULL).cpu().numpy()
        return counted.take(np.flatnonzero(usable)).with_shares(rows.usable(usable), unit)

    def with_shares(self, rows: UnitRows | UnitsOnDisk, unit: PrivacyUnit) -> Features:
        """The same rows, which are those of ``rows``, each with its share of its unit."""
        if isinstance(rows, UnitsOnDisk):
            stored = {"shares": DiskValues(rows.shares), "units": DiskValues(rows.units, torch.int64)}
            return replace(self, **cast(Any, stored), protects=unit)
        shares, units = torch.from_numpy(rows.shares), torch.from_numpy(rows.units)
        shares = shares.to(self.values.device, torch.float32)
        return replace(self, shares=shares, units=units.to(self.labels), protects=unit)

    @property
    def count(self) -> int:
        """How many records, or units, coins are to be tossed for; sensitive where rows are of units."""
        return len(self) if self.units is None else int(self.units.amax()) + 1 if len(self) else 0

    def of_units(self, numbers: Any) -> Features:
        """All rows of the units ``numbers``; of the records, where each is its own."""
        if self.units is None:
            return self.take(numbers)
        return self.take(torch.isin(self.units, torch.as_tensor(numbers, device=self.units.device)))

    def one_a_unit(self) -> Features:
        """One row of each unit, drawn uniformly, as a record; all rows, where each is its own."""
        if self.units is None:
            return self
        _, first = np.unique(self.units.cpu().numpy(), return_index=True)  # wherever its other rows lie
        return replace(self.take(np.sort(first)), shares=None, units=None)

    def shuffled(self) -> Features:
        """The same records in a secret order: nobody can choose beside which others a record is added up.

        Guarantee:
            One record more is, in distribution, one that takes a place while who was there goes to the end: roundings
            of sums that follow the order change beside these two places alone. The rows of a unit stay together.
        """
        order = Chain(fresh_key("order of records")).generator("order").permutation(self.count)
        if self.units is None:
            return self.take(order)
        return replace(self, units=torch.from_numpy(order).to(self.units)[self.units]).by_place()

    def by_place(self) -> Features:
        """The same rows with those of a unit side by side, units in the order of their numbers."""
        if self.units is None or isinstance(self.units, DiskValues) or bool((self.units.diff() >= 0).all()):
            return self
        return self.take(torch.argsort(self.units, stable=True))

    def to(self, device: torch.device | str) -> Features:
        """The same features on another device."""
        shares = None if self.shares is None else self.shares.to(device)
        units = None if self.units is None else self.units.to(device)
        moved = replace(self, values=self.values.to(device), labels=self.labels.to(device))
        return replace(moved, shares=shares, units=units)

    def unit(self) -> Features:
        """Each record divided by its own length; rows of zeros stay."""
        return self._each(_unit)

    def grouped(self, groups: int) -> Features:
        """Each record's features in ``groups`` equal stretches, each brought to mean 0 and variance 1 (GroupNorm).

        Formula::

            (x - mean_g) / sqrt(variance_g + 1e-5)        over the features of one record and one group

        Edge cases:
            A null record stays a row of zeros.

        Reference:
            Wu and He, "Group Normalization", ECCV 2018; Tramer and Boneh, ICLR 2021, use it on scattering features.
        """
        groups = _validate.count(groups=groups)
        if self.width % groups:
            _validate.refuse("groups", groups, f"a divisor of the {self.width} features")
        return self._each(lambda rows: nn.functional.group_norm(rows, groups, eps=_FLAT))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Features:
        values = torch.empty(self.values.shape, device=self.values.device)
        for start in range(0, len(self), _ROWS):
            rows = change(self.values[start : start + _ROWS])
            values[start : start + _ROWS] = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
        return replace(self, values=values)


@dataclass(frozen=True, slots=True, eq=False)
class SparseValues:
    """What linear heads ask of a tensor of rows, for rows held by their entries: slices of it are dense tensors.

    A slice is made dense when it is multiplied, so all products are those of dense rows: of one shape, in one order.
    """

    rows: SparseRows

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            return torch.from_numpy(self.rows[rows].toarray())
        return SparseValues(self.rows[np.asarray(rows)])

    def to(self, device: torch.device | str) -> Any:
        """The same on the CPU; a dense tensor elsewhere."""
        if torch.device(device).type == "cpu":
            return self
        return torch.cat([chunk.to(device) for chunk in chunk_rows(cast(Tensor, self))])


@dataclass(frozen=True, slots=True, eq=False)
class DiskValues:
    """What linear heads ask of a tensor, for rows on disk: slices of it are tensors in memory, of ``kind``."""

    rows: DiskArray
    kind: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> Tensor:
        return torch.from_numpy(np.atleast_1d(self.rows[rows])).to(self.kind)

    def to(self, device: torch.device | str) -> Any:
        """The same on the CPU; a tensor in memory elsewhere."""
        return self if torch.device(device).type == "cpu" else self[:].to(device)


def centred(
    features: Features,
    *,
    center: str | Tensor = "private",
    noise_multiplier: float | None = None,
    receipt: Draws | None = None,
    size: float | None = None,
    noise: Noise = SYSTEM,
) -> Features:
    """Unit rows moved so that their mean is about 0, and made unit again: linear heads then learn faster.

    ``center`` is "private", which buys the mean of the unit rows (``private_center``), or a vector that is public or
    was bought already: test records take the one that was bought on training records.

    Guarantee:
        That of ``private_center``; with a vector nothing is released and nothing is paid.
    """
    if isinstance(center, str):
        _validate.one_of(("private",), "Or give the vector: centred(..., center=vector).", center=center)
        if noise_multiplier is None or receipt is None or size is None:
            raise InvalidInput(
                "a private center was asked for without a price: expected noise_multiplier=, receipt= and size=."
            )
        center = private_center(features, noise_multiplier=noise_multiplier, receipt=receipt, size=size, noise=noise)
    if center.shape != (features.width,):
        _validate.refuse("the shape of center", tuple(center.shape), f"({features.width},)")
    middle = center.to(features.values)
    null = features.labels == NULL
    rows = features.unit().values.sub_(middle).masked_fill_(null[:, None], 0.0)
    return replace(features, values=rows).unit()


def private_center(
    features: Features, *, noise_multiplier: float, receipt: Draws, size: float, noise: Noise = SYSTEM
) -> Tensor:
    """The noisy mean of the unit rows over the declared ``size``, (d,) float32.

    Guarantee:
        One Gaussian of ``noise_multiplier``: a unit row moves the sum by at most 1 (``statistics.mean``).

    Example:
        >>> from dpilot.privacy.events import Gaussian
        >>> from dpilot.privacy.receipt import Receipt
        >>> same = Features.of([[0.0, 2.0]] * 1000, [0] * 1000, classes=2)
        >>> found = private_center(same, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)), size=1000)
        >>> torch.allclose(found, torch.tensor([0.0, 1.0]), atol=0.02)
        True
    """
    ball = Ball(1.0)
    chunks: Iterator[Any] = (chunk.double().cpu().numpy() for chunk in chunk_rows(features.unit().values))
    if features.shares is not None:
        # rows at most 1 long, times shares that float32 rounded by a part 2^-24 at most: those of a unit add up to 1
        shares = (features.shares.double() * (1 - 2.0**-23)).cpu().numpy()
        weights = (shares[start : start + _ROWS, None] for start in range(0, max(len(shares), 1), _ROWS))
        chunks = (ball.clip(chunk) * weight for chunk, weight in zip(chunks, weights, strict=True))
    found = mean(chunks, domain=ball, size=size, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    return torch.from_numpy(found).to(torch.float32)


def extract(
    fn: Callable[[Tensor], Tensor], images: Any, batch: int = 512, device: torch.device | str | None = None
) -> Tensor:
    """What ``fn`` says of each image, flattened to (n, d) float32 on the CPU, ``batch`` images at a time.

    Guarantee:
        Nothing is released, and nothing is paid: what is said of an image depends on that image alone, whatever the
        type of the array (``transfer.pixels``). A function that combines images (over the largest of a block, say) is
        refused on made-up ones, one of which that is not known is given them one by one, and every block is watched.
        A module in training mode, or with a part in it, is refused: its BatchNorm would mix the records of a batch,
        its dropout would make them random.

    Edge cases:
        No images: (0, d), the width read from an image of zeros.
        An image for which ``fn`` raises, or gives another number of features than for made-up images: a row that is not
        a number, which makes its record null.

    Example:
        >>> extract(lambda x: x.mean((2, 3)), torch.ones(5, 3, 8, 8), batch=2).shape
        torch.Size([5, 3])
    """
    if isinstance(fn, nn.Module) and any(module.training for module in fn.modules()):
        raise InvalidInput(
            "fn is, or holds, a module in training mode: expected one that treats each image on its own. Call eval()."
        )
    pictures, model = as_pixels(images), _Function(fn, device)
    made_up = synthetic(pictures, len(pictures), _LEAST, torch.Generator().manual_seed(0))
    try:
        verdict = judge_outputs(_call, model, made_up, _LEAST)
        width = outputs(_call, model, made_up, _LEAST).flatten(1).shape[1]
    except Exception as problem:
        raise InvalidInput(
            f"fn does not take made-up images of shape {tuple(made_up.shape[1:])} and random numbers ({problem}): "
            "expected a function that takes any image, so that none of yours decides whether it runs. Clamp in fn."
        ) from problem
    if verdict.kind == "mixed":
        raise UnsupportedModel(
            f"fn combines images: {verdict.why}. Expected a function that treats each image on its own: no statistics, "
            "extremes or counts over the block."
        )
    most = batch if verdict.kind == "apart" else 1
    return extract_rows(lambda some: _rows_of(model, some, made_up, width), pictures, most)


def extract_rows(
    fn: Callable[[Tensor], Tensor], images: Any, batch: int, device: torch.device | str | None = None
) -> Tensor:
    """The same for a function that is known to treat each image on its own: it is not watched.

    It is given blocks of sizes that follow from the place alone, the last one filled up.
    """
    batch, pictures = _validate.count(batch=batch), as_pixels(images)
    with torch.no_grad():
        return torch.cat(
            [
                fn(_move(fill_rows(pictures[start : start + size], size), device))
                .flatten(1)
                .to(device="cpu", dtype=torch.float32)[: max(len(pictures) - start, 0)]
                for start, size in blocks(len(pictures), min(_LEAST, batch), batch)
            ]
        )


def _rows_of(model: nn.Module, images: Tensor, made_up: Tensor, width: int) -> Tensor:
    """What the model says of a block, ``width`` numbers of each image; of those for which it raises, or gives another
    number, when they are alone, rows that are not numbers.

    A made-up image stands in their places, so that the others are computed where they would be without them. Where
    images compute alone and not beside each other, each stands in all places.
    """

    def attempt(some: Tensor) -> Tensor | None:
        rows = try_quietly(lambda: outputs(_call, model, some, len(some)).flatten(1).float())
        return rows if rows is not None and rows.shape == (len(some), width) else None

    if (whole := attempt(images)) is not None:
        return whole
    taken = torch.tensor([attempt(image[None]) is not None for image in images], device=images.device)
    kept = torch.where(taken.view(-1, *(1,) * (images.dim() - 1)), images, made_up[:1])
    rows = attempt(kept)
    if rows is None:
        each = [attempt(image.expand_as(images).contiguous()) for image in kept]
        null = torch.full((width,), torch.nan)
        rows = torch.stack([null if own is None else own[place].cpu() for place, own in enumerate(each)])
    return rows.masked_fill(~taken[:, None].to(rows.device), torch.nan)


class _Function(nn.Module):
    """A function of images as a module, which the engine watches."""

    def __init__(self, fn: Callable[[Tensor], Tensor], device: torch.device | str | None) -> None:
        super().__init__()
        self.fn, self.device = fn, device
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.fn(_move(images, self.device))


def _move(images: Tensor, device: torch.device | str | None) -> Tensor:
    return images if device is None else images.to(device)


def _call(model: nn.Module, images: Tensor) -> Tensor:
    return model(images)  # type: ignore[no-any-return]


def fill_rows(rows: Tensor, size: int) -> Tensor:
    """``size`` rows: those given, and zeros."""
    filled = rows if len(rows) == size else torch.cat([rows, rows.new_zeros((size - len(rows), *rows.shape[1:]))])
    return filled.contiguous()


def chunk_rows(rows: Tensor, most: int = _ROWS) -> Iterator[Tensor]:
    """Stretches of at most ``most`` rows; one without rows if there are none."""
    return (rows[start : start + most] for start in range(0, max(len(rows), 1), most))


def _is_class(labels: Tensor, classes: int) -> Tensor:
    inside = (labels >= 0) & (labels < classes)  # False for nan
    return inside & (labels == labels.floor()) if labels.is_floating_point() else inside


def _unit(rows: Tensor) -> Tensor:
    """Rows over their lengths, taken relative to the largest entry so that no square vanishes or overflows."""
    largest = rows.abs().amax(1, keepdim=True) if rows.shape[1] else rows.new_zeros((len(rows), 1))
    direction = rows / torch.where(largest > 0, largest, 1.0)
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
    return direction / torch.where(length > 0, length, 1.0)
