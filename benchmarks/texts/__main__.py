"""python -m benchmarks texts [--quick] [--seeds N] [--features K] [--encoder NAME [--finetune]] [--data NAME ...]

    private     fit_table with one column of type text, everything included in (epsilon, 1e-6); with --encoder, of the
                rows that the encoder gives, computed once and declared as vectors, which are the same rows
    finetune    fit_table with model="finetune" on the texts themselves (--finetune)
    autopilot   tune.autopilot on the same rows, encoded beforehand and made unit rows, at the same budget
    logistic    scikit-learn's LogisticRegression (C = 1) on the same rows, without privacy

Exact accuracy of the published test part (SMS spam: a fifth, drawn once), and macro recall. Lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.datasets import texts
from benchmarks.datasets.part import Part
from dpilot import Budget, Schema
from dpilot.data.encoder import Encoder
from dpilot.fit.expansion import features_of
from dpilot.fit.table import fit_table
from dpilot.transfer import Features
from dpilot.tune import autopilot

DATA: dict[str, Callable[[str], Part]] = {
    "sms_spam": texts.sms_spam, "newsgroups": texts.newsgroups, "imdb": texts.imdb, "sst2": texts.sst_2,
}  # fmt: skip
DELTA = 1e-6


def schema_of(part: Part, features: int) -> Schema:
    target = {"type": "categorical", "categories": list(part.classes), "role": "target"}
    return Schema.from_dict({"columns": {"text": {"type": "text", "features": features}, "label": target}})


def figures(predicted: np.ndarray, codes: np.ndarray) -> dict[str, float]:
    right = predicted == codes
    recalls = [right[codes == code].mean() for code in np.unique(codes)]
    return {"accuracy": float(right.mean()), "macro_recall": float(np.mean(recalls))}


def say(line: dict[str, Any]) -> None:
    print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()}), flush=True)


def read_by(encoder: str, length: int, texts_: list[str]) -> np.ndarray:
    """What an encoder says of each text."""
    declared = {"type": "text", "encoder": encoder, "length": length, "missing": "null"}
    reader = Encoder(Schema.from_dict({"columns": {"text": declared}}))
    cells = [np.array(texts_[start : start + 2048], dtype=object) for start in range(0, len(texts_), 2048)]
    return np.concatenate([reader.encode_features({"text": each}) for each in cells])


def run(
    name: str, given: argparse.Namespace, features: int, epsilons: list[float], seeds: int, most: int | None
) -> None:
    train, test = DATA[name]("train"), DATA[name]("test")
    codes, tested = train.labels.numpy(), test.labels.numpy()
    shown = np.random.default_rng(1).permutation(len(tested))[: given.most_tested]
    tested, written = tested[shown], [test.inputs[place] for place in shown]
    rows = np.random.default_rng(0).permutation(len(codes))[:most]
    chosen, codes = [train.inputs[place] for place in rows], codes[rows]
    schema = schema_of(train, features)
    read: dict[str, Any] = {"train": np.array(chosen, dtype=object), "test": np.array(written, dtype=object)}
    texts_of = dict(read)
    if given.encoder is not None:
        read = {part: read_by(given.encoder, given.length, list(texts_)) for part, texts_ in read.items()}
        vectors = {"type": "vector", "width": read["train"].shape[1]}
        schema = Schema.from_dict({"columns": {"text": vectors, "label": schema.to_dict()["columns"]["label"]}})
    about = {
        "data": name,
        "records": len(codes),
        "classes": len(train.classes),
        "features": schema.features[0].width or features,
    }
    table = {"text": read["train"], "label": np.array(train.classes, dtype=object)[codes]}
    reader = Encoder(schema.inputs_only())
    start = time.process_time()
    encoded, encoded_test = (np.asarray(reader.encode_features({"text": read[part]})) for part in ("train", "test"))
    reading = time.process_time() - start
    start = time.process_time()
    plain = LogisticRegression(max_iter=300).fit(encoded, codes)
    line = {**about, "way": "logistic", **figures(plain.predict(encoded_test), tested)}
    say({**line, "reading_s": reading, "cpu_s": time.process_time() - start})
    wide = features_of(schema.inputs_only())
    for epsilon in epsilons:
        for seed in range(seeds):
            start = time.process_time()
            model = fit_table(table, schema, epsilon=epsilon, delta=DELTA, test_seed=seed)
            spent = time.process_time() - start
            found = np.argmax(model.predictor.outputs(encoded_test), axis=1)
            line = {**about, "way": "private", "epsilon": epsilon, "seed": seed}
            say({**line, **figures(found, tested), "cpu_s": spent})
            del model
            if given.finetune:
                start = time.process_time()
                declared = {"type": "text", "encoder": given.encoder, "length": given.length, "missing": "null"}
                columns = {"text": declared, "label": schema.to_dict()["columns"]["label"]}
                how = {"epsilon": epsilon, "delta": DELTA, "test_seed": seed, "model": "finetune"}
                tuned = fit_table({**table, "text": texts_of["train"]}, Schema.from_dict({"columns": columns}), **how)
                spent = time.process_time() - start
                found = np.argmax(tuned.outputs({"text": texts_of["test"]}), axis=1)
                say({**line, "way": "finetune", **figures(found, tested), "cpu_s": spent})
            known = Features.of(wide.widen(encoded), codes, len(train.classes)).unit()
            head = autopilot(known, None, Budget(epsilon, DELTA), size=len(codes)).model
            unit = Features.of(wide.widen(encoded_test), tested, len(train.classes)).unit().values
            found = (unit @ head.to(unit)).argmax(1).numpy()
            say({**line, "way": "autopilot", **figures(found, tested)})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks texts")
    parser.add_argument("--quick", action="store_true", help="SMS spam, one seed")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--encoder", default=None, help="a sentence encoder in place of hashed columns, as minilm")
    parser.add_argument("--length", type=int, default=128, help="tokens of a text that it reads")
    parser.add_argument("--finetune", action="store_true", help="train adapters on the encoder too")
    parser.add_argument("--most-tested", type=int, default=None, help="records to test on, drawn once")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--most", type=int, default=None, help="records to train on, drawn once")
    parser.add_argument("--data", nargs="*", choices=list(DATA), default=list(DATA))
    given = parser.parse_args()
    for name in ["sms_spam"] if given.quick else given.data:
        run(name, given, given.features, given.epsilon, 1 if given.quick else given.seeds, given.most)


if __name__ == "__main__":
    main()
