"""Make torch.export capture self-attention in the form of PyTorch's fast path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from torch.nn import functional


@contextmanager
def fast_attention(network: nn.Module) -> Iterator[None]:
    """Make self-attention read and write rows [N, T, C] inside the block instead of transposed copies.

    PyTorch's fast path does this when a network runs, but not when it is captured. A capture moves the rows to
    [T, N, C], so later layers add and normalize tensors that aren't contiguous, which no kernel supports.
    """
    parts = [part for part in network.modules() if type(part) is nn.MultiheadAttention and _is_plain(part)]
    for part in parts:
        part.forward = partial(_attend, part)
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _is_plain(part: nn.MultiheadAttention) -> bool:
    """Return whether an attention module has the arguments that PyTorch's fast path needs."""
    return part.batch_first and part._qkv_same_embed_dim and part.bias_k is None and not part.add_zero_attn


def _attend(
    part: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002 - as nn.MultiheadAttention has it
    attn_mask: Tensor | None = None,
    **others: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of query, key and value [N, T, C] like `part`, and return the output and the attention weights.

    Anything that the fast path doesn't support runs `nn.MultiheadAttention.forward`.
    """
    masked = key_padding_mask is not None or attn_mask is not None
    if query is not key or key is not value or query.dim() != 3 or masked or need_weights:
        return nn.MultiheadAttention.forward(
            part, query, key, value, key_padding_mask, need_weights, attn_mask, **others
        )
    rows = functional.linear(query, part.in_proj_weight, part.in_proj_bias)
    heads = (each.unflatten(-1, (part.num_heads, part.head_dim)).transpose(1, 2) for each in rows.chunk(3, -1))
    y = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    return functional.linear(y, part.out_proj.weight, part.out_proj.bias), None
