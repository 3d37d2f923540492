"""Modules that worker processes import: light, and able to do what no module should."""

from __future__ import annotations

import os
import signal
import sys
import time

from torch import nn

DEADLY, FAILING = 99.0, 77.0  # records that a made-up one is not


def in_worker() -> bool:
    return sys.argv[0] == "-c" and "pytest" not in sys.modules  # a parallel run of tests is started by -c too


class Sequences(nn.Module):
    """An LSTM with dropout, which torch.func cannot stack; it says what no pipe should carry."""

    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(2, 4, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        if in_worker():
            print("a record is read", flush=True)
        return self.last(self.drop(self.read(x)[0][:, -1]))


class OneHot(nn.Module):
    """Starts at zero; a step moves the columns of the records that are in its batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(600, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(x)


class Fragile(nn.Module):
    """Says what it sees; dies, or runs out of memory, at certain records, in a worker only."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        if in_worker():
            print("a record is", x)
            print("a record is", x, file=sys.stderr)
        if in_worker() and bool((x == DEADLY).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        if in_worker() and bool((x == FAILING).any()):
            raise MemoryError("of this record")
        return self.last(x)


class Slow(nn.Module):
    """Takes its time over a record of sevens, and notes it in the file that the environment names."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        if in_worker() and bool((x == 7).any()):
            with open(os.environ["DPILOT_TEST_NOTES"], "a") as notes:
                notes.write("s")
            time.sleep(0.02)
        return self.last(x)


def linear():
    return nn.Linear(3, 2)


def wide():
    return nn.Linear(3, 5)


def flat():
    return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))


def missing():
    raise FileNotFoundError("no weights here")


def frozen(value):
    first = nn.Linear(3, 3).requires_grad_(False)
    nn.init.constant_(first.weight, value)
    nn.init.constant_(first.bias, value)
    return nn.Sequential(first, nn.Linear(3, 2))


class Deadly(nn.Module):
    """Ends the process of a worker on Ray at a certain record, and notes it in a file."""

    def __init__(self, notes):
        super().__init__()
        self.notes, self.last = notes, nn.Linear(3, 2)

    def forward(self, x):
        if in_ray_worker() and bool((x == DEADLY).any()):
            with open(self.notes, "a") as file:
                file.write("died\n")
            os._exit(1)
        return self.last(x)


def in_ray_worker():
    return sys.argv[0].endswith("default_worker.py")
