"""Private fits of many tasks at several epsilons and sizes: what each released, and its exact accuracy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.datasets import images, texts
from benchmarks.datasets.part import Part, folder
from benchmarks.datasets.tables import REGRESSION
from benchmarks.fit.__main__ import TARGETS, load, schema_of
from dpilot import Budget, Schema
from dpilot.data.encoder import Encoder
from dpilot.fit.expansion import features_of
from dpilot.transfer import Features
from dpilot.tune import autopilot

MOST = 12_000
"""Records of a task to train on; half of them are the smaller size."""
TESTED = 6_000
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
DELTA = 1e-6
Rows = tuple[NDArray[Any], NDArray[np.int64], int]


def table_rows(name: str) -> Rows:
    """A table of classes, as a fit sees it."""
    frame, target = load(name)
    return _frame_rows(frame, target)


def halved_rows(name: str) -> Rows:
    """A table with a number to predict: whether it is above its median."""
    frame = pd.read_parquet(folder() / "regression" / f"{name}.parquet")
    above = frame["target"] > frame["target"].median()
    return _frame_rows(frame.assign(target=above.astype(str)), "target")


def text_rows(read: Callable[[str], Part]) -> Rows:
    """Texts as rows of 512 hashed words and parts of words."""
    part = read("train")
    column = {"text": {"type": "text", "features": 512}}
    target = {"type": "categorical", "categories": list(map(str, part.classes)), "role": "target"}
    schema = Schema.from_dict({"columns": {**column, "label": target}}).inputs_only()
    places = np.random.default_rng(0).permutation(len(part.labels))[: MOST + TESTED]
    chosen = np.array([str(part.inputs[place]) for place in places], dtype=object)
    wide = features_of(schema).widen(Encoder(schema).encode_features({"text": chosen}))
    return wide, part.labels.numpy()[places], len(part.classes)


def image_rows(name: str) -> Rows:
    """Pictures as 14 x 14 pixels."""
    part = images.grey(name, "train")
    places = torch.from_numpy(np.random.default_rng(0).permutation(len(part.labels))[: MOST + TESTED])
    small = torch.nn.functional.avg_pool2d(part.inputs[places].float().reshape(-1, 1, 28, 28), 2).flatten(1)
    return small.numpy(), part.labels[places].numpy(), len(part.classes)


def _frame_rows(frame: pd.DataFrame, target: str) -> Rows:
    schema = schema_of(frame, target)
    names = schema.target.categories or ()
    codes = frame[target].map({name: code for code, name in enumerate(names)}).to_numpy(np.int64)
    inputs = schema.inputs_only()
    return features_of(inputs).widen(Encoder(inputs).encode_features(frame.drop(columns=target))), codes, len(names)


JUDGED: dict[str, Callable[[], Rows]] = {
    **{name: partial(table_rows, name) for name in TARGETS},
    "sms_spam": partial(text_rows, texts.sms_spam),
    "imdb": partial(text_rows, texts.imdb),
    "sst2": partial(text_rows, texts.sst_2),
    "20newsgroups": partial(text_rows, texts.newsgroups),
    "names": partial(text_rows, texts.surnames),
    "mnist": partial(image_rows, "mnist"),
    "fashion_mnist": partial(image_rows, "fashion_mnist"),
}
DEVELOPED: dict[str, Callable[[], Rows]] = {name: partial(halved_rows, name) for name in REGRESSION}


def fits(name: str, make: Callable[[], Rows], seeds: int) -> Iterator[dict[str, Any]]:
    """Every fit of a task as plain data: epsilon, size, seed, what was released, and the exact accuracy.

    Of a judged task only those that judging reads: half of the records from epsilon 0.5 on, all of them at 0.5 and 1.
    """
    low, high = (1, 3) if name in JUDGED else (0, None)
    values, codes, classes = make()
    order = np.random.default_rng(1).permutation(len(codes))
    tested = min(TESTED, len(codes) // 4)
    pool, test = order[tested:][:MOST], order[:tested]
    held = Features.of(values[test], codes[test], classes).unit()
    for place in range(seeds):
        seed = 100 * zlib.crc32(name.encode()) + place  # noise of its own for each task
        drawn = np.random.default_rng(seed).permutation(pool)
        for size, epsilons in ((len(pool) // 2, EPSILONS[low:]), (len(pool), EPSILONS[low:high])):
            known = Features.of(values[drawn[:size]], codes[drawn[:size]], classes).unit()
            for epsilon in epsilons:
                made = autopilot(known, None, Budget(epsilon, DELTA), size=size, test_seed=seed)
                right = (held.values @ made.model.to(held.values)).argmax(1) == held.labels
                figures = {each.name: each for each in made.record.metrics if each.of == ""}
                accuracy = figures["accuracy"]
                yield {
                    "task": name, "size": size, "epsilon": epsilon, "seed": place, "classes": classes,
                    "exact": float(right.double().mean()), "value": accuracy.value, "sampling": accuracy.sampling,
                    "common": figures["share of the most common class"].value,
                }  # fmt: skip
