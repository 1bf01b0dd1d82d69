"""Products with weights of 16 bits as a function on the CPU: the GPU kernels' own source, compiled for the host
(emulator/)."""

from __future__ import annotations

import ctypes
import re
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from dataclasses import replace
from pathlib import Path

import torch

from octavo_kernels.operands import DTYPES, address, norm_at, rows_at
from octavo_kernels.products.activation import code_of
from octavo_kernels.products.choice import Launch
from octavo_kernels.products.product import Product

from .emulated import EMULATOR, aligned, build

ASSEMBLY = re.compile(r'asm volatile\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)(.*?)\);', re.DOTALL)
OPERAND = re.compile(r'"[rlhf]"\(\s*(.*?)\)(?=\s*[,:)]|$)', re.DOTALL)


class Fields(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("weight", c_void_p), ("weight_stride", c_int64), ("columns", c_int), ("depth", c_int),
        ("gated", c_bool), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int), ("bias", c_void_p),
        ("residual", c_void_p), ("residual_stride", c_int64), ("factor", c_float), ("out", c_void_p),
        ("out_stride", c_int64), ("activation", c_int), ("norm", c_void_p), ("eps", c_float), ("offset", c_float),
        ("counter", c_void_p),
    )  # fmt: skip


class LaunchFields(ctypes.Structure):
    _fields_ = (
        ("kernel", c_int), ("consumers", c_int), ("columns", c_int), ("tall", c_bool), ("cluster", c_int),
    )  # fmt: skip


def without_assembly(source: str) -> str:
    """Instructions as calls of emulator/instructions.h, with their operands."""
    return ASSEMBLY.sub(
        lambda found: f"emulator::instruction({', '.join([found[1], *OPERAND.findall(found[2])])});", source
    )


class EmulatedLinear:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        flags = ("-DOCTAVO_BULK_COPY=1", "-DEMULATED_LINEAR=1", "-DEMULATED_SHARED=5120")
        first = ("-include", str(EMULATOR / "instructions.h"))
        self._library = build(
            folder, "linear", "linear_entry.cpp", *flags, *first, sources="linear*.cu", edited=without_assembly
        )

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def product(self, p: Product[torch.Tensor], launch: Launch, gate: str | None = None) -> torch.Tensor:
        """The result of the kernel of `launch`, in a tensor of its own. Raises `ValueError` for what that refuses."""
        kept = [None if t is None else aligned(t) for t in (p.x, p.weight, p.bias, p.residual)]
        x, weight, bias, residual = kept
        assert x is not None
        assert weight is not None
        columns = len(weight) // 2 if gate else len(weight)
        out = aligned(torch.full((len(x) + 1, columns), float("nan"), dtype=x.dtype))
        norm = None if p.norm is None else replace(p.norm, weight=aligned(p.norm.weight))
        fields = Fields(
            DTYPES[x.dtype], *rows_at(weight), *weight.shape, bool(gate), *rows_at(x), len(x), address(bias),
            *rows_at(residual), p.factor, out.data_ptr(), out.stride(0), code_of(gate) if gate else 0, *norm_at(norm),
            address(p.counter),
        )  # fmt: skip
        how = LaunchFields(int(launch.kernel), *launch.tile, launch.cluster)
        if error := self._library.product(ctypes.byref(fields), ctypes.byref(how)):
            raise ValueError(f"{launch}: error {error}")
        assert out[-1:].isnan().all()
        return out[:-1]
