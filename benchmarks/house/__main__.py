"""How much of the source a reader has to hold: modules one step passes, names, repetition.

    python -m benchmarks house [--list]

One step and one fit are traced on a small network and 64 records, after a warm run of the same kind, on the engine and
rule that a user gets by default. A hop is a call from one file of dpilot into another.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "dpilot"
NOUNS = {"training", "seed", "embedding", "feed", "need", "speed", "string", "thing", "setting", "scaling", "clipping",
         "reading", "writing", "sampling", "rounding", "padding", "encoding", "accounting", "tuning", "logging",
         "binding", "meaning", "spacing", "masking", "bring", "ring", "spring", "mapping", "red", "bed", "hundred",
         "heading", "ending", "opening", "shed", "ranking", "scattering", "whitening", "missing",
         "fixed", "unbiased", "warning", "nothing", "everything", "anything", "timing", "processing", "ordering",
         "grouping", "learning", "planning", "casting", "preprocessing", "labeled", "weighted",
         "embed", "spending", "searchsorted"}  # fmt: skip
IRREGULAR = {"brought", "told", "bought", "heard", "found", "made", "kept", "taken", "given", "seen", "read_off",
             "left", "sent", "drawn", "shown", "said", "written", "known", "held", "lent", "put", "paid", "run_on",
             "laid", "cut", "split_off", "spent", "built", "bound_to", "thrown", "grown", "fed", "met", "got", "sought",
             "flown", "begun", "chosen", "broken", "frozen", "hidden", "spoken", "woven", "worn", "lost", "sold",
             "meant", "felt", "dealt", "caught", "taught", "fought", "thought", "won", "shot", "stuck",
             "torn"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks house")
    parser.add_argument(
        "--list", action="store_true", help="name participles, names used twice, modules and the worst hops"
    )
    arguments = parser.parse_args()
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    functions, classes = list(_functions(trees)), list(_classes(trees))
    participles = [name for name in functions if is_participle(name)]
    twice = {name: count for name, count in Counter(classes).items() if count > 1}
    files = Counter(path.name for path in trees if path.name not in ("__init__.py", "__main__.py"))
    step_files, hops = traced(_one_step())
    fit_files, _ = traced(_one_fit())
    rows = {
        "modules": len(trees),
        "lines of source": sum(len(path.read_text().splitlines()) for path in trees),
        "modules one step passes": len(step_files),
        "hops between files in one step": hops.total(),
        "modules Trainer.fit passes": len(fit_files),
        "functions": len(functions),
        "participle names (%)": round(100 * len(participles) / len(functions), 1),
        "class names used twice": len(twice),
        "file names used twice": sum(count > 1 for count in files.values()),
        "constants in capitals": sum(1 for _ in _constants(trees)),
        "comment lines": sum(line.lstrip().startswith("#") for path in trees for line in path.read_text().splitlines()),
    }
    for what, value in rows.items():
        print(f"{what:34} {value:>8}")
    if arguments.list:
        print("participles:", *sorted(Counter(participles).items(), key=lambda pair: (-pair[1], pair[0])))
        print("classes:", twice)
        print("files:", {name: count for name, count in files.items() if count > 1})
        print("step:", *sorted(step_files))
        print("fit, beside these:", *sorted(fit_files - step_files))
        for (caller, called), count in hops.most_common(40):
            print(f"{count:4} {caller or 'the loop'} -> {called}")


def is_participle(name: str) -> bool:
    """Whether a function's first word is a participle (and not a noun that looks like one)."""
    first = name.strip("_").split("_")[0]
    if first in NOUNS or name in NOUNS:
        return False
    return first in IRREGULAR or (len(first) > 4 and first.endswith(("ed", "ing")))


def _functions(trees: dict[Path, ast.Module]) -> Iterator[str]:
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                yield node.name


def _classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    for tree in trees.values():
        yield from (node.name for node in tree.body if isinstance(node, ast.ClassDef))


def _constants(trees: dict[Path, ast.Module]) -> Iterator[str]:
    for tree in trees.values():
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
                if isinstance(target, ast.Name) and target.id.isupper():
                    yield target.id


def traced(work: Callable[[], Any]) -> tuple[set[str], Counter[tuple[str, str]]]:
    """The files of dpilot that ``work`` runs code of, and the calls from one of them into another, by caller."""
    work()
    root, hops, stack = str(SOURCE), Counter[tuple[str, str]](), [""]
    files = set[str]()

    def watch(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if not name.startswith(root) or event not in ("call", "return"):
            return
        if event == "return":
            if len(stack) > 1:
                stack.pop()
            return
        name = name.removeprefix(root + "/")
        files.add(name)
        if name != stack[-1]:
            hops[stack[-1], name] += 1
        stack.append(name)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return files, hops


def _one_fit() -> Callable[[], Any]:
    from torch import nn

    from dpilot import Trainer

    model, data, plan = _small()
    return lambda: Trainer(model(), nn.CrossEntropyLoss(reduction="none"), plan(), lr=0.1).fit(data)


def _one_step() -> Callable[[], Any]:
    import torch
    from torch import nn

    from dpilot import PrivateStep, poisson_loader

    model, data, plan = _small()
    network, settled = model(), plan()
    loss, optimizer = nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(network.parameters(), lr=0.1)
    step = PrivateStep(network, loss, optimizer, settled, example=data[:2])
    batches = iter(poisson_loader(data, settled))
    return lambda: step(next(batches))


def _small() -> tuple[Callable[[], Any], Any, Callable[[], Any]]:
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from dpilot import Budget, Plan

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    text = Plan.calibrate(Budget(3.0, 1e-5), size=64, batch_size=32, steps=4, clipping="quantile").to_json()
    return lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), data, lambda: Plan.from_json(text)


if __name__ == "__main__":
    main()
