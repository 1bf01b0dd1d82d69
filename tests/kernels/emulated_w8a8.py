"""The products of one row with codes of eight bits as functions on the CPU: their own source, compiled for the host
(emulator/)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.operands import DTYPES, RmsNorm, address
from octavo_kernels.products.activation import code_of
from octavo_kernels.products.w8a8 import BLOCK, CELLS, DTYPE_OF, CodedRows
from octavo_kernels.products.weights import Activations, PackedWeight

from .emulated import aligned, build

NUMBERS = ("dtype", "cells", "in_blocks", "rows", "columns", "depth", "gated", "activation")


class Codes(ctypes.Structure):
    _fields_ = (
        ("codes", ctypes.c_void_p), ("stride", ctypes.c_int64),
        ("scales", ctypes.c_void_p), ("scales_stride", ctypes.c_int64),
    )  # fmt: skip


class Operands(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in NUMBERS),
        *((name, ctypes.c_void_p) for name in ("x", "norm", "bias", "residual", "out")),
        ("codes", Codes), ("eps", ctypes.c_float), ("offset", ctypes.c_float),
    )  # fmt: skip


class EmulatedRow:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "w8a8", "w8a8_entry.cpp", "-DOCTAVO_BULK_COPY=1", sources="w8a8_row*.cu")

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def quantise(self, x: Tensor, kind: Activations, group: int, norm: RmsNorm | None = None) -> CodedRows:
        rows, depth = x.shape
        codes = aligned(torch.zeros(rows, depth, dtype=DTYPE_OF[kind]))
        coded = CodedRows(codes, torch.full((-(-depth // group) if group else 1, rows), float("nan")))
        self._call("quantise", x, kind, bool(group), coded, norm, rows=rows, depth=depth)
        return coded

    def product(
        self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None, residual: Tensor | None = None,
        gate: str | None = None, norm: RmsNorm | None = None,
    ) -> Tensor:  # fmt: skip
        columns = weight.columns // 2 if gate else weight.columns
        out = torch.full((2, columns), float("nan"), dtype=x.dtype)
        coded = CodedRows(aligned(weight.codes), weight.scales)
        self._call(
            "row", x, weight.scheme.activations, weight.scheme.activation_group == BLOCK, coded, norm,
            columns=weight.columns, depth=weight.depth, gated=bool(gate), activation=code_of(gate) if gate else 0,
            bias=address(bias), residual=address(residual), out=out.data_ptr(),
        )  # fmt: skip
        assert out[1].isnan().all()
        return out[:1]

    def _call(
        self, name: str, x: Tensor, kind: Activations, in_blocks: bool, coded: CodedRows, norm: RmsNorm | None,
        **operands: int | None,
    ) -> None:  # fmt: skip
        x, factors = aligned(x), None if norm is None else aligned(norm.weight)
        given = Operands(
            dtype=DTYPES[x.dtype], cells=CELLS[kind], in_blocks=in_blocks, x=x.data_ptr(), norm=address(factors),
            codes=Codes(coded.codes.data_ptr(), coded.codes.stride(0), coded.scales.data_ptr(), coded.scales.stride(0)),
            eps=0.0 if norm is None else norm.eps, offset=0.0 if norm is None else norm.offset, **operands,
        )  # fmt: skip
        error = getattr(self._library, name)(ctypes.byref(given))
        if error:
            raise ValueError(f"{name}: error {error}")
