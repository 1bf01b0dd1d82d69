"""Latent attention around its scores on the CPU: the GPU kernels' own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.cache.blocks import CELLS
from octavo_kernels.operands import DTYPES, RmsNorm

from .emulated import build
from .emulated_wide import CacheFields


class ProductFields(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("x", c_void_p), ("weight", c_void_p), ("out", c_void_p), ("x_stride", c_int64),
        ("x_head_stride", c_int64), ("out_stride", c_int64), ("out_head_stride", c_int64), ("rows", c_int64),
        ("heads", c_int), ("columns", c_int), ("depth", c_int),
    )  # fmt: skip


class RowsFields(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("q", c_void_p), ("kept", c_void_p), ("norm", c_void_p), ("q_stride", c_int64),
        ("q_head_stride", c_int64), ("kept_stride", c_int64), ("eps", c_float), ("norm_offset", c_float),
        ("q_out", c_void_p), ("q_out_stride", c_int64), ("tokens", c_int64), ("heads", c_int), ("rank", c_int),
        ("rotated", c_int), ("cache", CacheFields), ("slots", c_void_p), ("positions", c_void_p),
        ("cos_sin", c_void_p), ("cos_sin_stride", c_int64),
    )  # fmt: skip


def product_fields(x: Tensor, weight: Tensor, out: Tensor) -> ProductFields:
    rows, heads, depth = x.shape
    return ProductFields(
        DTYPES[x.dtype], x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.stride(0), x.stride(1), out.stride(0),
        out.stride(1), rows, heads, out.shape[2], depth,
    )  # fmt: skip


class EmulatedLatent:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "latent", "latent_entry.cpp", sources="[bq]*.cu")

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def by_head(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """`x[T, heads, depth]` times `weight[heads * columns, depth]` into `out[T, heads, columns]`. Raises ValueError
        where the kernel does not take them."""
        if error := self._library.products(ctypes.byref(product_fields(x, weight, out))):
            raise ValueError(f"products by head: error {error}")

    def keep(
        self, q: Tensor, kept: Tensor, norm: RmsNorm, q_out: Tensor, cache: Tensor, slots: Tensor, positions: Tensor,
        cos_sin: Tensor, block_size: int, products: tuple[Tensor, Tensor, Tensor],
    ) -> None:  # fmt: skip
        """As `ops.keep_latent` with a product beside it. The cache is `[blocks, elements]`."""
        tokens, heads, width = q_out.shape
        where = CacheFields(cache.data_ptr(), CELLS.get(cache.dtype, 0), cache.stride(0), 0, 0, block_size)
        rows = RowsFields(
            DTYPES[q.dtype], q.data_ptr(), kept.data_ptr(), norm.weight.data_ptr(), q.stride(0), q.stride(1),
            kept.stride(0), norm.eps, norm.offset, q_out.data_ptr(), q_out.stride(0), tokens, heads,
            width - cos_sin.shape[1], cos_sin.shape[1], where, slots.data_ptr(), positions.data_ptr(),
            cos_sin.data_ptr(), cos_sin.stride(0),
        )  # fmt: skip
        assert positions.dtype is slots.dtype is torch.int64
        assert self._library.queries(ctypes.byref(rows), ctypes.byref(product_fields(*products))) == 0
