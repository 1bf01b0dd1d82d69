"""Attention of prompts as a function on the CPU: the GPU kernels' own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels import reference
from octavo_kernels.operands import DTYPES

from .emulated import aligned, build
from .emulated_wide import AttentionFields, CacheFields

FLAGS = (
    "-DOCTAVO_BULK_COPY=1", "-DEMULATED_PATHS=1", "-DEMULATED_SHARED=5120",  # aligned, as the kernel declares it
    "-Xcompiler=-fno-omit-frame-pointer,-fno-thread-jumps,-fno-tree-dominator-opts,-fno-crossjumping",
)  # fmt: skip


@dataclass
class Prompts:
    """Queries of sequences of `lengths` (queries, tokens in all), and a cache with their blocks in any order."""

    lengths: list[tuple[int, int]]
    q: Tensor
    keys: list[Tensor]  # [tokens, kv_heads, head_dim], as the cache has them
    values: list[Tensor]
    cache: Tensor
    tables: Tensor
    block_size: int

    @classmethod
    def make(
        cls, lengths: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, *, block_size: int = 16,
        dtype: torch.dtype = torch.bfloat16, seed: int = 1,
    ) -> Prompts:  # fmt: skip
        """Cells that no sequence has are NaN."""
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-tokens // block_size) for _, tokens in lengths]
        order = torch.randperm(sum(counts), generator=generator).int()
        cells = torch.full((sum(counts), 2, kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
        tables = torch.full((len(lengths), max(1, *counts)), 1 << 30, dtype=torch.int32)
        both: tuple[list[Tensor], list[Tensor]] = ([], [])
        for row, ((_, tokens), blocks) in enumerate(zip(lengths, order.split(counts), strict=True)):
            tables[row, : len(blocks)] = blocks
            at = torch.arange(tokens)
            for kind, kept in enumerate(both):
                kept.append(torch.randn(tokens, kv_heads, head_dim, generator=generator).to(dtype))
                cells[blocks.long()[at // block_size], kind, :, at % block_size] = kept[-1]
        q = torch.randn(sum(n for n, _ in lengths), heads, head_dim, generator=generator).to(dtype)
        return cls(lengths, aligned(q), *both, aligned(permuted(cells)), tables, block_size)

    def expected(self, scale: float, window: int = 0) -> Tensor:
        rows = self.q.double().split([n for n, _ in self.lengths])
        return torch.cat([
            reference.attention(q, k.double(), v.double(), scale, **({"sliding_window": window} if window else {}))
            for q, k, v in zip(rows, self.keys, self.values, strict=True)
        ])  # fmt: skip


def permuted(cells: Tensor) -> Tensor:
    """Rows of `cells[..., token, column]` with their units of 16 bytes where the cache of a GPU has them."""
    block_size, head_dim = cells.shape[-2:]
    units = torch.arange(head_dim // 8)
    token = torch.arange(block_size)[:, None]
    last = 7 if len(units) % 8 == 0 else 3  # of an atom's units
    places = (units & ~last) + ((units ^ (token if last == 7 else token >> 1)) & last)
    columns = (places[..., None] * 8 + torch.arange(8)).flatten(1).expand_as(cells)
    return torch.empty_like(cells).scatter_(-1, columns, cells)


class EmulatedPrompts:
    """`seed` decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "attention", "prompts_entry.cpp", *FLAGS, sources="extend_wgmma.cu")

    def attend(
        self, prompts: Prompts, scale: float, *, pairs: bool, blocks: int = 3, seed: int = 1, window: int = 0
    ) -> tuple[Tensor, list[tuple[int, int]]]:
        """The rows, and sequence and tile of each item of the list."""
        tokens, heads, head_dim = prompts.q.shape
        kv_heads = prompts.cache.shape[2]
        queries, contexts = (torch.tensor(column, dtype=torch.int32) for column in zip(*prompts.lengths, strict=True))
        starts = torch.cat((torch.zeros(1), queries.cumsum(0))).to(torch.int32)
        out = aligned(torch.full((tokens + 1, heads, head_dim), float("nan"), dtype=prompts.q.dtype))
        strides = (prompts.cache.stride(i) for i in range(3))
        where = CacheFields(prompts.cache.data_ptr(), 0, *strides, prompts.block_size)
        operands = AttentionFields(
            DTYPES[out.dtype], prompts.q.data_ptr(), prompts.q.stride(0), out.data_ptr(), out.stride(0), heads,
            kv_heads, head_dim, where, prompts.tables.data_ptr(), prompts.tables.stride(0), len(queries), scale,
        )  # fmt: skip
        operands.window = window
        listed = torch.zeros(tokens * heads // kv_heads + 2 * len(queries), 8, dtype=torch.int32)
        self._library.set_up(blocks, seed)
        done = self._library.attend(
            ctypes.byref(operands), ctypes.c_void_p(contexts.data_ptr()), ctypes.c_void_p(starts.data_ptr()), tokens,
            int(queries.max()), pairs, ctypes.c_void_p(listed.data_ptr()),
        )  # fmt: skip
        if done > 0:
            raise ValueError(f"attention of prompts: error {done}")
        assert out[tokens:].isnan().all()
        return out[:tokens], [(int(item[0]), int(item[1])) for item in listed[:-done]]
