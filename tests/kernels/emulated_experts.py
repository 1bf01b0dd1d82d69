"""Mixtures of experts as functions on the CPU: the GPU kernels' own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels.experts.gpu import UNGATED
from octavo_kernels.experts.route import SCORES, Assignments, Routing
from octavo_kernels.operands import DTYPES, RmsNorm, address
from octavo_kernels.products.activation import code_of

from .emulated import aligned, build

COUNTERS = 128


class RoutingFields(ctypes.Structure):
    _fields_ = (
        ("experts", c_int), ("chosen", c_int), ("score", c_int), ("groups", c_int), ("top_groups", c_int),
        ("group_best", c_int), ("normalised", c_bool), ("eps", c_float), ("least", c_float), ("scale", c_float),
    )  # fmt: skip


class Lists(ctypes.Structure):
    _fields_ = tuple((name, c_void_p) for name in ("weights", "places", "sources", "starts"))


class RouteArgs(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int), ("width", c_int),
        ("norm", c_void_p), ("eps", c_float), ("offset", c_float), ("normed", c_void_p), ("normed_stride", c_int64),
        ("router", c_void_p), ("router_stride", c_int64), ("bias", c_void_p), ("correction", c_void_p),
        ("gate", c_void_p), ("slots", c_void_p), ("routing", RoutingFields), ("lists", Lists), ("logits", c_void_p),
        ("gates", c_void_p), ("ids", c_void_p), ("counters", c_void_p),
        ("uniform", c_bool),
    )  # fmt: skip


class Matrix(ctypes.Structure):
    _fields_ = (
        ("weight", c_void_p), ("stride", c_int64), ("bias", c_void_p), ("experts", c_int), ("columns", c_int),
        ("depth", c_int),
    )  # fmt: skip


class UpArgs(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("matrix", Matrix), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int),
        ("chosen", c_int), ("sources", c_void_p), ("starts", c_void_p), ("activation", c_int), ("clamped", c_float),
        ("out", c_void_p), ("out_stride", c_int64),
    )  # fmt: skip


class DownArgs(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("matrix", Matrix), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int),
        ("chosen", c_int), ("lists", Lists), ("shared", c_void_p), ("shared_stride", c_int64), ("gates", c_void_p),
        ("residual", c_void_p), ("residual_stride", c_int64), ("parts", c_void_p), ("parts_stride", c_int64),
        ("out", c_void_p), ("out_stride", c_int64),
    )  # fmt: skip


class Routed(NamedTuple):
    taken: Assignments
    normed: Tensor
    logits: Tensor
    gates: Tensor


def matrix_of(weight: Tensor, bias: Tensor | None, experts: int) -> Matrix:
    return Matrix(
        weight.data_ptr(), weight.stride(0), address(bias), experts, len(weight) // experts, weight.shape[1]
    )  # fmt: skip


def coded_activation(name: str) -> tuple[int, int]:
    """Its code, and how many halves a product has."""
    return (UNGATED[name], 1) if name in UNGATED else (code_of(name), 2)


class EmulatedExperts:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "experts", "experts_entry.cpp", "-DOCTAVO_BULK_COPY=1", sources="*.cu")
        self._counters = torch.zeros(COUNTERS, dtype=torch.int32)

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def route(
        self, x: Tensor, router: Tensor, routing: Routing, *, norm: RmsNorm | None = None, bias: Tensor | None = None,
        correction: Tensor | None = None, gate: Tensor | None = None, slots: Tensor | None = None,
        uniform: bool = False,
    ) -> Routed:  # fmt: skip
        rows, width = x.shape
        x, router, normed = aligned(x), aligned(router), aligned(torch.full_like(x, float("nan")))
        factors, gate = None if norm is None else aligned(norm.weight), None if gate is None else aligned(gate)
        pairs = (rows, routing.chosen)
        taken = Assignments(
            torch.full(pairs, float("nan")),
            torch.full(pairs, -7, dtype=torch.int32),
            torch.full((rows * routing.chosen,), -7, dtype=torch.int32),
            torch.full((routing.experts + 1,), -7, dtype=torch.int32),
        )
        logits, gates = torch.full((rows, routing.experts), float("nan")), torch.full((rows,), float("nan"))
        ids = torch.full(pairs, -7, dtype=torch.int32)
        how = RoutingFields(
            routing.experts, routing.chosen, SCORES[routing.score], routing.groups, routing.top_groups,
            routing.group_best, routing.normalised, routing.eps, routing.least, routing.scale,
        )  # fmt: skip
        self._call(
            "route",
            RouteArgs(
                DTYPES[x.dtype], x.data_ptr(), x.stride(0), rows, width, address(factors), norm.eps if norm else 0.0,
                norm.offset if norm else 0.0, normed.data_ptr(), normed.stride(0), router.data_ptr(), router.stride(0),
                address(bias), address(correction), address(gate), address(slots), how,
                Lists(*(tensor.data_ptr() for tensor in taken)), logits.data_ptr(), gates.data_ptr(), ids.data_ptr(),
                self._counters.data_ptr(), uniform,
            ),
        )  # fmt: skip
        assert not self._counters.any()
        return Routed(taken, normed, logits, gates)

    def up(
        self, x: Tensor, weight: Tensor, taken: Assignments, activation: str = "silu", *, many: bool,
        bias: Tensor | None = None, clamped: float | None = None,
    ) -> Tensor:  # fmt: skip
        experts, (rows, chosen) = len(taken.starts) - 1, taken.places.shape
        x, weight = aligned(x), aligned(weight)
        matrix = matrix_of(weight, bias, experts)
        code, halves = coded_activation(activation)
        out = aligned(torch.full((rows * chosen, matrix.columns // halves), float("nan"), dtype=x.dtype))
        self._call(
            "up_many" if many else "up_few",
            UpArgs(
                DTYPES[x.dtype], matrix, x.data_ptr(), x.stride(0), rows, chosen, taken.sources.data_ptr(),
                taken.starts.data_ptr(), code, clamped or 0.0, out.data_ptr(), out.stride(0),
            ),
        )  # fmt: skip
        return out

    def down(
        self, x: Tensor, weight: Tensor, taken: Assignments, *, many: bool, bias: Tensor | None = None,
        shared: Tensor | None = None, gates: Tensor | None = None, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        experts, (rows, chosen) = len(taken.starts) - 1, taken.places.shape
        x, weight = aligned(x), aligned(weight)
        matrix = matrix_of(weight, bias, experts)
        out = aligned(torch.full((rows, matrix.columns), float("nan"), dtype=x.dtype))
        parts = aligned(torch.full((rows * chosen, matrix.columns), float("nan"), dtype=x.dtype))
        shared, residual = (None if t is None else aligned(t) for t in (shared, residual))
        strides = [0 if t is None else t.stride(0) for t in (shared, residual)]
        self._call(
            "down_many" if many else "down_few",
            DownArgs(
                DTYPES[x.dtype], matrix, x.data_ptr(), x.stride(0), rows, chosen,
                Lists(*(tensor.data_ptr() for tensor in taken)), address(shared), strides[0], address(gates),
                address(residual), strides[1], parts.data_ptr(), parts.stride(0), out.data_ptr(), out.stride(0),
            ),
        )  # fmt: skip
        return out

    def _call(self, name: str, arguments: ctypes.Structure) -> None:
        error = getattr(self._library, name)(ctypes.byref(arguments))
        if error:
            raise ValueError(f"{name}: error {error}")
