"""Attention of heads with 512 values: latent rows (GLM-4.7-Flash, DeepSeek-V3), and Gemma 4's heads of 512."""

from __future__ import annotations

import torch

from kernel_rows.measuring import MATMUL, READ, Row, measure, rotations, row
from octavo_kernels import ops
from octavo_kernels.attention.wide import LATENT_WIDTH, VALUES, WidePlan

BLOCK = 16
HEADS = {"GLM-4.7-Flash": (20, 0), "DeepSeek-V3": (128, 0), "Gemma 4 26B-A4B": (16, 2), "Gemma 4 31B": (32, 4)}
"""Query heads, and KV heads; of a latent there are none."""
DECODES = [(1, 4096), (1, 32_768), (8, 8192), (32, 2048), (32, 8192), (128, 2048)]
PROMPTS = [(1, 2048, 2048), (1, 8192, 8192), (1, 2048, 32_768), (16, 1024, 1024)]


def wide(name: str, sequences: int, queries: int, context: int) -> Row:
    """Sequences of so many queries at the end of a context."""
    heads, kv_heads = HEADS[name]
    width, rows = (VALUES, 2 * kv_heads) if kv_heads else (LATENT_WIDTH, 1)
    per_token = rows * width * 2
    tokens, moved = sequences * queries, sequences * context * per_token
    layers = rotations(moved, 2) if queries == 1 else 1
    blocks = -(-context // BLOCK)
    count = sequences * blocks + 1
    shape = (count, layers, 2, kv_heads, BLOCK * width) if kv_heads else (count, layers, 1, 1, BLOCK * width)
    pool = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
    tables = (torch.randperm(count - 1, device="cuda").int() + 1).view(sequences, blocks)
    contexts = torch.full((sequences,), context, dtype=torch.int32, device="cuda")
    starts = torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * queries
    q = torch.randn(tokens, heads, width, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(tokens, heads, VALUES, dtype=torch.bfloat16, device="cuda")
    plan = WidePlan(sequences=sequences, heads=heads, kv_heads=kv_heads or 1, latent=not kv_heads)
    plan.update(contexts, starts)
    attention = ops.paged_attention if kv_heads else ops.latent_attention

    def call(layer: int) -> None:
        attention(q, pool[:, layer], tables, contexts, starts, out, width**-0.5, BLOCK, plan=plan)

    seconds = measure([lambda i=i: call(i) for i in range(layers)], replays=7)
    pairs = sequences * (queries * context - queries * (queries - 1) / 2)
    operations = 2 * heads * (width + VALUES) * pairs
    if queries > 1:
        print(f"{operations / seconds / 1e12:.0f} TFLOP/s", end=" | ")
    floor = max(operations / MATMUL, (moved + q.nbytes + out.nbytes) / READ)
    kind = "decode" if queries == 1 else "prompt"
    return row(f"wide {kind}", f"{name} {sequences} x {queries} of {context}", seconds, floor)


def latent_rows() -> list[Row]:
    decodes = [wide(name, sequences, 1, context) for name in HEADS for sequences, context in DECODES]
    prompts = [wide(name, *sizes) for name in HEADS for sizes in PROMPTS]
    return decodes + prompts
