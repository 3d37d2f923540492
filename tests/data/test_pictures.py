"""Picture files: what can be read becomes its pixels, everything else is null, and no file touches another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpilot.data import pictures
from dpilot.data.column_types import CellState
from dpilot.data.encoder import Encoder
from dpilot.data.files import Table
from dpilot.data.folders import class_names, folder_schema
from dpilot.data.pictures import FINE, OTHER_MODE, UNREADABLE, PictureFile, PictureForm, read_pictures
from dpilot.data.schema import Schema
from dpilot.data.states import record_states
from dpilot.data.workers import WorkerPool, WorkerProcess
from dpilot.errors import InvalidInput
from tests.data.pictures import SIDE, bomb, encoded, folder_of, pixels, put_odd

FORM = PictureForm(SIDE, SIDE, 3)
OTHER = ("grey", "with alpha")


def schema(**more) -> Schema:
    column = {"type": "image", "size": [SIDE, SIDE], **more}
    return Schema.from_dict({"columns": {"file": column, "y": {"type": "boolean", "role": "target"}}})


def test_every_odd_file_is_null_among_files_that_are_read_as_they_are(tmp_path, capfd):
    root = tmp_path / "root"
    root.mkdir()
    odd = put_odd(root, tmp_path / "elsewhere")
    good = [f"good{number}.png" for number in range(len(odd) + 1)]
    for number, name in enumerate(good):
        (root / name).write_bytes(encoded(pixels(number)))
    names = [each for pair in zip(good, odd.values(), strict=False) for each in pair] + good[-1:]
    found, codes = read_pictures([PictureFile(str(root), name) for name in names], FORM)
    assert np.array_equal(found[::2], [pixels(number) for number in range(len(good))])
    assert (codes[::2] == FINE).all()
    assert dict(zip(odd, codes[1::2].tolist(), strict=True)) == {
        what: OTHER_MODE if what in OTHER else UNREADABLE for what in odd
    }
    assert not found[1::2].any()
    assert capfd.readouterr() == ("", "")
    converted, codes = read_pictures([PictureFile(str(root), odd["grey"])], PictureForm(SIDE, SIDE, 3, convert=True))
    assert np.array_equal(converted[0], pixels(0)[..., :1].repeat(3, axis=2))
    assert codes.tolist() == [OTHER_MODE]


def test_pictures_of_another_size_are_made_as_large_each_by_itself(tmp_path):
    large = np.kron(pixels(3), np.ones((4, 2, 1), dtype=np.uint8))
    for name, form in (("a.png", "PNG"), ("b.jpg", "JPEG"), ("c.bmp", "BMP"), ("d.webp", "WEBP"), ("e.tif", "TIFF")):
        (tmp_path / name).write_bytes(encoded(large, form))
    names = sorted(each.name for each in tmp_path.iterdir())
    found, codes = read_pictures([PictureFile(str(tmp_path), name) for name in names], FORM)
    assert (codes == FINE).all()
    assert np.abs(found.astype(float) - pixels(3)).mean() < 30
    alone = np.concatenate([read_pictures([PictureFile(str(tmp_path), name)], FORM)[0] for name in names])
    assert np.array_equal(found, alone)


STANDING_IN = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("worker", {worker!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
decode, seen = worker.decode, []
worker.SECONDS = 0.2

def strange(root, name, size, mode, *, convert):
    seen.append(name)
    print("a decoder's own words", file=sys.stderr)
    if name.startswith(b"crash") or (name.startswith(b"later") and len(seen) > 1):
        os.abort()
    if name.startswith(b"stall"):
        while True:
            pass
    if name.startswith(b"memory"):
        raise MemoryError
    if name.startswith(b"half"):
        sys.stdout.buffer.write(b"\\x01half"); sys.stdout.buffer.flush(); os._exit(0)
    return decode(root, name, size, mode, convert=convert)

worker.decode = strange
worker.main()
"""


def test_a_file_that_ends_its_decoder_is_null_and_no_other_file_is(tmp_path, capfd):
    script = tmp_path / "worker.py"
    script.write_text(STANDING_IN.format(worker=pictures.picture_worker.__file__))
    pool = WorkerPool(str(script), 8)
    names = ["a.png", "crash.png", "b.png", "later.png", "stall.png", "e.png", "memory.png", "half.png", "d.png"]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(encoded(pixels(number)))
    try:
        found, codes = read_pictures([PictureFile(str(tmp_path), name) for name in names], FORM, pool=pool)
    finally:
        pool.stop()
    fine = [name[0] in "abedl" for name in names]  # what dies in a used process alone is read by a fresh one
    assert (codes == FINE).tolist() == fine
    assert all(np.array_equal(found[place], pixels(place) * fine[place]) for place in range(len(names)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["by another", "as the system does again and again"])
def test_a_worker_that_is_killed_from_outside_takes_no_file_with_it(tmp_path, monkeypatch, how):
    pool = WorkerPool(pictures.picture_worker.__file__, 1)
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(encoded(pixels(number)))
    files = [PictureFile(str(tmp_path), f"{number}.png") for number in range(2)]
    start, started = WorkerProcess.start, []

    def start_and_kill(worker):
        ready = start(worker)
        started.append(worker)
        if how != "by another" or len(started) < 4:  # before its first answer
            worker.process.kill()
            worker.process.wait()
        return ready

    monkeypatch.setattr(WorkerProcess, "start", start_and_kill)
    try:
        found, codes = read_pictures(files, FORM, pool=pool)
    finally:
        pool.stop()
    fine = how == "by another"
    assert codes.tolist() == [FINE if fine else UNREADABLE] * 2
    assert np.array_equal(found, [pixels(number) * fine for number in range(2)])


def test_a_worker_that_cannot_start_is_told_and_leaves_with_its_parent(tmp_path):
    (tmp_path / "worker.py").write_text("raise SystemExit(1)")
    with pytest.raises(InvalidInput, match="cannot start"):
        read_pictures([PictureFile(".", "a.png")], FORM, pool=WorkerPool(str(tmp_path / "worker.py"), 8))


def test_a_script_without_a_main_guard_reads_pictures_and_leaves_no_process(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(pixels(0)))
    code = (
        "from dpilot.data.pictures import *\nimport dpilot.data.pictures as p\n"
        f"print(read_pictures([PictureFile({str(tmp_path)!r}, 'a.png')], PictureForm(8, 8, 3))[1].tolist())\n"
        "print([w.process.pid for w in p._pool.workers][0])"
    )
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    codes, pid = done.stdout.split("\n")[:2]
    assert codes == "[1]"
    assert not Path(f"/proc/{pid}").exists()
    assert done.stderr == ""


def test_a_folder_is_a_table_of_files_and_classes(tmp_path):
    root = folder_of(tmp_path / "pics", 3)
    (root / ".hidden").mkdir()
    (root / "readme.txt").write_text("x")
    (root / "dark" / "deeper").mkdir()
    assert class_names(root) == ["bright", "dark"]
    table = Table.open(root, folder_schema(root))
    (frame,) = table.frames()
    assert table.length() == len(frame) == 8
    assert [file.name for file in frame["picture"]] == [
        *(f"bright/{number:04}.png" for number in range(3)),
        *(f"dark/{number:04}.png" for number in range(3)),
        "dark/deeper",
        "readme.txt",
    ]
    assert frame["class"].tolist()[:-1] == ["bright"] * 3 + ["dark"] * 4
    assert record_states(table.schema, frame).usable.tolist() == [True] * 6 + [False] * 2
    with pytest.raises(InvalidInput, match="expected the names of two or more folders"):
        folder_schema(root, ["dark"])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_names_in_a_table_are_below_its_own_folder(tmp_path, form, monkeypatch):
    folder_of(tmp_path / "pics", 2)
    frame = {"file": ["dark/0000.png", "bright/0001.png", "", "pics/dark/0000.png"], "y": ["1", "0", "1", "0"]}
    import pandas as pd

    path = tmp_path / f"t.{form}"
    getattr(pd.DataFrame(frame), f"to_{form}")(path, index=False)
    monkeypatch.chdir("/")
    (read,) = Table.open(path, schema(folder="pics")).frames()
    states = record_states(schema(folder="pics"), read).columns["file"].tolist()
    assert states == [CellState.FINE, CellState.FINE, CellState.MISSING, CellState.UNREADABLE]
    rows = Encoder(schema(folder="pics", missing="null")).encode(read).features
    assert np.allclose(np.linalg.norm(rows[:2], axis=1), 1)
    assert np.isnan(rows[2:]).all()
    with pytest.raises(InvalidInput, match="folder is 'pisc', and there is no such folder"):
        Table.open(path, schema(folder="pisc"))


def test_cells_in_memory_are_names_paths_or_arrays(tmp_path, monkeypatch):
    folder_of(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    good, name = pixels(0), "dark/0000.png"
    cells = [name, Path(name), str(tmp_path / name), good, good[..., 0], good.astype(float), b"dark/0000.png", 5, None]
    made = {"file": np.fromiter(cells, dtype=object), "y": [True] * len(cells)}
    states = record_states(schema(), made).columns["file"]
    fine = [CellState.FINE] * 4 + [CellState.UNREADABLE] * 2 + [CellState.FINE]
    assert states.tolist() == [*fine, CellState.UNREADABLE, CellState.MISSING]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"size": None}, "size is missing"),
        ({"size": [8]}, "expected .width, height."),
        ({"size": [8, 8.0]}, "expected .width, height."),
        ({"size": [8, 5000]}, "up to 1024"),
        ({"mode": "CMYK"}, "mode is 'CMYK'"),
        ({"outside": "clamp"}, "can be clamped"),
        ({"role": "protected"}, "groups are compared"),
        ({"backbone": ""}, "backbone is ''"),
    ],
)
def test_what_a_column_of_pictures_may_say(column, said):
    with pytest.raises(InvalidInput, match=said):
        schema(**column)
    assert schema(folder="x", mode="L", outside="convert") == Schema.parse(
        schema(folder="x", mode="L", outside="convert").to_toml()
    )


@pytest.mark.slow
def test_a_large_bomb_takes_little_memory_and_time(tmp_path):
    import resource

    (tmp_path / "a.png").write_bytes(bomb(8_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_pictures([PictureFile(str(tmp_path), "a.png")], FORM)[1].tolist() == [UNREADABLE]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert pictures._pool.workers
