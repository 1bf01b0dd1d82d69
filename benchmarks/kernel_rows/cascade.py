"""Decoding of sequences that share leading blocks."""

from __future__ import annotations

import torch

from kernel_rows.decode import decode
from kernel_rows.measuring import MATMUL, READ, Row, bf16, measure, rotations, row
from kernel_rows.paged import Cache
from octavo_kernels import ops
from octavo_kernels.attention.plan import AttentionPlan, chunk_tokens


def cascade(
    members: int, prefix: int, suffix: int, heads: int, kv_heads: int, head_dim: int = 128, groups: int = 1
) -> Row:
    """Decoding of `groups` groups of `members` sequences that share their first `prefix` tokens; the peer is our own
    decode."""
    block, count = 16, groups * members
    tokens = groups * prefix + count * suffix
    kv = 2 * tokens * kv_heads * head_dim * 2
    layers = rotations(kv, 3)
    cache = Cache.make([prefix] * groups + [suffix] * count, layers, kv_heads, head_dim, block)
    leading = cache.tables[:groups, : prefix // block].repeat_interleave(members, dim=0)
    tables = torch.cat((leading, cache.tables[groups:, : -(-suffix // block)]), dim=1)
    lengths = torch.full((count,), prefix + suffix, dtype=torch.int32, device="cuda")
    group_of = torch.arange(count, dtype=torch.int32, device="cuda") // members
    q, starts = bf16(count, heads, head_dim), torch.arange(count + 1, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)

    def seconds(shared: bool) -> float:
        plan = AttentionPlan(
            sequences=count, tokens=count, chunks=count * -(-(prefix + suffix) // chunk_tokens()), heads=heads,
            kv_heads=kv_heads, head_dim=head_dim, max_queries=1, shared_prefixes=shared,
        )  # fmt: skip
        plan.update(lengths, starts, group_of, torch.full_like(lengths, prefix))

        def call(layer: int) -> None:
            ops.paged_attention(
                q,
                cache.pool[:, layer],
                tables,
                lengths,
                starts,
                out,
                head_dim**-0.5,
                block,
                plan=plan,
                history_ready=True,
            )

        return measure([lambda i=i: call(i) for i in range(layers)])

    floor = max((kv + 2 * q.nbytes) / READ, 4 * heads * head_dim * count * (prefix + suffix) / MATMUL)
    batch = f"{members} x ({prefix} shared + {suffix})"
    shape = f"{heads}/{kv_heads}/{head_dim} {batch}" + (f", {groups} times" if groups > 1 else "")
    return row("shared-prefix decode", shape, seconds(True), floor, ("octavo, not grouped", seconds(False)))


def cascade_rows() -> list[Row]:
    return [
        cascade(256, 2048, 128, 32, 8),
        decode("B256 L2176, nothing shared", [2176] * 256, 32, 8),
        cascade(256, 2048, 128, 40, 40),
        cascade(64, 8192, 256, 32, 8),
        *[cascade(256, 2048, suffix, 32, 8) for suffix in (256, 1024)],
        cascade(128, 2048, 512, 40, 40),
        *[cascade(count, 2048, 128, 32, 8) for count in (2, 4, 8, 16, 32, 64)],
        *[cascade(count, 16384, 256, 32, 8) for count in (2, 4, 8)],
        *[cascade(4, 2048, 128, 32, 8, groups=groups) for groups in (2, 4, 8, 16, 32, 64)],
        *[cascade(count, 2048, 128, 32, 8, groups=16) for count in (2, 3, 6, 8)],
        cascade(4, 1024, 512, 32, 8, groups=16),
    ]
