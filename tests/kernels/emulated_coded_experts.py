"""Mixtures whose experts' matrices are codes, as functions on the CPU: the GPU kernels' own source (emulator/)."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_int, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.experts.gpu import Taken
from octavo_kernels.operands import DTYPES, address
from octavo_kernels.products.coded import CodedWeight

from .emulated import aligned, build
from .emulated_experts import Described, DownArgs, Matrix, SharedFields, UpArgs, coded_activation


class Coded(ctypes.Structure):
    _fields_ = (
        ("kind", c_int), ("group", c_int), ("codes", c_void_p), ("scales", c_void_p), ("zeros", c_void_p),
        ("columns", c_int), ("depth", c_int),
    )  # fmt: skip


class Strips(ctypes.Structure):
    _fields_ = (("matrix", Coded), ("short_scales", c_bool))


class CodedUpArgs(UpArgs):
    _fields_ = (("coded", Strips),)


class CodedDownArgs(DownArgs):
    _fields_ = (("coded", Strips),)


class EmulatedCodedExperts:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "coded_experts", "coded_experts_entry.cpp", "-DOCTAVO_BULK_COPY=1")

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def up(
        self, x: Tensor, weight: CodedWeight, taken: Taken, activation: str = "silu", *, many: bool,
        bias: Tensor | None = None, clamped: float | None = None,
    ) -> Tensor:  # fmt: skip
        how, x, kept = Described(taken, many), aligned(x), _kept(weight)
        matrix, coded = _described(weight, kept, bias, how.experts)
        code, halves = coded_activation(activation)
        out = aligned(torch.full((how.rows * how.chosen, matrix.columns // halves), float("nan"), dtype=x.dtype))
        self._call(
            "up_many" if many else "up_few",
            CodedUpArgs(
                DTYPES[x.dtype], matrix, x.data_ptr(), x.stride(0), how.rows, how.chosen, how.lists.sources,
                how.lists.starts, how.choice, code, clamped or 0.0, out.data_ptr(), out.stride(0), coded=coded,
            ),
        )  # fmt: skip
        return out

    def down(
        self, x: Tensor, weight: CodedWeight, taken: Taken, *, many: bool, bias: Tensor | None = None,
        shared: Tensor | None = None, gates: Tensor | None = None, factor: float = 1.0, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        how, x, kept = Described(taken, many), aligned(x), _kept(weight)
        matrix, coded = _described(weight, kept, bias, how.experts)
        out = aligned(torch.full((how.rows, matrix.columns), float("nan"), dtype=x.dtype))
        parts = aligned(torch.full((how.rows * how.chosen, matrix.columns), float("nan"), dtype=x.dtype))
        shared, residual = (None if t is None else aligned(t) for t in (shared, residual))
        strides = [0 if t is None else t.stride(0) for t in (shared, residual)]
        self._call(
            "down_many" if many else "down_few",
            CodedDownArgs(
                DTYPES[x.dtype], matrix, x.data_ptr(), x.stride(0), how.rows, how.chosen,
                how.lists, how.choice, address(shared), strides[0], SharedFields(), address(gates), factor,
                address(residual), strides[1], parts.data_ptr(), parts.stride(0), out.data_ptr(), out.stride(0),
                coded=coded,
            ),
        )  # fmt: skip
        return out

    def _call(self, name: str, arguments: ctypes.Structure) -> None:
        error = getattr(self._library, name)(ctypes.byref(arguments))
        if error:
            raise ValueError(f"{name}: error {error}")


Kept = tuple[Tensor, Tensor, Tensor | None]


def _kept(weight: CodedWeight) -> Kept:
    zeros = None if weight.zeros is None else aligned(weight.zeros)
    return aligned(weight.codes), aligned(weight.scales), zeros


def _described(weight: CodedWeight, kept: Kept, bias: Tensor | None, experts: int) -> tuple[Matrix, Strips]:
    columns = weight.columns // experts
    matrix = Matrix(None, 0, address(bias), experts, columns, weight.depth)
    kind, group = int(weight.scheme.codes), weight.scheme.group
    coded = Coded(kind, group, *(address(tensor) for tensor in kept), columns, weight.depth)
    return matrix, Strips(coded, weight.scales.dtype is torch.bfloat16)
