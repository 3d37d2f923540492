"""The kernels of linear heads, as Triton reads them."""

# mypy: ignore-errors

from __future__ import annotations

try:
    import triton.language as tl
except ImportError:  # then nobody compiles what follows
    tl = None


def clip_residuals(
    scores_ptr, labels_ptr, limits_ptr, out_ptr, classes, records, limits_row,
    KEPT: tl.constexpr, CLASSES: tl.constexpr, RECORDS: tl.constexpr,
):  # fmt: skip
    """Some records of one head: residuals softmax - one-hot, no longer than their limits, bits outside KEPT dropped.

    Square root and division are rounded, as the bound on lengths counts them; the exponential need not be.
    """
    head = tl.program_id(1).to(tl.int64)
    label, record = tl.arange(0, CLASSES), tl.program_id(0) * RECORDS + tl.arange(0, RECORDS)
    there = (label < classes)[:, None] & (record < records)[None, :]
    at = (head * classes + label)[:, None] * records + record[None, :]
    scores = tl.load(scores_ptr + at, mask=there, other=float("-inf"))
    own = tl.load(labels_ptr + record, mask=record < records, other=0)
    limits = tl.load(limits_ptr + head * limits_row + record, mask=record < records, other=0.0)
    shares = tl.exp(scores - tl.max(scores, 0)[None, :])
    shares = shares / tl.sum(shares, 0)[None, :]
    residuals = tl.where(label[:, None] == own[None, :], shares - 1.0, shares)
    lengths = tl.sqrt_rn(tl.sum(residuals * residuals, 0))
    residuals = residuals * tl.minimum(tl.div_rn(limits, lengths), 1.0)[None, :]
    residuals = tl.where((residuals == residuals) & (limits > 0.0)[None, :], residuals, 0.0)
    kept = (residuals.to(tl.int32, bitcast=True) & KEPT).to(tl.float32, bitcast=True)
    tl.store(out_ptr + at, kept, mask=there)


def deep_product(
    left_ptr, right_ptr, out_ptr, rows, width, left_row, right_column, each,
    PIECES: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, MORE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A part of left (rows, length) times right (length, width), both with the length side by side in memory.

    DEPTH numbers at a time are added by tensor cores in float32, these sums in float64. ROWS and MORE rows are two
    tiles, because the size of a tile is a power of 2.
    """
    part, first = tl.program_id(1).to(tl.int64), tl.program_id(2) * each
    last = tl.minimum(first + each, rows)
    row, column = first + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    others = first + ROWS + tl.arange(0, MORE if MORE else 16)
    place = part * (PIECES * DEPTH) + tl.arange(0, DEPTH)
    left = left_ptr + row.to(tl.int64)[None, :] * left_row + place[:, None]
    below = left_ptr + others.to(tl.int64)[None, :] * left_row + place[:, None]
    right = right_ptr + column.to(tl.int64)[:, None] * right_column + place[None, :]
    total = tl.zeros((COLUMNS, ROWS), tl.float64)
    more = tl.zeros((COLUMNS, MORE if MORE else 16), tl.float64)
    for _ in range(PIECES):
        numbers = tl.load(right, mask=(column < width)[:, None], other=0.0)
        weights = tl.load(left, mask=(row < last)[None, :], other=0.0)
        total += tl.dot(numbers, weights, input_precision="tf32").to(tl.float64)
        if MORE:
            weights = tl.load(below, mask=(others < last)[None, :], other=0.0)
            more += tl.dot(numbers, weights, input_precision="tf32").to(tl.float64)
        left += DEPTH
        below += DEPTH
        right += DEPTH
    out = out_ptr + (part * width + column)[:, None] * rows
    tl.store(out + row[None, :], total, mask=(column < width)[:, None] & (row < last)[None, :])
    if MORE:
        tl.store(out + others[None, :], more, mask=(column < width)[:, None] & (others < last)[None, :])
