"""Exact gradients of public records at one model: their norms, and what clipping and noise do to their mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpilot import _validate, engine
from dpilot._arrays import Floats
from dpilot._quiet import try_quietly
from dpilot.diagnose.stamp import NOT_PRIVATE, new_figure, require_public, save_figure
from dpilot.engine import PerSample
from dpilot.engine.made_up import evaluation_mode
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.sampling import check_source
from dpilot.train.batches.reader import Collate, Reader
from dpilot.train.evaluation import labels_and_inputs
from dpilot.train.randomness import step_randomness

if TYPE_CHECKING:
    import pandas as pd

_CHUNK: Final = 128
_FINENESS: Final = 33  # thresholds of the first grid, over 12 halvings; two finer ones follow around the best


@dataclass(frozen=True, slots=True, eq=False)
class GradientDiagnosis:
    """Exact norms of gradients, and for each threshold C what clipping at C and its noise do to their mean.

    Formulas, with n_i the norm of g_i, B the batch size, and means over the records::

        retained weight of class y    mean over y of min(1, C / n_i)                 (Rehn et al. 2026, Eq. 3)
        bias                          |mean of (1 - C / n_i)+ g_i|
        noise                         sigma C sqrt(d) / B
        error                         bias^2 + noise^2, of which ``optimum`` is the least C (their Theorem 5.2)
        cosine                        of the clipped mean to the true one

    ``layers``: norms of the parts of the gradient, by the names of the modules. ``classes``: None where targets are not
    classes. ``retained`` has a row for each of ``class_names``. ``length``: of the true mean gradient.
    """

    norms: Floats = field(repr=False)
    layers: Mapping[str, Floats] = field(repr=False)
    classes: NDArray[np.int64] | None = field(repr=False)
    thresholds: Floats = field(repr=False)
    bias: Floats = field(repr=False)
    cosine: Floats = field(repr=False)
    optimum: float
    length: float
    noise_multiplier: float
    batch_size: float
    dimension: int
    stamp: str = NOT_PRIVATE

    @property
    def noise(self) -> Floats:
        """The root mean squared length of the noise on the mean, at each threshold."""
        made: Floats = self.thresholds * (self.noise_multiplier * np.sqrt(self.dimension) / self.batch_size)
        return made

    @property
    def class_names(self) -> tuple[int, ...]:
        """The classes that occur."""
        return () if self.classes is None else tuple(np.unique(self.classes).tolist())

    @property
    def retained(self) -> Floats:
        """The retained weight of each class, (classes, thresholds)."""
        weights = _retained(self.norms[:, None], self.thresholds)
        return np.array([weights[self.classes == each].mean(0) for each in self.class_names])

    def frame(self) -> pd.DataFrame:
        """One row a threshold: bias, noise, error, cosine, the fraction clipped, and retained weights."""
        import pandas as pd

        made = {
            "threshold": self.thresholds,
            "bias": self.bias,
            "noise": self.noise,
            "error": self.bias**2 + self.noise**2,
            "cosine": self.cosine,
            "clipped": (self.norms[:, None] > self.thresholds).mean(0),
            "retained": _retained(self.norms[:, None], self.thresholds).mean(0),
        }
        by_class = zip(self.class_names, self.retained, strict=True)
        return _stamp_frame(pd.DataFrame({**made, **{f"retained_{name}": row for name, row in by_class}}))

    def norms_frame(self) -> pd.DataFrame:
        """One row a record: its class, the norm of its gradient, and that of each layer."""
        import pandas as pd

        known = {} if self.classes is None else {"class": self.classes}
        return _stamp_frame(pd.DataFrame({**known, "norm": self.norms, **self.layers}))

    def at(self, threshold: float) -> pd.Series[Any]:
        """The row of ``frame`` whose threshold is nearest."""
        return self.frame().iloc[int(np.abs(np.log(self.thresholds / threshold)).argmin())]

    def plot(self, path: str | Path) -> Path:
        """Norms by class and by layer, retained weight by class, and bias, noise and cosine against the threshold."""
        figure = new_figure(
            11, 8, f"gradients of {len(self.norms):,} records, noise multiplier {self.noise_multiplier:.3g}"
        )
        (by_class, by_layer), (kept, error) = figure.subplots(2, 2)
        groups = [self.norms[self.classes == each] for each in self.class_names] or [self.norms]
        _boxes(by_class, groups, self.class_names or ("all",), "norm of the gradient", "class")
        _boxes(by_layer, list(self.layers.values()), list(self.layers), "norm of the layer's part", "")
        by_layer.tick_params(axis="x", rotation=60)
        frame = self.frame()
        for name in [f"retained_{each}" for each in self.class_names] or ["retained"]:
            kept.semilogx(self.thresholds, frame[name], label=name.removeprefix("retained_"), linewidth=1)
        kept.set(xlabel="threshold", ylabel="retained weight")
        kept.legend(fontsize=7)
        for name in ("bias", "noise"):
            error.loglog(self.thresholds, frame[name], label=name)
        error.loglog(self.thresholds, np.sqrt(frame["error"]), label="both", color="black")
        error.axvline(self.optimum, linestyle=":", color="grey", label=f"optimum {self.optimum:.3g}")
        error.set(xlabel="threshold", ylabel="length", ylim=(np.sqrt(frame["error"].min()) / 10, None))
        error.legend(fontsize=8, loc="upper left")
        other = error.twinx()
        other.semilogx(self.thresholds, self.cosine, color="tab:green", linewidth=0.8)
        other.set(ylabel="cosine (green)", ylim=(-0.05, 1.05))
        return save_figure(figure, path)


def gradients(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    data: Any,
    *,
    noise_multiplier: float,
    public: bool,
    batch_size: float | None = None,
    thresholds: Sequence[float] = (),
    most: int = 512,
    per_batch: bool = False,
    collate_fn: Collate | None = None,
) -> GradientDiagnosis:
    """Look at the gradients of public ``data`` at ``model`` as it stands, in evaluation mode.

    At most ``most`` records are read, evenly spread. ``noise_multiplier`` and ``batch_size`` (by default the number of
    records read, as in Theorem 5.2) are those of the run that is looked into. ``thresholds`` are added to the grid.

    Guarantee:
        None: what it returns is exact, and stamped. Nothing of the model or of global generators is changed.

    Edge cases:
        records that cannot be read, or have no finite gradient    left out
        no noise                                                   the optimum is the largest norm: nothing is clipped

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.arange(64) % 2)
        >>> loss = nn.CrossEntropyLoss(reduction="none")
        >>> look = gradients(nn.Linear(3, 2), loss, data, noise_multiplier=1.0, public=True)
        >>> look.norms.shape, look.class_names, look.optimum < look.norms.max()
        ((64,), (0, 1), np.True_)

    Reference:
        Rehn et al., "On Optimal Hyperparameters for Differentially Private Deep Transfer Learning", 2026: Theorem 5.2,
        Eq. 3 and 5.
    """
    require_public(public)
    check_source(data)
    noise_multiplier = _validate.non_negative(noise_multiplier=noise_multiplier)
    places = np.unique(np.linspace(0, len(data) - 1, min(len(data), _validate.count(most=most))).astype(np.int64))
    reader = Reader(data, collate_fn, None, next(model.parameters()).device)
    handles, labels = list[PerSample](), list[Tensor | None]()
    with evaluation_mode(model), step_randomness(Chain(bytes(KEY_BYTES))):
        for chunk in reader.chunks(np.split(places, range(_CHUNK, len(places), _CHUNK))):
            handles.append(engine.per_sample(model, loss_fn, chunk.whole, per_batch=per_batch))
            labels.append(try_quietly(lambda chunk=chunk: _classes(chunk.whole)))  # type: ignore[misc]
        return _diagnose(handles, labels, noise_multiplier, batch_size, thresholds)


def _diagnose(
    handles: Sequence[PerSample], labels: Sequence[Tensor | None], noise_multiplier: float, batch_size: float | None,
    more: Sequence[float],
) -> GradientDiagnosis:  # fmt: skip
    norms = np.concatenate([np.zeros(0), *(_numbers(each.norms) for each in handles)])
    finite = np.isfinite(norms)
    if not (norms[finite] > 0).any():
        raise InvalidInput("no record has a gradient: expected public records as in training.")
    known = [each for each in labels if each is not None]
    classes = np.concatenate([each.cpu().numpy() for each in known])[finite] if len(known) == len(labels) else None
    count, batch = int(finite.sum()), _validate.positive(batch_size=batch_size or float(finite.sum()))
    whole = _mean(handles, torch.ones_like, count)
    coordinate = noise_multiplier**2 * len(whole) / batch**2  # squared noise of the mean, over C^2

    def measure(threshold: float) -> tuple[float, float, float]:
        """Threshold, bias and cosine."""
        lost = _mean(handles, lambda n: (1 - threshold / n).clamp_min(0.0), count)
        kept = whole - lost
        cosine = float(kept @ whole / (kept.norm() * whole.norm()).clamp_min(torch.finfo(torch.float64).tiny))
        return threshold, float(lost.norm()), cosine

    largest = float(norms[finite].max()) * (1 + 1e-9)
    found = [measure(each) for each in {*np.geomspace(largest / 2**12, largest, _FINENESS).tolist(), *more}]
    for _ in range(2):
        found = sorted(found)
        best = min(range(len(found)), key=lambda j: coordinate * found[j][0] ** 2 + found[j][1] ** 2)
        low, high = found[max(best - 1, 0)][0], found[min(best + 1, len(found) - 1)][0]
        found += [measure(each) for each in np.geomspace(low, high, 10)[1:-1].tolist() if each != found[best][0]]
    found.append(measure(_stationary(handles, count, coordinate, min(found, key=_error(coordinate))[0])))
    columns = np.array(sorted(set(found))).T
    return GradientDiagnosis(
        norms=norms[finite],
        layers=_layers(handles, finite),
        classes=classes,
        thresholds=columns[0],
        bias=columns[1],
        cosine=columns[2],
        optimum=min(found, key=_error(coordinate))[0],
        length=float(whole.norm()),
        noise_multiplier=noise_multiplier,
        batch_size=batch,
        dimension=len(whole),
    )


def _error(coordinate: float) -> Callable[[tuple[float, float, float]], float]:
    return lambda row: coordinate * row[0] ** 2 + row[1] ** 2


def _stationary(handles: Sequence[PerSample], count: int, coordinate: float, near: float) -> float:
    """Theorem 5.2: C = N.G / (N.N + sigma^2 d) over the records that ``near`` clips; ``near`` where that is none."""
    clipped = _mean(handles, lambda n: (n > near).to(n), count)
    unit = _mean(handles, lambda n: (n > near) / n, count)
    below = float(unit @ unit) + coordinate
    found = float(unit @ clipped) / below if below > 0 else near
    return found if found > 0 else near


def _mean(handles: Iterable[PerSample], weight: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """The mean of the weighted gradients, as one vector in float64."""
    total = torch.zeros(())
    for each in handles:
        safe = torch.where(each.norms > 0, each.norms, torch.finfo(each.norms.dtype).tiny)
        sums = each.weighted_sum(weight(safe))
        parts = [torch.view_as_real(part) if part.is_complex() else part for part in sums.values()]
        total = total + torch.cat([part.double().flatten().cpu() for part in parts])
    return total / count


def _layers(handles: Sequence[PerSample], finite: NDArray[np.bool_]) -> dict[str, Floats]:
    """The norms of the parts of the gradient that belong to one module each."""
    squares: dict[str, Floats] = {}
    for name in handles[0].names:
        column = np.concatenate([_numbers(each.squares[name]) for each in handles])[finite]
        layer = name.rpartition(".")[0] or name
        squares[layer] = squares.get(layer, 0.0) + column
    return {name: np.sqrt(each) for name, each in squares.items()}


def _classes(chunk: Any) -> Tensor | None:
    labels, _ = labels_and_inputs(chunk)
    whole = labels.dim() == 1 and not labels.is_floating_point() and not labels.is_complex()
    return labels.long() if whole else None


def _retained(norms: Floats, thresholds: Floats) -> Floats:
    made: Floats = thresholds / np.maximum(norms, thresholds)
    return made


def _numbers(values: Tensor) -> Floats:
    return values.detach().double().cpu().numpy()


def _stamp_frame(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs["stamp"] = NOT_PRIVATE
    return frame


def _boxes(axes: Any, groups: Sequence[Floats], names: Sequence[Any], up: str, across: str) -> None:
    axes.boxplot(groups, whis=(5, 95), showfliers=False)
    axes.set_xticks(range(1, len(names) + 1), [str(name) for name in names], fontsize=7)
    axes.set(yscale="log", ylabel=up, xlabel=across)
