"""What an audit found: one line for each thing that was looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Check", "all_held", "plain_checks"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what, whether it held (None: there was nothing to check), and what was found."""

    name: str
    held: bool | None
    found: str


def all_held(checks: Iterable[Check]) -> bool:
    """Whether nothing that could be checked failed."""
    return all(check.held is not False for check in checks)


def plain_checks(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """Plain data, ready for JSON."""
    return [{"name": each.name, "held": each.held, "found": each.found} for each in checks]
