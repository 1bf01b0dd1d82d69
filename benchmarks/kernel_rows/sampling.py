"""Choosing tokens from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_rows.measuring import READ, Row, measure, rotations, row
from octavo_kernels import ops


def torch_sample(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """As a service without kernels of its own would."""
    logits = logits.float() / 0.8
    if top_k or top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        if top_k:
            ordered[:, top_k:] = -torch.inf
        mass = ordered.softmax(dim=-1)
        ordered.masked_fill_(mass.cumsum(dim=-1) - mass >= top_p, -torch.inf)
        logits = logits.scatter(1, order, ordered)
    return (logits.softmax(dim=-1) / torch.empty_like(logits).exponential_()).argmax(dim=-1)


def sample(rows: int, vocab: int, top_k: int, top_p: float, dtype: torch.dtype = torch.float32) -> Row:
    n = rotations(rows * vocab * dtype.itemsize)
    logits = [(torch.randn(rows, vocab, device="cuda") * 3).to(dtype) for _ in range(n)]
    samples = ops.pack_samples(rows, seeds=range(rows), temperature=0.8, top_k=top_k, top_p=top_p).cuda()
    seconds = measure([lambda x=x: ops.sample(x, samples) for x in logits])
    peer = measure([lambda x=x: torch_sample(x, top_k, top_p) for x in logits[:4]], replays=5)
    floor = rows * vocab * dtype.itemsize / READ
    shape = f"{rows} x {vocab} {str(dtype)[6:]} top-k {top_k} top-p {top_p}"
    return row("sample", shape, seconds, floor, ("torch", peer))


def sample_rows() -> list[Row]:
    limits = ((0, 1.0), (50, 0.9), (0, 0.9))
    rows = [sample(rows, 128_256, *limit) for rows in (1, 32, 64, 256) for limit in limits]
    return rows + [sample(64, 128_256, *limit, torch.bfloat16) for limit in limits]
