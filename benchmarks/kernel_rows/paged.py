"""A paged KV cache with something in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import ops


@dataclass
class Cache:
    pool: Tensor
    tables: Tensor
    lengths: Tensor

    @classmethod
    def make(
        cls,
        lengths: list[int],
        layers: int,
        kv_heads: int,
        head_dim: int,
        block: int,
        shuffled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        filled: int | None = None,
    ) -> Cache:
        """`filled`: how many of the layers have something in them; None: all."""
        needed = [-(-n // block) for n in lengths]
        pool = ops.empty_cache(sum(needed) + 1, layers, kv_heads, block, head_dim, dtype, "cuda")
        if dtype.itemsize == 1:
            for slots in torch.arange(len(pool) * block, device="cuda").split(16384):
                for layer in range(filled or layers):
                    k = torch.randn(len(slots), kv_heads, head_dim, dtype=torch.bfloat16, device="cuda")
                    ops.write_kv(k, k, pool[:, layer], slots, block)
        else:
            pool.view(pool.shape[0], -1).normal_()
        order = ((torch.randperm if shuffled else torch.arange)(sum(needed)) + 1).int()
        tables = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
        for i, part in enumerate(order.split(needed)):
            tables[i, : needed[i]] = part
        return cls(pool, tables.cuda(), torch.tensor(lengths, dtype=torch.int32, device="cuda"))
