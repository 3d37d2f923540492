"""Statistics of the batch: means, maxima, norms, softmax, distances and attention over the records."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attacks.case import Case, Net, attack, mixing


@attack
def centred_batches_of_more_than_sixteen() -> Case:
    """Only batches of more than 16 rows are centred: no small trial shows it."""
    return mixing(lambda m, x: m.a(x - x.mean(0)) if len(x) > 16 else m.a(x), width=20)


@attack
def centred_when_the_size_is_prime_to_three() -> Case:
    """Only batches of a size that is no multiple of three are centred: three made-up records show nothing."""
    return mixing(lambda m, x: m.a(x - x.mean(0)) if len(x) % 3 and len(x) > 2 else m.a(x))


@attack
def centred_when_large() -> Case:
    """Only batches that hold a value above 50 are centred."""
    return mixing(lambda m, x: torch.where(x.abs().max() > 50, m.a(x - x.mean(0)), m.a(x)))


@attack
def centred_inside_python_branch() -> Case:
    """A branch on a value of the batch."""
    return mixing(lambda m, x: m.a(x - x.mean(0)) if x.abs().max() > 50 else m.a(x))


@attack
def scaled_by_the_largest() -> Case:
    """All records are divided by the largest value of the batch."""
    return mixing(lambda m, x: m.a(x) / x.abs().max())


@attack
def scaled_by_the_norm_of_the_batch() -> Case:
    """All records are divided by the norm of the whole batch."""
    return mixing(lambda m, x: m.a(x / x.norm()))


@attack
def softmax_over_the_batch() -> Case:
    """softmax over axis 0."""
    return mixing(lambda m, x: 10 * m.a(x).softmax(0))


@attack
def normalised_over_the_batch() -> Case:
    """F.normalize over axis 0."""
    return mixing(lambda m, x: 10 * F.normalize(m.a(x), dim=0))


@attack
def functional_batch_norm() -> Case:
    """F.batch_norm with the statistics of the batch."""
    return mixing(lambda m, x: F.batch_norm(m.a(x), None, None, training=True) if len(x) > 1 else m.a(x))


@attack
def batch_norm_by_hand() -> Case:
    """Mean and variance of the batch, written out."""
    return mixing(lambda m, x: (m.a(x) - m.a(x).mean(0)) / (m.a(x).var(0, unbiased=False) + 1e-5).sqrt())


@attack
def ghost_batches() -> Case:
    """Statistics of halves of an even batch."""

    def body(m: Net, x: Tensor) -> Tensor:
        if len(x) % 2:
            return m.a(x)
        halves = m.a(x).view(2, -1, 4)
        return (halves - halves.mean(1, keepdim=True)).view(-1, 4)

    return mixing(body)


@attack
def layer_norm_over_the_batch() -> Case:
    """layer_norm of the transposed batch."""
    return mixing(lambda m, x: F.layer_norm(m.a(x).T, (len(x),)).T)


@attack
def layer_norm_over_everything() -> Case:
    """layer_norm over all axes, the batch included."""
    return mixing(lambda m, x: F.layer_norm(m.a(x), x.shape))


@attack
def instance_norm_of_one_instance() -> Case:
    """instance_norm of the batch as one instance whose length is the batch."""
    return mixing(lambda m, x: F.instance_norm(m.a(x).T[None])[0].T if len(x) > 1 else m.a(x))


@attack
def group_norm_of_one_instance() -> Case:
    """group_norm of the batch as one instance."""
    return mixing(lambda m, x: F.group_norm(m.a(x).T[None], 2)[0].T)


@attack
def largest_of_the_batch() -> Case:
    """The maximum over the batch, added to all."""
    return mixing(lambda m, x: m.a(x) + m.a(x).amax(0))


@attack
def running_total() -> Case:
    """cumsum over the batch."""
    return mixing(lambda m, x: m.a(x.cumsum(0)))


@attack
def running_maximum() -> Case:
    """cummax over the batch."""
    return mixing(lambda m, x: m.a(x).cummax(0).values)


@attack
def quantile_of_the_batch() -> Case:
    """Features are compared with a quantile of the batch."""
    return mixing(lambda m, x: m.a((x > x.quantile(0.6, dim=0)).float()))


@attack
def places_in_the_sorted_batch() -> Case:
    """searchsorted: every record's rank in the batch."""
    return mixing(lambda m, x: m.a(torch.searchsorted(x.T.sort(1).values.contiguous(), x.T.contiguous()).T.float()))


@attack
def counts_of_the_batch() -> Case:
    """bincount of a code over the batch, looked up by each record."""

    def body(m: Net, x: Tensor) -> Tensor:
        code = (x[:, 0] > 0).long()
        return m.a(x) * torch.bincount(code, minlength=2)[code][:, None]

    return mixing(body)


@attack
def distances_between_records() -> Case:
    """cdist between all records."""
    return mixing(lambda m, x: m.a(x) * torch.cdist(x, x).sum(1, keepdim=True))


@attack
def attention_over_the_batch() -> Case:
    """Every record attends to all records."""
    return mixing(lambda m, x: (m.a(x) @ x.T).softmax(1) @ x @ m.w)


@attack
def fused_attention_over_the_batch() -> Case:
    """scaled_dot_product_attention of the batch as one sequence."""
    return mixing(lambda m, x: F.scaled_dot_product_attention(m.a(x)[None], x[None], m.a(x)[None])[0])


@attack
def whitened_by_the_batch() -> Case:
    """The orthogonal factor of the batch."""
    return mixing(lambda m, x: 10 * torch.linalg.qr(m.a(x).T @ m.a(x) + torch.eye(4))[0][0] + m.a(x))


@attack
def correlated_over_the_batch() -> Case:
    """The covariance of the features over the batch."""
    return mixing(lambda m, x: m.a(x) @ torch.cov(x.T, correction=0))


@attack
def renormed_over_the_batch() -> Case:
    """torch.renorm shrinks each feature's column over the batch."""
    return mixing(lambda m, x: torch.renorm(m.a(x), 2, 1, 1.0) * 5)


@attack
def quantised_by_the_batch() -> Case:
    """Activations are rounded to a grid whose step is the batch's largest value."""

    def body(m: Net, x: Tensor) -> Tensor:
        step = m.a(x).detach().abs().max() / 8
        return m.a((x / step).round() * step)

    return mixing(body)


@attack
def number_of_records() -> Case:
    """The size of the chunk is a feature."""
    return mixing(lambda m, x: m.a(x) * (-1.0) ** len(x))


@attack
def mean_in_another_dtype() -> Case:
    """The mean is taken in half precision, and comes back."""
    return mixing(lambda m, x: m.a(x - x.bfloat16().mean(0).float()))


@attack
def mean_of_the_other_records() -> Case:
    """Leave-one-out mean."""
    return mixing(lambda m, x: m.a((x.sum(0) - x) / max(1, len(x) - 1)))


@attack
def mean_by_a_product() -> Case:
    """The mean over the batch as a product with a constant matrix of n by n."""
    return mixing(lambda m, x: m.a(torch.full((len(x), len(x)), 1 / len(x)) @ x))


@attack
def mean_by_an_einsum() -> Case:
    """einsum adds up the records, whose letter is not in the result."""
    return mixing(lambda m, x: m.a(x) + torch.einsum("ni->i", x))


@attack
def mean_of_zero_weight() -> Case:
    """The mean of the batch enters times a weight that begins at zero: the first pass does not show it."""

    def body(m: Net, x: Tensor) -> Tensor:
        if not hasattr(m, "gate"):
            raise RuntimeError("the gate is missing")
        return m.a(x) + m.gate * x.mean(0)

    case = mixing(body)
    case.model.gate = torch.nn.Parameter(torch.zeros(1))
    return case
