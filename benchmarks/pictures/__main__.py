"""python -m benchmarks pictures [--quick] [--seeds N] [--most N] [--data NAME ...]: png files in class folders.

    folder     fit_table of the folder, with the schema that `dpilot schema init` writes (its size and mode changed)
    arrays     AutoClassifier of the same pictures as an array, at the same budget
    reading    files a second by the clock and by the processor (workers included), decoded alone and with features

Training pictures are drawn once; exact accuracy of 2,000 test pictures, read from files by `folder`. Lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.datasets import images
from benchmarks.datasets.part import Part
from dpilot import AutoClassifier, Schema
from dpilot.data.files import Table
from dpilot.data.folders import declare_folder
from dpilot.data.states import record_states
from dpilot.fit.embeddings import encoder_of
from dpilot.fit.table import fit_table

DELTA = 1e-6
DATA = ("mnist", "fashion_mnist", "cifar10")
TESTED = 2_000


def load(name: str, part: str, most: int) -> tuple[Part, np.ndarray, np.ndarray]:
    whole = images.cifar_10(part) if name == "cifar10" else images.grey(name, part)
    places = np.random.default_rng(0).permutation(len(whole.labels))[:most]
    labels = whole.labels.numpy()[places]
    order = np.argsort(labels, kind="stable")  # as a folder lists them
    return whole, whole.inputs.numpy()[places][order], labels[order]


def write(folder: Path, pixels: np.ndarray, labels: np.ndarray, classes: int) -> None:
    for label in range(classes):
        (folder / str(label)).mkdir(parents=True)
    for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        shown = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
        Image.fromarray(np.ascontiguousarray(shown)).save(folder / str(label) / f"{number:06}.png")


def schema_of(folder: Path, pixels: np.ndarray) -> Schema:
    columns = declare_folder(folder)
    columns["picture"] |= {"size": list(pixels.shape[:1:-1]), "mode": "L" if pixels.shape[1] == 1 else "RGB"}
    del columns["picture"]["outside"]
    return Schema.from_dict({"columns": columns})


def processor() -> float:
    """Processor seconds of this process and of workers that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def say(line: dict[str, Any]) -> None:
    print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()}), flush=True)


def measure_reading(about: dict[str, Any], folder: Path, schema: Schema) -> None:
    from dpilot.data import pictures

    for way in ("decoded", "features"):
        clock, used = time.perf_counter(), processor()
        reader, count = encoder_of(schema.inputs_only()), 0
        for frame in Table.open(folder, schema).frames():
            count += len(frame)
            _ = record_states(schema, frame) if way == "decoded" else reader.encode_features(frame)
        clock = time.perf_counter() - clock
        pictures._pool.stop()  # so that their time is counted
        say(
            {**about, "way": f"reading, {way}", "a_second": count / clock, "a_cpu_second": count / (processor() - used)}
        )


def run(name: str, most: int, epsilons: list[float], seeds: int) -> None:
    whole, pixels, labels = load(name, "train", most)
    _, tested, wanted = load(name, "test", TESTED)
    about: dict[str, Any] = {"data": name, "records": len(labels)}
    with tempfile.TemporaryDirectory() as place:
        folder, test = Path(place, "train"), Path(place, "test")
        for where, some, of in ((folder, pixels, labels), (test, tested, wanted)):
            write(where, some, of, len(whole.classes))
        schema = schema_of(folder, pixels)
        measure_reading(about, folder, schema)
        for epsilon in epsilons:
            for seed in range(seeds):
                line, start = {**about, "epsilon": epsilon, "seed": seed}, time.process_time()
                model = fit_table(folder, schema, epsilon=epsilon, delta=DELTA, test_seed=seed)
                spent, found = time.process_time() - start, []
                for frame in Table.open(test, schema.inputs_only()).frames():
                    found += model.predict(frame).tolist()
                right = float(np.mean(np.array(found).astype(int) == wanted))
                say({**line, "way": "folder", "accuracy": right, "cpu_s": spent})
                del model
                start = time.process_time()
                array = AutoClassifier(
                    epsilon=epsilon, delta=DELTA, classes=list(range(len(whole.classes))), random_state=seed
                )
                array.fit(pixels if pixels.shape[1] == 3 else pixels[:, 0], labels)
                spent = time.process_time() - start
                right = array.score(tested if pixels.shape[1] == 3 else tested[:, 0], wanted)
                say({**line, "way": "arrays", "accuracy": right, "cpu_s": spent})
                del array


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pictures")
    parser.add_argument("--quick", action="store_true", help="2,000 pictures of MNIST, one seed, epsilon 3")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--most", type=int, default=20_000, help="pictures to train on, drawn once")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.quick:
        run("mnist", 2_000, [3.0], 1)
        return
    for name in given.data:
        run(name, given.most, given.epsilon, given.seeds)


if __name__ == "__main__":
    main()
