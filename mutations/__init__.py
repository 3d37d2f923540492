"""Single-line mutations of privacy-critical code, and the runner that sees whether the quick tests notice.

    python -m mutations                 all of them: one line each, and exit code 1 if one survives
    python -m mutations --only noise    those whose file or reason contains "noise"
    python -m mutations --sample 5      five, spread over the list

The lists are the ``.toml`` files here, one an area: in which function, what is changed, into what, why it matters, and
which tests should fail. Code is found by its syntax, not by its text.
A mutation is applied to a copy of the source tree; the tree itself is never written to.
"""
