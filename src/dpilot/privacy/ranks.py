"""One process spends: under a launcher of several ranks each would pay for itself, and report itself alone."""

from __future__ import annotations

import os
import sys
from typing import Final

from dpilot.errors import InvalidInput

_DECLARED: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # by torchrun, Open MPI, MPICH


def check_alone() -> None:
    """Refuse to spend as one of several ranks: each would train on the records and report its own epsilon alone.

    Called where a ledger is made, where anything is reserved in one, and where a release is drawn: no entry can
    forget it.
    """
    size, where = world_size()
    if size > 1:
        raise InvalidInput(
            f"this process is one of {size} ranks ({where}): expected one process, as every rank would pay, train and "
            "report alone, and the records would lose the sum. Start it without torchrun or mpirun; ranks are not "
            "supported yet."
        )


def world_size() -> tuple[int, str]:
    """The number of ranks that this process is one of, and what says so; 1 where nothing says otherwise.

    >>> world_size()
    (1, 'one process')
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = int(distributed.get_world_size())
        if found > 1:
            return found, "torch.distributed is initialised"
    for name in _DECLARED:
        declared = os.environ.get(name, "")
        if declared.isdecimal() and int(declared) > 1:
            return int(declared), f"{name} is set in the environment"
    return 1, "one process"
