"""Products of 65 to 256 rows as functions on the CPU: the kernel's own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.operands import DTYPES, address
from octavo_kernels.products.activation import code_of
from octavo_kernels.products.choice import Tile
from octavo_kernels.products.product import COUNTERS
from octavo_kernels.products.shared_depth import floats

from .emulated import aligned, build


class LinearArgs(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("weight", c_void_p), ("weight_stride", c_int64), ("columns", c_int), ("depth", c_int),
        ("gated", c_bool), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int), ("bias", c_void_p),
        ("residual", c_void_p), ("residual_stride", c_int64), ("out", c_void_p), ("out_stride", c_int64),
        ("activation", c_int), ("norm", c_void_p), ("eps", c_float), ("offset", c_float), ("parts", c_void_p),
        ("arrivals", c_void_p), ("counter", c_void_p),
    )  # fmt: skip


class EmulatedLinear:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "linear", "linear_entry.cpp", sources="linear_swapped_*.cu")
        self._arrivals = torch.zeros(COUNTERS, dtype=torch.int32)

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def swapped(
        self, x: Tensor, weight: Tensor, tile: Tile, shares: int = 0, *, bias: Tensor | None = None,
        residual: Tensor | None = None, gate: str | None = None, in_place: bool = False,
    ) -> Tensor:  # fmt: skip
        """`in_place`: the result goes where `residual` lies."""
        rows, columns = len(x), len(weight)
        x, weight = aligned(x), aligned(weight)
        bias, residual = (None if t is None else aligned(t) for t in (bias, residual))
        out = aligned(torch.full((rows + 1, columns // 2 if gate else columns), float("nan"), dtype=x.dtype))
        if in_place:
            out[:-1], residual = residual, out[:-1]
        parts = aligned(torch.full((floats(shares, tile.consumers, tile.columns),), float("nan")))
        error = self._library.swapped(
            ctypes.byref(
                LinearArgs(
                    DTYPES[x.dtype], weight.data_ptr(), weight.stride(0), columns, x.shape[1], bool(gate), x.data_ptr(),
                    x.stride(0), rows, address(bias), address(residual),
                    0 if residual is None else residual.stride(0), out.data_ptr(), out.stride(0),
                    code_of(gate) if gate else 0, None, 0.0, 0.0, parts.data_ptr(), self._arrivals.data_ptr(), None,
                )
            ),
            tile.consumers, tile.columns, shares,
        )  # fmt: skip
        if error:
            raise ValueError(f"swapped: error {error}")
        assert not self._arrivals.any()
        assert out[rows:].isnan().all()
        return out[:rows]
