"""Records as fits write them, made up for the tests of the page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dpilot.noise import NOT_HARDENED
from dpilot.privacy import events
from dpilot.records import FitRecord, Influence, MetricRecord, StepRecord

STEP = events.PoissonSampled(1024 / 29_304, events.Gaussian(1.37))
HEAD = "7:3f1c9a0b5d2e48f6a7c1b0d9e8f70605"


def entry(seq: int, purpose: str, part: str | None, event: events.Event, epsilon: float, **more: Any) -> dict[str, Any]:
    """A line of a ledger as ``Entry.as_dict`` writes it."""
    line = {"seq": seq, "stage": 0, "time": "2026-01-05T10:00:00Z", "purpose": purpose, "part": part}
    cost = {"epsilon": epsilon, "delta": 3.07e-6}
    rest = {"split": part and "main", "state": "committed", "bound_used": "pld"}
    return {**line, **rest, "event": events.to_dict(event), "cost": cost, **more}


def metric(name: str, value: float, of: str = "", noise: float = 0.008, drawn: float = 0.014) -> MetricRecord:
    """A figure with intervals around it, inside [0, 1]."""

    def around(width: float) -> tuple[float, float]:
        return max(value - width, 0.0), min(value + width, 1.0)

    return MetricRecord(name, of, value, around(noise), around(drawn))


def metrics(classes: tuple[str, ...], groups: tuple[str, ...] = ()) -> tuple[MetricRecord, ...]:
    """The figures that ``dpilot.metrics.scores`` makes, in its order and under its names."""
    share = 1 / len(classes)
    common = [metric("share of the most common class", 0.7607), metric("accuracy above that share", 0.0907)]
    means = [metric("macro accuracy", 0.774), metric("worst-class accuracy", 0.61)]
    overall = [metric("accuracy", 0.8514), *common, *means]
    grouped = [metric("group accuracy", 0.93 - 0.11 * i, f"sex = {name}") for i, name in enumerate(groups)]
    fair = (
        [metric("worst-group accuracy", 0.81), metric("demographic parity", 0.37, "sex", 0.03, 0.05)] if groups else []
    )
    by_class = [metric("recall", 0.94 - 0.3 * i * share, name) for i, name in enumerate(classes)]
    pairs = [(a, b) for a in classes for b in classes]
    cells = [metric("confusion", 0.9 if a == b else 0.1 * share, f"{a} predicted {b}") for a, b in pairs]
    return (*overall, metric("AUC", 0.9043), *grouped, *fair, *by_class, *cells)


def noisy_share(what: str, column: str, value: float, room: float = 0.01) -> dict[str, Any]:
    """A share of the records as ``fit.health.NoisyShare`` writes it."""
    return {"what": what, "column": column, "value": value, "low": max(value - room, 0), "high": min(value + room, 1)}


def health(usable: float = 0.995, *flaws: dict[str, Any], judged: bool = True) -> dict[str, Any]:
    """What ``Health.to_dict`` writes."""
    share = noisy_share("usable", "", usable)
    return {"usable": share, "columns": list(flaws), "stop_below": 0.5, "judged": judged, "stopped": False}


def fitted(**changes: Any) -> FitRecord:
    """A whole record; ``changes`` replace fields."""
    slope = [(epsilon / 10, 0.02 + 0.78 * epsilon / 10) for epsilon in range(11)]
    record = FitRecord(
        privacy={
            "epsilon": 0.99931,
            "delta": 3.0711e-6,
            "unit": "one record, added or removed",
            "accountant": "privacy loss distributions (PLD)",
            "budget": {"epsilon": 1.0, "delta": 3.0711e-6},
            "head": HEAD,
            "versions": {"dpilot": "0.1.0", "torch": "2.13.0"},
        },
        data={"name": "adult", "size": 32_561, "target": "income", "classes": ["<=50K", ">50K"], "held_out": 0.1},
        plan={
            "format": 1,
            "size": 29_304,
            "sample_rate": 0.03494,
            "steps": 660,
            "noise_multiplier": 1.37,
            "clipping": {"name": "bounded-slack", "threshold": 1.0, "floor": 0.1},
            "lr": 0.8,
        },
        decisions=(
            "batch 1,024: smallest on the plateau at 660 steps.",
            "the threshold adapts from 1, with a floor of 0.1.",
            "step size 0.8, extrapolated from 0.11 and 0.19; 4.2 % of the squared loss went to tuning.",
        ),
        metrics=metrics(("<=50K", ">50K"), ("Female", "Male")),
        thresholds=tuple(0.2 + 0.8 * math.exp(-step / 90) + 0.01 * math.sin(step * 1.7) for step in range(660)),
        ledger=(
            entry(1, "trial 1 of 2", "train", events.Repeated(events.Gaussian(90.0), 40), 0.31),
            entry(1, "trial 2 of 2", "train", events.Repeated(events.Gaussian(60.0), 40), 0.44),
            entry(2, "final run", "train", events.Repeated(STEP, 660), 0.91),
            entry(3, "scores", "held-out", events.Gaussian(4.2), 0.87),
        ),
        curves={
            "step size against epsilon: fitted": tuple(slope),
            "step size against epsilon: trials": ((0.12, 0.11), (0.22, 0.19)),
            "step size against epsilon: final run": ((1.0, 0.8),),
        },
        stamps=(NOT_HARDENED,),
        unprotected=("running time", "the number of records, which was taken from the data and published"),
        health=health(
            0.995, noisy_share("missing", "workclass", 0.057), noisy_share("unknown category", "native-country", 0.004)
        ),
    )
    return replace(record, **changes)


def complete() -> FitRecord:
    """A record in which every section has something to show."""
    rng = np.random.default_rng(0)
    record = fitted()
    curves = [metric(f"{side} positive rate", x**power, f"score above {x:.2f}") for side, power in
              (("true", 0.4), ("false", 2.0)) for x in (0.1, 0.3, 0.5, 0.9)]  # fmt: skip
    bins = [metric("calibration", x, f"score {x - 0.1:.2f} to {x + 0.1:.2f}") for x in (0.1, 0.5, 0.9)]
    pairs = [(f"sex = {name}", sign) for name, sign in (("Female", 1), ("Male", -1))]
    gaps = [
        MetricRecord("group against others", of, 0.11 * sign, (0.0, 0.0), (0.11 * sign - 0.02, 0.11 * sign + 0.02))
        for of, sign in pairs
    ]
    recalls = [metric("group recall", 0.7, f"{of}, class {true}") for of, _ in pairs for true in ("<=50K", ">50K")]
    slots = [tuple((0.5 - 0.05 * k + 0.02 * rng.normal()) * 1024 / 3 for k in range(9)) for _ in range(60)]
    return replace(
        record,
        metrics=(*record.metrics, *curves, *bins, *gaps, *recalls),
        plan={**record.plan, "clipping": {"name": "slack"}},
        steps=tuple(StepRecord(place, 1.0, 1.0, False, released=slot) for place, slot in enumerate(slots)),
        trials=(metric("score of a trial", 0.8, "step size 0.11 at epsilon 0.12"),),
        influences=(Influence("age", 0.4, "17", "<90>"), Influence("sex", 0.01, "Male", "Female")),
        privacy={
            **record.privacy,
            "tuning": "inside",
            "ledger": {
                "own": False, "where": "adult.ledger", "dataset": "adult", "total": {"epsilon": 3.0, "delta": 1e-5},
                "spent": {"epsilon": 0.99931, "delta": 3e-6}, "left": {"epsilon": 2.0, "delta": 7e-6},
            },
        },
    )  # fmt: skip
