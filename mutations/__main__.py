"""Run the list of mutations and name the survivors."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from mutations.runner import Mutation, copy_tree, imported_from, load_mutations, passes, run, sample


def main() -> int:
    options = _options()
    mutations = [each for each in load_mutations() if options.only in f"{each.path} {each.why}"]
    mutations = sample(mutations, options.sample) if options.sample else mutations
    with tempfile.TemporaryDirectory(prefix="dpilot-mutations-") as folder:
        trees = [Path(folder).resolve() / str(number) for number in range(options.workers)]
        for tree in trees:
            tree.mkdir()
            copy_tree(tree)
        _check_unchanged(mutations, trees)
        outcomes = []
        for outcome in run(mutations, trees):
            outcomes.append(outcome)
            said = "killed  " if outcome.killed else "SURVIVED"
            print(f"{said} {outcome.seconds:6.1f} s  {outcome.mutation.path}: {outcome.mutation.why}", flush=True)
    survivors = [outcome for outcome in outcomes if not outcome.killed]
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} killed")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return 1 if survivors else 0


def _check_unchanged(mutations: list[Mutation], trees: list[Path]) -> None:
    """A mutation is killed only if the code as it is passes, and if the copy is what is tested."""
    for tree in trees:
        if not imported_from(tree).is_relative_to(tree):
            sys.exit(f"dpilot is imported from {imported_from(tree)}: expected the copy.")
    suites = list(dict.fromkeys(each.tests for each in mutations))
    with ThreadPoolExecutor(len(trees)) as pool:
        passed = list(pool.map(lambda tests: passes(tests, trees[0]), suites))
    if broken := [" ".join(tests) for tests, good in zip(suites, passed, strict=True) if not good]:
        sys.exit(f"{'; '.join(broken)} fails on the code as it is: nothing can be learnt from mutations.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutations", description=__doc__)
    parser.add_argument("--only", default="", help="those whose file or reason contains this")
    parser.add_argument("--sample", type=int, default=0, help="how many, spread over the list; 0 is all")
    parser.add_argument("--workers", type=int, default=1, help="how many at a time, each in a copy of its own")
    parser.add_argument("--json", default="", help="also write the outcomes to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
