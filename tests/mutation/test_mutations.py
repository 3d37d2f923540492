"""The list of mutations is in step with the code, the runner tells killed from survived, and a sample is killed."""

from __future__ import annotations

import pytest

from mutations.runner import ROOT, Mutation, copy_tree, imported_from, load_mutations, passes, run, sample

MUTATIONS = load_mutations()


def test_every_mutation_still_applies():
    broken = []
    for mutation in MUTATIONS:
        try:
            mutation.apply((ROOT / mutation.path).read_text())
        except (OSError, ValueError, SyntaxError) as problem:
            broken.append(f"{mutation.why}: {problem}")
    assert broken == []


def test_every_mutation_names_tests_that_exist():
    named = {test.split("::")[0] for mutation in MUTATIONS for test in mutation.tests}
    assert all(mutation.tests for mutation in MUTATIONS)
    assert [test for test in sorted(named) if not (ROOT / test).exists()] == []


@pytest.mark.parametrize(
    ("scope", "old", "new"),
    [("", "absent", "x"), ("", "twice", "x"), ("", "once", "once"), ("", "once = 1", "once = ("), ("f", "once", "x")],
)
def test_a_mutation_that_does_not_apply_is_an_error(scope, old, new):
    with pytest.raises((ValueError, SyntaxError)):
        Mutation("a.py", "why", scope, old, new, ("tests",)).apply("twice = twice\nonce = 1\n")


def test_a_place_is_found_by_its_syntax_and_its_scope():
    source = "def f(x):\n    return noise(  # of x\n        x,\n        2)\n\ndef g(x):\n    return noise(x, 2)\n"
    mutated = Mutation("a.py", "why", "f", "noise(x, 2)", "x", ("tests",)).apply(source)
    assert mutated == "def f(x):\n    return (x)\n\ndef g(x):\n    return noise(x, 2)\n"
    two = Mutation("a.py", "why", "f", "a = 1\nb = 2", "b = 2\na = 1", ("tests",))
    assert two.apply("def f():\n    if True:\n        a = 1\n        b = 2\n").endswith(
        "        b = 2\n        a = 1\n"
    )


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


@pytest.mark.slow
def test_the_runner_tells_killed_from_survived_and_puts_files_back(tiny):
    before = (tiny / "src" / "door.py").read_text()
    tests = ("tests/test_door.py",)
    outcomes = run(
        [
            Mutation("src/door.py", "no noise", "noise", "x + 1", "x", tests),
            Mutation("src/door.py", "the same in another way", "noise", "x + 1", "1 + x", tests),
        ],
        [tiny],
    )
    assert {outcome.mutation.why: outcome.killed for outcome in outcomes} == {
        "no noise": True,
        "the same in another way": False,
    }
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
    assert [outcome.mutation.why for outcome in run(chosen, [tmp_path]) if not outcome.killed] == []
