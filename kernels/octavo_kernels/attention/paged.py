"""Attention over the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import checks, cuda
from octavo_kernels.attention.plan import AttentionPlan
from octavo_kernels.attention.wide import Plan, WidePlan
from octavo_kernels.cache.blocks import cache_layout, rope_write_kv
from octavo_kernels.call import Call, Operation, check, check_devices, check_heads, float_type
from octavo_kernels.operands import address, rows_at


@Operation
def paged_attention(
    q: Tensor,
    layer_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    scale: float,
    block_size: int = 16,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    plan: Plan | None = None,
    history_ready: bool = False,
) -> Call:
    """Causal attention of `q[T, heads, head_dim]` over the paged cache, decode and prefill in one ragged call.

    `block_tables[S, max_blocks]`, `context_lens[S]` (the call's tokens included) and `query_start[S + 1]` are int32.
    Bottom-right aligned: query i of a sequence with n queries and context L sees keys j <= L - n + i, and with
    `sliding_window` w > 0 only j > L - n + i - w; blocks that no query sees are not read. A query that sees nothing
    gives zeros. `softcap` c > 0: scores become c * tanh(score / c). `sinks[heads]` (float32): a logit for each head
    that joins the softmax's denominator only. `heads` is a multiple of the cache's `kv_heads`. `plan`: on CUDA, lists
    updated for this step's lengths, shared by its layers, those of a `WidePlan` for heads that `takes_wide` tells of;
    without one each call makes its own. `history_ready`: the keys and values of tokens before a sequence's queries are
    older than the stream's previous kernel; on CUDA, some are then read before that has ended. PagedAttention (arXiv
    2309.06180), with the online softmax of FlashAttention (arXiv 2205.14135). Raises ValueError or TypeError for
    tensors that do not fit together.
    """
    dtype = float_type("q", q)
    kv_heads = layer_cache.shape[-2]
    heads = _check_queries(q, out, kv_heads, sinks)
    cache = cache_layout(layer_cache, q.dtype, kv_heads, heads[2], block_size)
    sequences = _check_sequences(block_tables, context_lens, query_start)
    if sliding_window < 0:
        raise ValueError(f"sliding_window must be 0 (none) or positive, not {sliding_window}")
    if checks.wanted(q):
        checks.reads(layer_cache, block_size, block_tables, context_lens, query_start, len(q), sliding_window)
    tensors = {
        "q": q, "layer_cache": layer_cache, "block_tables": block_tables, "context_lens": context_lens,
        "query_start": query_start, "out": out, "sinks": sinks,
    }  # fmt: skip
    scoring = (scale, sliding_window, softcap, address(sinks))
    if isinstance(plan, WidePlan):
        lists = plan.use(sequences, *heads[:2], latent=False)
        return Call(
            "wide_attention", tensors,
            (dtype, rows_at(q), rows_at(out), heads, False, cache, rows_at(block_tables), scoring, lists), out,
        )  # fmt: skip
    work: tuple[object, ...] = (context_lens.data_ptr(), query_start.data_ptr(), sequences)
    if q.is_cuda:
        if plan is None:
            check_devices(tensors)
            plan = AttentionPlan.for_call(q, kv_heads, block_tables, block_size, sliding_window)
            plan.update(context_lens, query_start)
        _check_prefixes(plan, q, layer_cache)
        work = plan.use(sequences, *heads, sliding_window, history_ready)
    return Call(
        "paged_attention", tensors,
        (dtype, rows_at(q), rows_at(out), heads, cache, rows_at(block_tables), scoring, *work), out,
    )  # fmt: skip


def _check_queries(q: Tensor, out: Tensor, kv_heads: int, sinks: Tensor | None) -> tuple[int, int, int]:
    """Query heads, KV heads and head dim."""
    if q.dim() != 3:
        raise ValueError(f"q must have shape [tokens, heads, head_dim], not {list(q.shape)}")
    tokens, heads, head_dim = q.shape
    if heads % kv_heads:
        raise ValueError(f"q must have a multiple of the cache's {kv_heads} heads, not {heads}")
    check("q", q, q.dtype, (tokens, heads, head_dim))
    check("out", out, q.dtype, (tokens, heads, head_dim))
    check_heads("q", q)
    check_heads("out", out)
    if sinks is not None:
        check("sinks", sinks, torch.float32, (heads,))
    return heads, kv_heads, head_dim


def _check_sequences(block_tables: Tensor, context_lens: Tensor, query_start: Tensor) -> int:
    check("context_lens", context_lens, torch.int32, (None,))
    sequences = context_lens.shape[0]
    check("block_tables", block_tables, torch.int32, (sequences, None))
    check("query_start", query_start, torch.int32, (sequences + 1,))
    return sequences


def _check_prefixes(plan: AttentionPlan, q: Tensor, layer_cache: Tensor) -> None:
    if plan.shared_prefixes and not cuda.reads_prefixes_once(q.dtype, layer_cache.dtype, q.shape[2]):
        raise ValueError(
            f"plan has shared prefixes, which need 16-bit q and a cache of its type, not {q.dtype} and "
            f"{layer_cache.dtype}, and head_dim {q.shape[2]} on tensor cores: make it without them"
        )


def rope_attention(
    qkv: Tensor,
    q_out: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    block_size: int = 16,
    norm_offset: float = 0.0,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """`rope_write_kv`, then `paged_attention` of `q_out`, with their arguments; returns `out`.

    On CUDA one launch, with the same bits in `out` and in the cache, for few sequences of one token under a plan for
    such; then the slots must be those of the tokens' positions in the block tables, and `q_out` is left alone. Under a
    plan for one query a sequence all but `qkv` is read from before the stream's previous kernel has ended, keys and
    values of earlier tokens, too: they must be older than it. Elsewhere sequences may share what one of them writes.
    """
    write = rope_write_kv.prepare(
        qkv, q_out, layer_cache, slots, positions, cos_sin, q_norm, k_norm, eps, block_size, norm_offset
    )
    attention = paged_attention.prepare(
        q_out, layer_cache, block_tables, context_lens, query_start, out, scale, block_size, sliding_window, softcap,
        sinks, plan, history_ready=plan is not None and plan.one_query_each,
    )  # fmt: skip
    if plan is not None and plan.steps_alone and len(qkv) == len(context_lens):
        device = check_devices(write.tensors | attention.tensors)
        if cuda.decode_step(device, write.arguments, attention.arguments):
            return out
    write.run()
    attention.run()
    return out
