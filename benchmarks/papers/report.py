"""RESULTS.md from the lines alone."""

from __future__ import annotations


def write() -> None: ...
