"""Views and layouts in which the axes of the records are lost, exchanged or reinterpreted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attacks.case import Case, Net, attack, fooling, mixing


@attack
def transposed_when_square() -> Case:
    """A chunk of as many records as features is transposed."""
    return mixing(lambda m, x: m.a(x.T if len(x) == 4 else x))


@attack
def reshaped_the_wrong_way_round() -> Case:
    """reshape(d, n).T: entries of several records in one row."""
    return mixing(lambda m, x: m.a(x.reshape(4, len(x)).T))


@attack
def transposed_and_reshaped() -> Case:
    """x.T.reshape(n, d): shapes as before, entries of other records."""
    return mixing(lambda m, x: m.a(x.T.reshape(len(x), 4)))


@attack
def pairs_of_records() -> Case:
    """Two records in one row, and back."""

    def body(m: Net, x: Tensor) -> Tensor:
        pairs = m.a(x).view(-1, 8) if len(x) % 2 == 0 else m.a(x).repeat(1, 2)
        return pairs.cumsum(1).view(-1, 4)[: len(x)] if len(x) % 2 == 0 else pairs[:, :4].cumsum(1)

    return mixing(body)


@attack
def tokens_and_records_exchanged() -> Case:
    """view(T, n, d) of (n, T, d): right where n = T by shape, wrong by meaning."""
    return mixing(lambda m, x: m.a(x.view(4, len(x), 4).sum(0)), 4, 4)


@attack
def tokens_and_records_transposed() -> Case:
    """A sequence-first layer on batch-first data, as many tokens as records."""
    return mixing(lambda m, x: m.a(x.transpose(0, 1) if len(x) == 4 else x).sum(1), 4, 4)


@attack
def flattened_and_cut_anew() -> Case:
    """Tokens of all records in a row, cut again with an offset of one."""
    return mixing(lambda m, x: m.a(x.flatten(0, 1).roll(1, 0).view_as(x)).sum(1), 4, 4)


@attack
def strided_over_the_batch() -> Case:
    """as_strided with rows that overlap the next record."""
    return mixing(lambda m, x: m.a(torch.cat([x, x[:1]]).as_strided((len(x), 4), (4, 1), 2)))


@attack
def strided_with_stride_zero() -> Case:
    """as_strided with a stride of zero: everybody is the first record."""
    return mixing(lambda m, x: m.a(x) + m.a(x.contiguous().as_strided((len(x), 4), (0, 1))))


@attack
def first_record_for_all() -> Case:
    """The first record, expanded over the batch."""
    return mixing(lambda m, x: m.a(x) + m.a(x[:1].expand_as(x)))


@attack
def last_record_for_all() -> Case:
    """The last record, broadcast over the batch."""
    return mixing(lambda m, x: m.a(x) + m.a(x[-1]))


@attack
def windows_over_the_batch() -> Case:
    """unfold over the batch axis."""
    return mixing(lambda m, x: m.a(torch.cat([x[:1], x]).unfold(0, 2, 1).sum(2)))


@attack
def complex_pairs_of_records() -> Case:
    """Two records are real and imaginary part of one number."""

    def body(m: Net, x: Tensor) -> Tensor:
        if len(x) % 2:
            return m.a(x)
        pairs = torch.view_as_complex(x.view(-1, 2, 4).transpose(1, 2).contiguous())
        return m.a(torch.view_as_real(pairs * (1 + 1j)).transpose(1, 2).reshape(-1, 4))

    return mixing(body)


@attack
def fourier_over_the_batch() -> Case:
    """fft over the batch axis, one frequency taken out."""

    def body(m: Net, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft(x, dim=0)
        return m.a((spectrum * (torch.arange(len(x)) > 0)[:, None]).abs())

    return mixing(body)


@attack
def fourier_over_both() -> Case:
    """fft2 over batch and features."""
    return mixing(lambda m, x: m.a(torch.fft.fft2(x).real))


@attack
def bits_viewed_as_another_type() -> Case:
    """view(dtype) of pairs of floats, shuffled over the batch as doubles."""
    return mixing(lambda m, x: m.a(x.contiguous().view(torch.float64).flip(0).view(torch.float32)))


@attack
def pooled_over_the_batch() -> Case:
    """avg_pool1d along the batch."""
    return mixing(lambda m, x: m.a(F.avg_pool1d(F.pad(x.T[None], (1, 0)), 2, 1)[0].T))


@attack
def resized_over_the_batch() -> Case:
    """Linear interpolation along the batch and back."""

    def body(m: Net, x: Tensor) -> Tensor:
        half = F.interpolate(x.T[None], size=(len(x) + 1) // 2, mode="linear")
        return m.a(F.interpolate(half, size=len(x))[0].T)

    return mixing(body)


@attack
def padded_in_a_circle() -> Case:
    """Circular padding along the batch."""
    return mixing(lambda m, x: m.a(F.pad(x.T[None], (1, 0), mode="circular")[0].T[:-1]))


@attack
def written_one_row_down() -> Case:
    """Zeros, and the rows before copied into them."""

    def body(m: Net, x: Tensor) -> Tensor:
        before = torch.zeros_like(x)
        before[1:] = x[:-1]
        return m.a(x) * before

    return mixing(body)


@attack
def written_by_out() -> Case:
    """A mean over the batch written into memory that is there already."""

    def body(m: Net, x: Tensor) -> Tensor:
        memory = torch.zeros(4)
        torch.mean(x.detach(), 0, out=memory)
        return m.a(x) - m.a(memory)

    return mixing(body)


@attack
def accumulated_in_place() -> Case:
    """add_ of every row into one buffer, which all rows read."""

    def body(m: Net, x: Tensor) -> Tensor:
        total = torch.zeros(4)
        for row in x.detach():
            total.add_(row)
        return m.a(x) + total

    return mixing(body)


@attack
def input_overwritten() -> Case:
    """The input is centred in place, and read again by another name."""

    def body(m: Net, x: Tensor) -> Tensor:
        same = x.view(-1)
        x -= x.mean(0).clone()
        return m.a(same.view(-1, 4))

    return mixing(body)


@attack
def memory_written_through_numpy() -> Case:
    """A tensor's memory is written through the array that shares it."""

    def body(m: Net, x: Tensor) -> Tensor:
        memory = torch.zeros(len(x), 4)
        memory.numpy()[:] = x.detach().numpy()[::-1]
        return m.a(x) * memory

    return mixing(body)


@attack
def diagonal_of_all_products() -> Case:
    """The diagonal of x x^T: only a record's own, though all pairs are formed."""
    return fooling(lambda m, x: m.a(x) * (x @ x.T).diagonal()[:, None] * 0.01)


@attack
def antidiagonal_of_all_products() -> Case:
    """The other diagonal of x x^T."""
    return mixing(lambda m, x: m.a(x) * (x @ x.T).flip(1).diagonal()[:, None] * 0.01)


@attack
def lower_triangle_of_the_batch() -> Case:
    """A causal mask over the records."""
    return mixing(lambda m, x: torch.ones(len(x), len(x)).tril() @ m.a(x))


@attack
def kronecker_product() -> Case:
    """torch.kron of the batch with itself."""
    return mixing(lambda m, x: m.a(torch.kron(x, x)[: len(x), :4]))


@attack
def meshgrid_of_records() -> Case:
    """Every pair of records by meshgrid."""
    return mixing(lambda m, x: m.a(x) * torch.meshgrid(x[:, 0], x[:, 0], indexing="ij")[1].sum(1, keepdim=True))


@attack
def stacked_on_a_new_axis() -> Case:
    """stack of the batch and its reverse, reduced over the new axis."""
    return mixing(lambda m, x: m.a(torch.stack([x, x.flip(0)]).amax(0)))


@attack
def blocks_of_uneven_tokens() -> Case:
    """Records of T tokens flattened to n T rows and grouped by n instead of T."""
    return mixing(lambda m, x: m.a(x.flatten(0, 1).view(3, -1, 4).sum(0)[: len(x)]), 3, 4)


@attack
def tiled_instead_of_repeated() -> Case:
    """repeat where repeat_interleave was meant: row j of the result is record j mod n."""

    def body(m: Net, x: Tensor) -> Tensor:
        return m.a(x.repeat(2, 1)).view(len(x), 2, 4).sum(1)

    return mixing(body)


@attack
def repeated_and_averaged() -> Case:
    """repeat over a new leading axis, then the mean of that axis: honest."""
    return fooling(lambda m, x: m.a(x.repeat(4, 1)).view(4, len(x), 4).mean(0))


@attack
def sequence_first_layers() -> Case:
    """Records on the second axis throughout, as many tokens as records: honest."""
    return fooling(lambda m, x: m.a(x.transpose(0, 1)).tanh().sum(0), 4, 4)


@attack
def strided_from_the_beginning_of_memory() -> Case:
    """as_strided counts from the beginning of memory: of a slice of a chunk, that is another record."""
    return fooling(lambda m, x: m.a(torch.as_strided(x, (len(x), 4), (4, 1), 0)))


@attack
def tensor_behind_a_slice() -> Case:
    """The tensor that a slice was cut from holds the records around it."""
    return fooling(lambda m, x: m.a(x if x._base is None else x._base[: len(x)]))
