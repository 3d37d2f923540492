"""Cells whose own methods raise, whatever is asked of them."""

from __future__ import annotations

from typing import Any, NoReturn

ASKED = (
    "__str__",
    "__float__",
    "__int__",
    "__abs__",
    "__eq__",
    "__ne__",
    "__hash__",
    "__len__",
    "__iter__",
    "strip",
    "decode",
)


def raising_cells(problem: type[BaseException]) -> dict[str, Any]:
    """One cell of each kind: a text, numbers, a list, an object that does not tell its class."""

    def fail(*_: object) -> NoReturn:
        raise problem

    kinds: dict[type, Any] = {str: "1", bytes: b"1", int: 1, float: 1.0, list: [1.0]}
    made = {kind.__name__: type("Raising", (kind,), dict.fromkeys(ASKED, fail))(value) for kind, value in kinds.items()}
    return made | {"object": type("Raising", (), {"__class__": property(fail)})()}
