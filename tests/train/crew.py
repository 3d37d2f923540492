"""Processes that are ranks of one run, as torchrun starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch


class Crew:
    """So many processes of ``python -m module folder ...``."""

    def __init__(self, module, folder, count, *more):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", module, str(folder), *more]
        common = {**os.environ, "PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        common["WORLD_SIZE"] = str(count)
        self.processes = [
            subprocess.Popen(
                command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for rank in range(count)
        ]

    def read_until(self, line):
        for said in self.processes[0].stdout:
            if said.strip() == line:
                return

    def wait(self):
        """Exit codes and errors of all."""
        ended = [process.communicate(timeout=300) for process in self.processes]
        return [(process.returncode, errors) for process, (_, errors) in zip(self.processes, ended, strict=True)]


def finish(module, folder, count, *more):
    """What each rank left beside the folder."""
    for code, errors in Crew(module, folder, count, *more).wait():
        assert code == 0, errors
    return [torch.load(f"{folder}.{rank}", weights_only=False) for rank in range(count)]
