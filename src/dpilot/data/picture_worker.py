"""Decodes picture files in a process of its own: run as a script, it imports nothing of this package.

What a file does to its decoder (a crash, gigabytes, an endless loop, lines on standard error) happens here, and ends
with this process. Requests come on standard input, one after another:

    request   struct REQUEST, the real path of the root, the name of the file below it
    answer    one byte, a code; if it is not UNREADABLE, width * height * channels bytes follow
"""

from __future__ import annotations

import os
import signal
import stat
import struct
import sys
import warnings
from typing import Any, BinaryIO, Final

REQUEST: Final = struct.Struct("<HHHHBB")  # bytes of the root and the name, width, height, channels, whether to convert
MODES: Final = {1: "L", 3: "RGB"}
UNREADABLE, FINE, OTHER_MODE = 0, 1, 2
READY: Final = b"R"

FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
PIXELS: Final = 1 << 26
BYTES: Final = 1 << 28
SECONDS: Final = 10.0  # of the processor, for one file
MEMORY: Final = 1 << 32


def main() -> None:
    """Answer requests until there are no more."""
    from PIL import Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401  (formats that a file would else load)

    _limit()
    Image.MAX_IMAGE_PIXELS = PIXELS
    warnings.simplefilter("ignore")
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(READY)
    answers.flush()
    while head := requests.read(REQUEST.size):
        root, name, width, height, channels, convert = REQUEST.unpack(head)
        path = requests.read(root), requests.read(name)
        _start_clock(SECONDS)
        try:
            code, pixels = decode(*path, (width, height), MODES[channels], convert=bool(convert))
        except MemoryError:  # what earlier files left behind may be the reason: a fresh process decides
            os._exit(1)
        except Exception:
            code, pixels = UNREADABLE, b""
        _start_clock(0.0)
        answers.write(bytes([code]) + pixels)
        answers.flush()


def decode(root: bytes, name: bytes, size: tuple[int, int], mode: str, *, convert: bool) -> tuple[int, bytes]:
    """The pixels of one file, resized where it has another size, row by row; raises where it has none.

    Edge cases:
        outside the root, by a link or "..", no plain file, empty, too large: refused before a byte is decoded
        another mode        OTHER_MODE: its pixels, converted, where ``convert`` says so, else zeros
        several pictures    the first
    """
    from PIL import Image

    with _open(root, name) as file, Image.open(file, formats=FORMATS) as picture:
        if picture.width * picture.height > PIXELS:
            raise ValueError("too many pixels")
        if (other := picture.mode != mode) and not convert:
            return OTHER_MODE, bytes(size[0] * size[1] * len(mode))
        picture.draft(picture.mode, size)  # of a large JPEG no more than is needed
        found: Any = picture.convert(mode) if picture.mode != mode else picture
        found = found if found.size == size else found.resize(size, Image.Resampling.BICUBIC)
        return OTHER_MODE if other else FINE, found.tobytes()


def _open(root: bytes, name: bytes) -> BinaryIO:
    path = os.path.realpath(os.path.join(root, name))
    if os.path.commonpath([root, path]) != root:
        raise ValueError("outside the root")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe would wait for a writer
    handle = os.open(path, flags)
    file = os.fdopen(handle, "rb")
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= BYTES:
        file.close()
        raise ValueError("no plain file, or of a size that no picture has")
    return file


def _limit() -> None:
    """Memory is bounded; Ctrl-C is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _start_clock(seconds: float) -> None:
    """End the process after so many seconds of the processor, wherever it is then; 0 stops the clock."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal has no handler: the system ends the process


if __name__ == "__main__":
    main()
