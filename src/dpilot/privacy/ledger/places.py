"""Where a ledger may live: a local disk, because network file systems do not lock and sync as SQLite needs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from dpilot.errors import LedgerError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = re.compile(
    "nfs4?|cifs|smb3|smbfs|ncpfs|afs|9p|drvfs|ceph|lustre|glusterfs|beegfs|gpfs|orangefs|pvfs2|ocfs2|gfs2|coda|davfs|"
    "virtiofs|vboxsf|prl_fs|wekafs|panfs|"
    r"fuse|fuse\.(?!encfs$|gocryptfs$|cryfs$|mergerfs$|fuse-overlayfs$|bindfs$|ntfs-3g$).*"
)


def refuse_network(folder: Path) -> None:
    """Raise LedgerError when ``folder`` is on a network file system. Only Linux tells; elsewhere it is your care."""
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system(str(folder), mounts)
    if _NETWORK.fullmatch(kind):
        raise LedgerError(
            f"{folder} is on a network file system ({kind}): expected a local disk, where locks and fsync hold. "
            "Keep the ledger on a local path of the one machine that spends: name it by --ledger (in Python ledger=), "
            "or a folder for all by DPILOT_LEDGERS."
        )


def file_system(folder: str, mounts: str) -> str:
    """The type of the file system that holds ``folder``, from the text of mountinfo; later mounts cover earlier ones.

    >>> root, data = "1 0 8:1 / / rw - ext4 a rw", "2 1 0:9 / /data rw - nfs4 b rw"
    >>> file_system("/data/x", f"{root}\\n{data}"), file_system("/data/x", f"{data}\\n{root}")
    ('nfs4', 'nfs4')
    >>> file_system("/database", f"{root}\\n{data}")
    'ext4'
    """
    best, found = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if _holds(point, folder) and len(point) >= len(best):
            best, found = point, right.split(" ")[0]
    return found


def sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` survive a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _holds(point: str, folder: str) -> bool:
    return point == "/" or folder == point or folder.startswith(point + "/")
