"""Picture files for tests: good ones, and all kinds that are none."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 8


def pixels(seed: int, bright: bool = False) -> np.ndarray:
    """A picture of SIDE x SIDE in colours, its lower half brighter where asked for."""
    made = np.random.default_rng(seed).integers(0, 120, (SIDE, SIDE, 3))
    made[SIDE // 2 :] += 120 * bright
    return made.astype(np.uint8)


def encoded(array: np.ndarray, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def folder_of(root: Path, each: int) -> Path:
    """Class folders ``dark`` and ``bright`` of so many pictures each."""
    for place, name in enumerate(("dark", "bright")):
        (root / name).mkdir(parents=True)
        for number in range(each):
            (root / name / f"{number:04}.png").write_bytes(encoded(pixels(2 * number + place, bright=bool(place))))
    return root


def bomb(side: int) -> bytes:
    """A PNG file of a few hundred bytes that says it is of side x side pixels, and begins to be."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(1 << 16)))]
    made = b"\x89PNG\r\n\x1a\n"
    for name, body in [*chunks, (b"IEND", b"")]:
        made += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return made


def put_odd(root: Path, outside: Path) -> dict[str, str]:
    """Entries below ``root`` that are no pictures of the declared form, by what is wrong: their names."""
    good = encoded(pixels(0))
    files = {
        "empty": b"",
        "no picture": b"not a picture at all",
        "cut short": good[: len(good) // 2],
        "cut in its head": good[:20],
        "bytes changed": good[:60] + bytes(40) + good[100:],
        "a bomb": bomb(100_000),
        "a smaller bomb": bomb(9_000),
        "an svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(x) run\n",
        "grey": encoded(pixels(0)[..., 0]),
        "with alpha": encoded(np.dstack([pixels(0), pixels(1)[..., 0]])),
    }
    outside.mkdir(exist_ok=True)
    (outside / "secret.png").write_bytes(good)
    names = {}
    for number, (what, content) in enumerate(files.items()):
        names[what] = f"odd{number}.png"
        (root / names[what]).write_bytes(content)
    (root / "a folder.png").mkdir()
    (root / "out.png").symlink_to(outside / "secret.png")
    (root / "dangling.png").symlink_to(root / "nowhere.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    os.mkfifo(root / "pipe.png")
    return names | {
        "a folder": "a folder.png",
        "a link outside": "out.png",
        "a dangling link": "dangling.png",
        "a link to itself": "loop.png",
        "a pipe": "pipe.png",
        "a device": "/dev/zero",
        "above the folder": f"../{outside.name}/secret.png",
        "an absolute path": str(outside / "secret.png"),
        "no such file": "absent.png",
        "a long name": "x" * 10_000,
        "a zero byte": "a\0b.png",
        "half a character": "\ud800.png",
    }
