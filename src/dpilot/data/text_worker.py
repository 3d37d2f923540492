"""Hashes texts in a process of its own, run as a script: see ``data.hashing``."""

from __future__ import annotations

import signal
from typing import Final

READY: Final = b"R"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer

    from dpilot.data.hashing import answer_requests

    answer_requests()
