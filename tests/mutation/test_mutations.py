"""The list of mutations is in step with the code, the runner tells killed from survived, and a sample is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutations.runner import ROOT, Mutation, copy_tree, imported_from, listed, passes, run, sample

MUTATIONS = listed()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{Path(each.path).stem}: {each.why}")
def test_every_mutation_still_applies(mutation):
    source = (ROOT / mutation.path).read_text()
    assert mutation.applied(source) != source
    assert mutation.tests
    assert all((ROOT / test.split("::")[0]).exists() for test in mutation.tests)


@pytest.mark.parametrize(("old", "new"), [("absent", "x"), ("twice", "x"), ("once", "once"), ("once", "(")])
def test_a_mutation_that_does_not_apply_is_an_error(old, new):
    with pytest.raises((ValueError, SyntaxError)):
        Mutation("a.py", "why", old, new, ("tests",)).applied("twice = twice\nonce = 1\n")


def test_a_sample_is_spread_over_the_list():
    chosen = sample(MUTATIONS, 4)
    assert len(set(chosen)) == 4
    assert chosen[0] == MUTATIONS[0]
    assert MUTATIONS.index(chosen[-1]) > len(MUTATIONS) / 2
    assert sample(MUTATIONS[:2], 5) == MUTATIONS[:2]


@pytest.fixture
def tiny(tmp_path):
    """A tree of one module and one test."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "door.py").write_text("def noise(x):\n    return x + 1  # never less\n")
    (tmp_path / "tests" / "test_door.py").write_text(
        "from door import noise\n\ndef test():\n    assert noise(1) == 2\n"
    )
    return tmp_path


def test_the_runner_tells_killed_from_survived_and_puts_files_back(tiny):
    before = (tiny / "src" / "door.py").read_text()
    tests = ("tests/test_door.py",)
    outcomes = run(
        [
            Mutation("src/door.py", "no noise", "x + 1", "x", tests),
            Mutation("src/door.py", "other words", "never less", "never more", tests),
        ],
        tiny,
    )
    assert [outcome.killed for outcome in outcomes] == [True, False]
    assert (tiny / "src" / "door.py").read_text() == before
    assert passes(tests, tiny)


def test_tests_that_do_not_run_kill_nothing(tiny):
    with pytest.raises(RuntimeError, match="ended with"):
        passes(["tests/absent.py"], tiny)


SAMPLE = {"half the noise multiplier", "shares need not sum to one", "nan is not nulled"}


@pytest.mark.slow
def test_a_sample_of_the_list_is_killed_in_a_copy(tmp_path):
    copy_tree(tmp_path)
    assert imported_from(tmp_path).is_relative_to(tmp_path)
    chosen = [mutation for mutation in MUTATIONS if mutation.why in SAMPLE]
    assert len(chosen) == len(SAMPLE)
    assert passes(dict.fromkeys(test for mutation in chosen for test in mutation.tests), tmp_path)
    assert [outcome.mutation.why for outcome in run(chosen, tmp_path) if not outcome.killed] == []
