"""Gram norms in one reading, as Triton reads them: tiles of two Gram matrices meet where they are formed.

A program works on one sample, never on two, and on two of its stretches of tokens; beyond the last token are zeros.
"""

# mypy: ignore-errors

from __future__ import annotations

try:
    from triton import jit
    from triton import language as tl
except ImportError:  # then nobody compiles what follows
    tl = None

    def jit(function):
        return function


def gram_products(
    a_ptr, e_ptr, f_ptr, g_ptr, out_ptr, samples, tokens, d, p, q, r, a_root, e_root, f_root, g_root,
    COUNT: tl.constexpr, ROUNDS_INPUTS: tl.constexpr, SIDE: tl.constexpr, STEP: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The five sums of ``gram_sums`` for two stretches, of one input and up to three errors.

    ``ALONE`` says that a sample has no more than one stretch.
    """
    down = tl.cdiv(tokens, SIDE)
    pairs = down * (down + 1) // 2
    program = tl.program_id(0)
    sample, pair = (program // pairs).to(tl.int64), program % pairs
    i, j = stretches(pair, down)
    out_ptr += sample * pairs + pair
    step = samples * pairs
    a = tile(a_ptr, sample, i, j, tokens, d, ALONE, SIDE, STEP)
    e = tile(e_ptr, sample, i, j, tokens, p, ALONE, SIDE, STEP)
    five_sums(out_ptr, step, a, e, i, j, tokens, a_root, e_root, ROUNDS_INPUTS, SIDE)
    if COUNT > 1:
        f = tile(f_ptr, sample, i, j, tokens, q, ALONE, SIDE, STEP)
        five_sums(out_ptr + 5 * step, step, a, f, i, j, tokens, a_root, f_root, ROUNDS_INPUTS, SIDE)
    if COUNT > 2:
        g = tile(g_ptr, sample, i, j, tokens, r, ALONE, SIDE, STEP)
        five_sums(out_ptr + 10 * step, step, a, g, i, j, tokens, a_root, g_root, ROUNDS_INPUTS, SIDE)


@jit
def stretches(pair, down):
    """The pair i <= j of ``down`` stretches: a triangle's longer rows laid into a rectangle beside its shorter ones."""
    even = 1 - down % 2
    row, column = pair // (down + even), pair % (down + even)
    longer = column >= row + even
    i = tl.where(longer, row, down - even - row)
    return i, tl.where(longer, column - even, i + column)


@jit
def tile(
    x_ptr, sample, i, j, tokens, width, ALONE: tl.constexpr, SIDE: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """Inner products of the tokens of two stretches of one sample, one chain of float32 sums over the width each."""
    x_ptr += sample * tokens * width
    steps = tl.arange(0, STEP)
    above, beside = i * SIDE + tl.arange(0, SIDE), j * SIDE + tl.arange(0, SIDE)
    left = x_ptr + above[:, None] * width + steps[None, :]
    right = x_ptr + beside[:, None] * width + steps[None, :]
    products = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, width, STEP):
        inside = (steps < width - start)[None, :]
        x = tl.load(left, mask=(above < tokens)[:, None] & inside, other=0.0)
        left += STEP
        if ALONE:
            products = tl.dot(x, tl.trans(x), products, input_precision="tf32")
        else:
            y = tl.load(right, mask=(beside < tokens)[:, None] & inside, other=0.0)
            products = tl.dot(x, tl.trans(y), products, input_precision="tf32")
            right += STEP
    return products


@jit
def five_sums(
    out_ptr, step, a, e, i, j, tokens, a_root, e_root, ROUNDS_INPUTS: tl.constexpr, SIDE: tl.constexpr
):  # fmt: skip
    """Sums of two tiles, of which one off the diagonal stands for two; lengths only come from those on it."""
    times = tl.where(i == j, 1.0, 2.0)
    tl.store(out_ptr, times * total(a * e, SIDE))
    tl.store(out_ptr + step, times * total(e * e if ROUNDS_INPUTS else a * a, SIDE))
    rows = tl.arange(0, SIDE)
    own = rows[:, None] == rows[None, :]
    there = (i == j) & (i * SIDE + rows < tokens)
    a_long = tl.where(there, tl.sqrt(tl.sum(tl.where(own, a, 0.0), 1)) + a_root, 0.0)
    e_long = tl.where(there, tl.sqrt(tl.sum(tl.where(own, e, 0.0), 1)) + e_root, 0.0)
    tl.store(out_ptr + 2 * step, tl.sum(a_long * e_long, 0))
    tl.store(out_ptr + 3 * step, tl.sum(a_long * a_long if ROUNDS_INPUTS else e_long * e_long, 0))
    tl.store(out_ptr + 4 * step, tl.sum(a_root * e_long + e_root * a_long, 0))


@jit
def total(values, SIDE: tl.constexpr):
    """The sum of a tile, by chains of at most four sums within a thread."""
    columns = tl.sum(tl.sum(tl.reshape(values, (SIDE, SIDE // 32, 4, 8)), 1), 1)
    return tl.sum(tl.sum(columns, 1), 0)
