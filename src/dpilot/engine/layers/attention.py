"""nn.MultiheadAttention, whose weights are used functionally and whose tensors have samples second."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine.base import NoRule
from dpilot.engine.layers.base import Operation, Scope, rule
from dpilot.engine.layers.linear import linear


@rule("multi_head_attention_forward")
def _attention(
    scope: Scope, _: Operation, query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None,
    add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The same attention with samples first, every projection going through the linear rule."""
    del embed_dim_to_check
    if query.dim() != 3 or static_k is not None or static_v is not None:
        raise NoRule('attention of unbatched or static tensors has no rule. Use engine="vmap" or "loop".')
    parts = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = project(scope, query, key, value, in_proj_weight, in_proj_bias, parts)
    k, v, extra = append(scope, k, v, bias_k, bias_v, add_zero_attn)
    mask = merge_masks(attn_mask, key_padding_mask, is_causal and not need_weights, q, k, num_heads, extra)
    drop = dropout_p if training else 0.0
    q, k, v = (t.reshape(*t.shape[:2], num_heads, -1).transpose(1, 2) for t in (q, k, v))
    mixed, weights = attend(q, k, v, mask, drop, need_weights)
    joined = mixed.transpose(1, 2).flatten(2)
    out = linear(scope, joined, out_proj_weight, out_proj_bias)
    shown = weights.mean(1) if weights is not None and average_attn_weights else weights
    return out.transpose(0, 1), shown


def project(
    scope: Scope, query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None, parts: Any
) -> tuple[Tensor, ...]:
    """Queries, keys and values, (n, tokens, width) each."""
    same = query is key and key is value
    first = [t.transpose(0, 1) for t in (query, key, value)]
    if parts is None and same and weight is not None:
        return linear(scope, first[0], weight, bias).chunk(3, dim=-1)
    weights = parts if parts is not None else thirds(scope, weight)
    biases = (None, None, None) if bias is None else thirds(scope, bias)
    return tuple(linear(scope, x, w, b) for x, w, b in zip(first, weights, biases, strict=True))


def thirds(scope: Scope, weight: Tensor | None) -> tuple[Tensor, ...]:
    """The rows for queries, keys and values; parts of a weight are weights."""
    if weight is None:
        raise NoRule('attention without in_proj_weight has no rule. Use engine="vmap" or "loop".')
    return scope.derive(torch.chunk, weight, 3) if scope.is_weight(weight) else weight.chunk(3)


def append(
    scope: Scope, k: Tensor, v: Tensor, bias_k: Tensor | None, bias_v: Tensor | None, zero: bool
) -> tuple[Tensor, Tensor, int]:
    """Keys and values with the learned and the zero position at the end, and how many were added."""
    extra = 0
    if bias_k is not None and bias_v is not None:
        rows = [scope.spread(b, k) if scope.is_weight(b) else b.expand(k.shape[0], -1, -1) for b in (bias_k, bias_v)]
        k, v, extra = torch.cat([k, rows[0]], 1), torch.cat([v, rows[1]], 1), 1
    if zero:
        k, v, extra = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), extra + 1
    return k, v, extra


def merge_masks(
    mask: Tensor | None, padding: Tensor | None, causal: bool, q: Tensor, k: Tensor, heads: int, extra: int
) -> Tensor | None:
    """One additive mask that broadcasts to (n, heads, queries, keys); added positions are always seen."""
    if causal and mask is None:
        mask = torch.ones(q.shape[1], k.shape[1] - extra, dtype=torch.bool, device=q.device).triu(1)
    total: Tensor | None = None
    if mask is not None:
        shaped = mask.view(q.shape[0], heads, *mask.shape[1:]) if mask.dim() == 3 else mask
        total = F.pad(additive(shaped, q), (0, extra))
    if padding is not None:
        wide = F.pad(additive(padding, q), (0, extra))[:, None, None, :]
        total = wide if total is None else total + wide
    return total


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """True becomes minus infinity; a float mask is added as it is."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
    return mask.to(like.dtype)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: float, show: bool
) -> tuple[Tensor, Tensor | None]:
    """softmax(q k^T / sqrt(d) + mask) v, and the attention weights if asked for."""
    if not show:
        return F.scaled_dot_product_attention(q, k, v, mask, drop), None
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), drop)
    return weights @ v, weights
