"""A run on public records, looked into along the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import Tensor, nn

from dpilot import _validate
from dpilot.diagnose.gradients import GradientDiagnosis, gradients
from dpilot.diagnose.stamp import NOT_PRIVATE, new_figure, require_public, save_figure
from dpilot.errors import InvalidInput
from dpilot.records import StepRecord
from dpilot.train.plan import Plan
from dpilot.train.run import Run
from dpilot.train.trainer import Trainer

if TYPE_CHECKING:
    import pandas as pd

_PURPOSE: Final = "training, not private: looked into by dpilot.diagnose"
_QUANTILES: Final = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, eq=False)
class RunDiagnosis:
    """A run whose record and ledger say "not private", and a look after each of ``taken`` steps."""

    run: Run
    taken: tuple[int, ...]
    looks: tuple[GradientDiagnosis, ...]

    def frame(self) -> pd.DataFrame:
        """One row a look: the rule's threshold and the optimal one, the errors of both, bias, noise and cosine at the
        rule's, quantiles of the norms, the length of the true mean, and retained weights by class."""
        import pandas as pd

        made = pd.DataFrame([self._row(taken, look) for taken, look in zip(self.taken, self.looks, strict=True)])
        made.attrs["stamp"] = NOT_PRIVATE
        return made

    def _row(self, taken: int, look: GradientDiagnosis) -> dict[str, float]:
        threshold = _threshold(self.run.record.steps, taken)
        at, best = look.at(threshold), look.at(look.optimum)
        return {
            "step": taken,
            "threshold": threshold,
            "optimum": look.optimum,
            "error": at["error"],
            "least_error": best["error"],
            **{name: at[name] for name in ("bias", "noise", "cosine", "clipped")},
            **{f"norm_{level:g}": float(np.quantile(look.norms, level)) for level in _QUANTILES},
            "length": look.length,
            **at.filter(like="retained").to_dict(),
        }

    def plot(self, path: str | Path) -> Path:
        """Norms over the run beside the threshold and its optimum, and retained weights by class."""
        frame = self.frame()
        figure = new_figure(11, 5, f"{self.run.record.plan['steps']} steps, {len(self.looks)} looks")
        norms, kept = figure.subplots(1, 2)
        width = 0.8 * float(np.diff(self.taken).min()) if len(self.taken) > 1 else 1.0
        logs = [np.log10(look.norms[look.norms > 0]) for look in self.looks]
        norms.violinplot(logs, positions=self.taken, widths=width, showextrema=False)
        for name in ("threshold", "optimum"):
            norms.plot(frame["step"], np.log10(frame[name]), marker=".", label=name)
        norms.set(xlabel="step", ylabel="log10 of the norm")
        norms.legend(fontsize=8)
        for name in frame.columns[frame.columns.str.startswith("retained")]:
            kept.plot(frame["step"], frame[name], label=name.removeprefix("retained").strip("_") or "all", linewidth=1)
        kept.set(xlabel="step", ylabel="retained weight", ylim=(0, 1.02))
        kept.legend(fontsize=7)
        return save_figure(figure, path)


def run(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    plan: Plan,
    data: Any,
    *,
    public: bool,
    every: int | None = None,
    most: int = 256,
    **options: Any,
) -> RunDiagnosis:
    """Train ``model`` on public ``data`` by ``plan``, and look at the gradients every so many steps (about 10 times).

    ``options`` are those of a Trainer. ``most`` records are looked at each time, evenly spread.

    Guarantee:
        None: the data are public. The record is stamped, and so is the entry of the ledger. The run itself ends bit
        for bit as without the looks.
    """
    require_public(public)
    if refused := {"checkpoint", "purpose"} & set(options):
        raise InvalidInput(f"{sorted(refused)} cannot be given: save the run that comes back, which is stamped.")
    every = max(1, plan.steps // 10) if every is None else _validate.count(every=every)
    told = options.pop("callback", None)
    taken, looks = list[int](), list[GradientDiagnosis]()
    named: dict[str, Any] = {name: options[name] for name in ("per_batch", "collate_fn") if name in options}

    def look(after: int, threshold: float) -> None:
        taken.append(after)
        shared: dict[str, Any] = {
            "noise_multiplier": plan.noise_multiplier,
            "batch_size": plan.expected_batch_size,
            "most": most,
        }
        looks.append(gradients(model, loss_fn, data, thresholds=(threshold,), public=True, **shared, **named))

    def watch(record: StepRecord) -> None:
        if told is not None:
            told(record)
        if (record.step + 1) % every == 0 or record.step + 1 == plan.steps:
            look(record.step + 1, record.threshold)

    trainer = Trainer(model, loss_fn, plan, callback=watch, purpose=_PURPOSE, **options)
    look(0, _first_threshold(plan))
    done = trainer.fit(data)
    stamped = replace(done.record, stamps=(*done.record.stamps, NOT_PRIVATE))
    return RunDiagnosis(replace(done, record=stamped), tuple(taken), tuple(looks))


def _first_threshold(plan: Plan) -> float:
    sizes: Any = {"noise_multiplier": plan.noise_multiplier, "expected_batch_size": plan.expected_batch_size}
    return float(plan.clipping.init(**sizes, dimension=1, steps=plan.steps).threshold)


def _threshold(steps: tuple[StepRecord, ...], taken: int) -> float:
    """What the last step before a look used; before the first, what that used."""
    return steps[max(taken - 1, 0)].threshold
