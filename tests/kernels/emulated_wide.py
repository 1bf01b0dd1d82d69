"""Attention of wide heads as a function on the CPU: the GPU kernels' own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.cache.blocks import CELLS
from octavo_kernels.operands import DTYPES

from .emulated import aligned, build

ROWS, VALUES = 64, 512


class CacheFields(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p), ("cells", c_int), ("block_stride", c_int64), ("kv_stride", c_int64),
        ("head_stride", c_int64), ("block_size", c_int),
    )  # fmt: skip


class PlanFields(ctypes.Structure):
    _fields_ = (
        ("context_lens", c_void_p), ("query_start", c_void_p), ("sequences", c_int), ("group", c_int),
        ("kv_heads", c_int), ("blocks", c_int), ("cuts", c_bool), ("starts", c_void_p), ("folds", c_void_p),
    )  # fmt: skip


class AttentionFields(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("q", c_void_p), ("q_stride", c_int64), ("out", c_void_p), ("out_stride", c_int64),
        ("heads", c_int), ("kv_heads", c_int), ("head_dim", c_int), ("cache", CacheFields), ("tables", c_void_p),
        ("table_stride", c_int64), ("sequences", c_int), ("scale", c_float), ("softcap", c_float), ("window", c_int),
        ("sinks", c_void_p),
    )  # fmt: skip


class WideFields(ctypes.Structure):
    _fields_ = (
        ("operands", AttentionFields), ("context_lens", c_void_p), ("query_start", c_void_p), ("latent", c_bool),
        ("blocks", c_int), ("starts", c_void_p), ("folds", c_void_p), ("partial", c_void_p), ("sums", c_void_p),
    )  # fmt: skip


class EmulatedWide:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        # One place in the source is one in the code.
        host = "-fno-omit-frame-pointer,-fno-thread-jumps,-fno-tree-dominator-opts,-fno-crossjumping"
        flags = ("-DOCTAVO_BULK_COPY=1", "-DEMULATED_PATHS=1", f"-Xcompiler={host}")
        self._library = build(folder, "attention", "wide_entry.cpp", *flags, sources="wide*.cu")

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self.blocks = multiprocessors
        self._library.set_up(multiprocessors, seed)

    def plan(
        self, context_lens: Tensor, query_start: Tensor, group: int, kv_heads: int, *, cuts: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Starts `[blocks + 1, 4]` and folds `[blocks, 4]`, as csrc/cuda/attention/wide.h has them."""
        starts = aligned(torch.full((self.blocks + 1, 4), -1, dtype=torch.int32))
        folds = aligned(torch.full((self.blocks, 4), -1, dtype=torch.int32))
        fields = PlanFields(
            context_lens.data_ptr(), query_start.data_ptr(), len(context_lens), group, kv_heads, self.blocks, cuts,
            starts.data_ptr(), folds.data_ptr(),
        )  # fmt: skip
        assert self._library.plan(ctypes.byref(fields)) == 0
        return starts, folds

    def attend(
        self, q: Tensor, cache: Tensor, tables: Tensor, context_lens: Tensor, query_start: Tensor, scale: float,
        block_size: int, *, cuts: bool = True, **changed: float,
    ) -> Tensor:  # fmt: skip
        """Attention of `q[T, heads, width]` over a cache `[blocks, 1 or 2, kv_heads, block_size * width]`, longer in
        eight bits: one row is that of latents. Rows of `tables` and of the cache are dense."""
        tokens, heads, width = q.shape
        _, rows, kv_heads, _ = cache.shape
        starts, folds = self.plan(context_lens, query_start, heads // kv_heads, kv_heads, cuts=cuts)
        q = aligned(q)
        out = aligned(torch.full((tokens + 1, heads, VALUES), float("nan"), dtype=q.dtype))
        partial = aligned(torch.full((2 * self.blocks, ROWS, VALUES), float("nan")))
        sums = aligned(torch.full((2 * self.blocks, ROWS, 2), float("nan")))
        strides = (cache.stride(0), cache.stride(1) if rows == 2 else 0, cache.stride(2))
        where = CacheFields(cache.data_ptr(), CELLS.get(cache.dtype, 0), *strides, block_size)
        operands = AttentionFields(
            DTYPES[q.dtype], q.data_ptr(), q.stride(0), out.data_ptr(), out.stride(0), heads, kv_heads, width, where,
            tables.data_ptr(), tables.stride(0), len(context_lens), scale,
        )  # fmt: skip
        for name, value in changed.items():
            setattr(operands, name, value)
        fields = WideFields(
            operands, context_lens.data_ptr(), query_start.data_ptr(), rows == 1, self.blocks, starts.data_ptr(),
            folds.data_ptr(), partial.data_ptr(), sums.data_ptr(),
        )  # fmt: skip
        if error := self._library.attend(ctypes.byref(fields)):
            raise ValueError(f"wide attention: error {error}")
        assert out[-1:].isnan().all()
        return out[:-1]
