"""Adult, Dutch, and tables with a number to predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.datasets.part import Part, file, frame_of, split

if TYPE_CHECKING:
    import pandas as pd

REGRESSION = (
    "abalone", "ailerons", "california_housing", "cpu_act", "diamonds", "elevators", "fried", "house_16H", "insurance",
    "kc_house_sales", "naval", "pol", "uci_bike", "uci_concrete", "uci_kin40k", "uci_parkinsons", "uci_protein",
    "uci_sml", "uci_tamielectric", "wind", "wine_quality",
)  # fmt: skip


def adult(part: str) -> Part:
    """UCI Adult: 14 columns of 32,561 people to train and 16,281 to test; income up to 50K or above."""
    frame = frame_of(file("adult", "adult.parquet"))
    rows = frame[frame["split"] == part]
    classes = ("<=50K", ">50K")
    codes = rows["income"].astype(str).map({name: code for code, name in enumerate(classes)})
    inputs = rows.drop(columns=["income", "split"]).reset_index(drop=True)
    return Part(inputs, torch.tensor(codes.to_numpy(copy=True), dtype=torch.long), classes)


def dutch(part: str, share: float = 0.8) -> Part:
    """The Dutch census of 2001: 11 columns of 60,420 people, occupation low or high; no split is published.

    Reference: Le Quy et al. 2022.
    """
    return _divided(frame_of(file("dutch_census", "dutch.parquet")), "occupation", part, share, ("low", "high"))


def regression(name: str, part: str, share: float = 0.8) -> Part:
    """A table whose last column is a number to predict; no split is published."""
    return _divided(frame_of(file("regression", f"{name}.parquet")), "target", part, share, ())


def _divided(frame: pd.DataFrame, target: str, part: str, share: float, classes: tuple[str, ...]) -> Part:
    rows = frame.iloc[split(len(frame), round(len(frame) * share), part)]
    kind = torch.long if classes else torch.float64
    labels = torch.tensor(rows[target].to_numpy(copy=True), dtype=kind)
    return Part(rows.drop(columns=target).reset_index(drop=True), labels, classes)
