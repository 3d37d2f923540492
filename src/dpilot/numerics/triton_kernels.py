"""The kernels themselves, as Triton reads them. A program works on one sample, never on two."""

# mypy: ignore-errors

from __future__ import annotations

try:
    import triton.language as tl
except ImportError:  # then nobody compiles what follows
    tl = None


def gram_sums(
    a_ptr, e_ptr, out_ptr, tokens, a_sample, a_row, e_sample, e_row, a_root, e_root,
    ROUNDS_INPUTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums of some rows of two Gram matrices: A E; one of them squared.

    And of lengths off their diagonals: a e; one of them squared; each times what may have vanished of the other.
    """
    sample, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = block * ROWS + tl.arange(0, ROWS)
    a_ptr += sample * a_sample
    e_ptr += sample * e_sample
    both = tl.zeros((ROWS, WIDTH), tl.float32)
    kept = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, tokens, WIDTH):
        columns = start + tl.arange(0, WIDTH)
        inside = (rows[:, None] < tokens) & (columns[None, :] < tokens)
        a = tl.load(a_ptr + rows[:, None] * a_row + columns[None, :], mask=inside, other=0.0)
        e = tl.load(e_ptr + rows[:, None] * e_row + columns[None, :], mask=inside, other=0.0)
        both += a * e
        kept += e * e if ROUNDS_INPUTS else a * a
    a_own = tl.load(a_ptr + rows * (a_row + 1), mask=rows < tokens, other=0.0)
    e_own = tl.load(e_ptr + rows * (e_row + 1), mask=rows < tokens, other=0.0)
    a_long = tl.where(rows < tokens, tl.sqrt(a_own) + a_root, 0.0)
    e_long = tl.where(rows < tokens, tl.sqrt(e_own) + e_root, 0.0)
    out_ptr += sample * tl.num_programs(1) + block
    step = tl.num_programs(0) * tl.num_programs(1)
    tl.store(out_ptr, tl.sum(tl.sum(both, 1), 0))
    tl.store(out_ptr + step, tl.sum(tl.sum(kept, 1), 0))
    tl.store(out_ptr + 2 * step, tl.sum(a_long * e_long, 0))
    tl.store(out_ptr + 3 * step, tl.sum(a_long * a_long if ROUNDS_INPUTS else e_long * e_long, 0))
    tl.store(out_ptr + 4 * step, tl.sum(a_root * e_long + e_root * a_long, 0))


def weighted(rows_ptr, weights_ptr, out_ptr, each, LONG: tl.constexpr):
    """A stretch of one sample times its weight."""
    sample = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * LONG + tl.arange(0, LONG)
    row = tl.load(rows_ptr + sample * each + at, mask=at < each, other=0.0)
    tl.store(out_ptr + sample * each + at, (row * tl.load(weights_ptr + sample)).to(row.dtype), mask=at < each)


def on_grid(
    values_ptr, laid_ptr, channels, height, width, places, grid_width, top, left, TILE: tl.constexpr
):  # fmt: skip
    """A tile of one image, channels and places exchanged; places outside the image are zero."""
    sample = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    channel = tl.program_id(2) * TILE + tl.arange(0, TILE)
    row, column = place // grid_width - top, place % grid_width - left
    seen = (place < places) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    there = channel < channels
    source = values_ptr + sample * channels * height * width
    image = tl.load(
        source + channel[:, None] * (height * width) + (row * width + column)[None, :],
        mask=there[:, None] & seen[None, :],
        other=0.0,
    )
    target = laid_ptr + sample * places * channels
    keep = (place < places)[:, None] & there[None, :]
    tl.store(target + place[:, None] * channels + channel[None, :], tl.trans(image), mask=keep)


def norm_sums(
    x_ptr, e_ptr, mean_ptr, rate_ptr, scale_ptr, shift_ptr, tokens, width, TOKENS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Some columns of one sample: the sums over tokens of e (x - mean) rate, and of e."""
    sample = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    scale = tl.zeros((TOKENS, COLUMNS), tl.float32)
    shift = tl.zeros((TOKENS, COLUMNS), tl.float32)
    for start in range(0, tokens, TOKENS):
        rows = start + tl.arange(0, TOKENS)
        inside = (rows < tokens)[:, None] & (columns < width)[None, :]
        at = (sample * tokens + rows)[:, None] * width + columns[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        e = tl.load(e_ptr + at, mask=inside, other=0.0)
        mean = tl.load(mean_ptr + sample * tokens + rows, mask=rows < tokens, other=0.0)
        rate = tl.load(rate_ptr + sample * tokens + rows, mask=rows < tokens, other=0.0)
        scale += e * ((x - mean[:, None]) * rate[:, None])
        shift += e
    tl.store(scale_ptr + sample * width + columns, tl.sum(scale, 0), mask=columns < width)
    tl.store(shift_ptr + sample * width + columns, tl.sum(shift, 0), mask=columns < width)


def truncate_and_sum(
    values_ptr, cut_ptr, sums_ptr, tokens, width, KEPT: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Some columns of one sample: its numbers without the bits that TF32 drops, and their sums over tokens uncut."""
    sample = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((TOKENS, COLUMNS), tl.float32)
    for start in range(0, tokens, TOKENS):
        rows = start + tl.arange(0, TOKENS)
        inside = (rows < tokens)[:, None] & (columns < width)[None, :]
        at = (sample * tokens + rows)[:, None] * width + columns[None, :]
        bits = tl.load(values_ptr + at, mask=inside, other=0)
        tl.store(cut_ptr + at, bits & KEPT, mask=inside)
        sums += bits.to(tl.float32, bitcast=True)
    tl.store(sums_ptr + sample * width + columns, tl.sum(sums, 0), mask=columns < width)


def row_sums(x_ptr, e_ptr, both_ptr, sums_ptr, rows, length, ROWS: tl.constexpr, LONG: tl.constexpr):
    """Some rows of numbers that lie together: the sums of e x and of e. A row belongs to one sample."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    both = tl.zeros((ROWS, LONG), tl.float32)
    sums = tl.zeros((ROWS, LONG), tl.float32)
    for start in range(0, length, LONG):
        columns = start + tl.arange(0, LONG)
        inside = (row < rows)[:, None] & (columns < length)[None, :]
        at = row[:, None] * length + columns[None, :]
        e = tl.load(e_ptr + at, mask=inside, other=0.0)
        both += e * tl.load(x_ptr + at, mask=inside, other=0.0)
        sums += e
    tl.store(both_ptr + row, tl.sum(both, 1), mask=row < rows)
    tl.store(sums_ptr + row, tl.sum(sums, 1), mask=row < rows)
