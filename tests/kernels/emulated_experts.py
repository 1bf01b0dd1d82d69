"""Mixtures of experts as functions on the CPU: the GPU kernels' own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels.experts.gpu import UNGATED, RouterLogits, SharedProduct, Taken
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


class LogitsFields(ctypes.Structure):
    _fields_ = (
        ("routing", RoutingFields), *((name, c_void_p) for name in ("logits", "correction", "factors", "slots")),
    )  # fmt: skip


class FewChoice(LogitsFields):
    _fields_ = (("first", c_int),)


class RouteArgs(LogitsFields):
    _fields_ = (
        ("dtype", c_int), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int), ("width", c_int),
        ("norm", c_void_p), ("eps", c_float), ("offset", c_float), ("normed", c_void_p), ("normed_stride", c_int64),
        ("router", c_void_p), ("router_stride", c_int64), ("bias", c_void_p), ("gate", c_void_p),
        ("lists", Lists), ("gates", c_void_p), ("ids", c_void_p), ("counters", c_void_p), ("uniform", c_bool),
    )  # fmt: skip


class Matrix(ctypes.Structure):
    _fields_ = (
        ("weight", c_void_p), ("stride", c_int64), ("bias", c_void_p), ("experts", c_int), ("columns", c_int),
        ("depth", c_int),
    )  # fmt: skip


class SharedFields(ctypes.Structure):
    _fields_ = (("matrix", Matrix), ("rows", c_void_p), ("stride", c_int64))


class UpArgs(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("matrix", Matrix), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int),
        ("chosen", c_int), ("sources", c_void_p), ("starts", c_void_p), ("choice", FewChoice),
        ("activation", c_int), ("clamped", c_float), ("out", c_void_p), ("out_stride", c_int64),
        ("shared", SharedFields),
    )  # fmt: skip


class DownArgs(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("matrix", Matrix), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int),
        ("chosen", c_int), ("lists", Lists), ("choice", FewChoice), ("shared", c_void_p), ("shared_stride", c_int64),
        ("shared_product", SharedFields), ("gates", c_void_p), ("factor", c_float), ("residual", c_void_p),
        ("residual_stride", c_int64), ("parts", c_void_p), ("parts_stride", c_int64), ("out", c_void_p),
        ("out_stride", c_int64),
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


def within(shared: SharedProduct | None) -> SharedFields:
    if shared is None:
        return SharedFields()
    (weight, bias), rows = shared
    return SharedFields(matrix_of(weight, bias, 1), rows.data_ptr(), rows.stride(0))


def coded_activation(name: str) -> tuple[int, int]:
    """Its code, and how many halves a product has."""
    return (UNGATED[name], 1) if name in UNGATED else (code_of(name), 2)


def logits_of(of: RouterLogits) -> LogitsFields:
    how = of.routing
    fields = RoutingFields(
        how.experts, how.chosen, SCORES[how.score], how.groups, how.top_groups, how.group_best, how.normalised,
        how.eps, how.least, how.scale,
    )  # fmt: skip
    return LogitsFields(fields, *map(address, (of.logits, of.correction, of.factors, of.slots)))


def unlisted(taken: Assignments) -> RouterLogits:
    """Logits by which rows take these experts with these weights, and padding where a row takes none."""
    (rows, chosen), experts = taken.places.shape, len(taken.starts) - 1
    logits, slots = torch.full((rows, experts), -torch.inf), taken.places[:, 0].clamp(max=0).long()
    ids = torch.bucketize(taken.places, taken.starts[1:], right=True)
    logits[slots == 0] = logits[slots == 0].scatter(
        1, ids[slots == 0], taken.weights[slots == 0].double().logit().float()
    )
    return RouterLogits(logits, Routing(experts, chosen, "sigmoid"), slots=slots)


class Described:
    """Experts that rows take, as the kernels for few or for many rows get them."""

    def __init__(self, taken: Taken, many: bool) -> None:
        taken = unlisted(taken) if isinstance(taken, Assignments) and not many else taken
        if many:
            assert isinstance(taken, Assignments)
            (self.rows, self.chosen), self.experts = taken.places.shape, len(taken.starts) - 1
            self.lists, self.choice = Lists(*(tensor.data_ptr() for tensor in taken)), FewChoice()
        else:
            assert isinstance(taken, RouterLogits)
            owned, how = taken.owned or range(taken.routing.experts), logits_of(taken)
            self.rows, self.chosen, self.experts = len(taken.logits), taken.routing.chosen, len(owned)
            self.lists = Lists()
            self.choice = FewChoice(how.routing, how.logits, how.correction, how.factors, how.slots, owned.start)
        self._kept = taken


def room_for(rows: int, routing: Routing) -> Assignments:
    """Lists that no kernel has written."""
    pairs = (rows, routing.chosen)
    return Assignments(
        torch.full(pairs, float("nan")),
        torch.full(pairs, -7, dtype=torch.int32),
        torch.full((rows * routing.chosen,), -7, dtype=torch.int32),
        torch.full((routing.experts + 1,), -7, dtype=torch.int32),
    )


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
        uniform: bool = False, listed: bool = True,
    ) -> Routed:  # fmt: skip
        rows, width = x.shape
        x, router, normed = aligned(x), aligned(router), aligned(torch.full_like(x, float("nan")))
        factors, gate = None if norm is None else aligned(norm.weight), None if gate is None else aligned(gate)
        taken = room_for(rows, routing)
        logits, gates = torch.full((rows, routing.experts), float("nan")), torch.full((rows,), float("nan"))
        ids = torch.full((rows, routing.chosen), -7, dtype=torch.int32)
        how = logits_of(RouterLogits(logits, routing, correction, None, slots))
        self._call(
            "route",
            RouteArgs(
                how.routing, how.logits, how.correction, how.factors, how.slots, DTYPES[x.dtype], x.data_ptr(),
                x.stride(0), rows, width, address(factors), norm.eps if norm else 0.0, norm.offset if norm else 0.0,
                normed.data_ptr(), normed.stride(0), router.data_ptr(), router.stride(0), address(bias), address(gate),
                Lists(*(tensor.data_ptr() for tensor in taken)) if listed else Lists(), gates.data_ptr(),
                ids.data_ptr(), self._counters.data_ptr(), uniform,
            ),
        )  # fmt: skip
        assert not self._counters.any()
        return Routed(taken, normed, logits, gates)

    def listed(self, of: RouterLogits) -> Assignments:
        rows, how, taken = len(of.logits), logits_of(of), room_for(len(of.logits), of.routing)
        ids = torch.full((rows, of.routing.chosen), -7, dtype=torch.int32)
        fields = RouteArgs(how.routing, how.logits, how.correction, how.factors, how.slots)
        fields.rows, fields.ids = rows, ids.data_ptr()
        fields.lists = Lists(*(tensor.data_ptr() for tensor in taken))
        self._call("listed", fields)
        return taken

    def up(
        self, x: Tensor, weight: Tensor, taken: Taken, activation: str = "silu", *, many: bool,
        bias: Tensor | None = None, clamped: float | None = None, shared: SharedProduct | None = None,
    ) -> Tensor:  # fmt: skip
        how, x, weight = Described(taken, many), aligned(x), aligned(weight)
        matrix = matrix_of(weight, bias, how.experts)
        code, halves = coded_activation(activation)
        out = aligned(torch.full((how.rows * how.chosen, matrix.columns // halves), float("nan"), dtype=x.dtype))
        self._call(
            "up_many" if many else "up_few",
            UpArgs(
                DTYPES[x.dtype], matrix, x.data_ptr(), x.stride(0), how.rows, how.chosen, how.lists.sources,
                how.lists.starts, how.choice, code, clamped or 0.0, out.data_ptr(), out.stride(0), within(shared),
            ),
        )  # fmt: skip
        return out

    def down(
        self, x: Tensor, weight: Tensor, taken: Taken, *, many: bool, bias: Tensor | None = None,
        shared: Tensor | SharedProduct | None = None, gates: Tensor | None = None, factor: float = 1.0,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        how, x, weight = Described(taken, many), aligned(x), aligned(weight)
        matrix = matrix_of(weight, bias, how.experts)
        out = aligned(torch.full((how.rows, matrix.columns), float("nan"), dtype=x.dtype))
        parts = aligned(torch.full((how.rows * how.chosen, matrix.columns), float("nan"), dtype=x.dtype))
        product, shared = (shared, None) if isinstance(shared, SharedProduct) else (None, shared)
        shared, residual = (None if t is None else aligned(t) for t in (shared, residual))
        strides = [0 if t is None else t.stride(0) for t in (shared, residual)]
        self._call(
            "down_many" if many else "down_few",
            DownArgs(
                DTYPES[x.dtype], matrix, x.data_ptr(), x.stride(0), how.rows, how.chosen,
                how.lists, how.choice, address(shared), strides[0], within(product), address(gates), factor,
                address(residual), strides[1], parts.data_ptr(), parts.stride(0), out.data_ptr(), out.stride(0),
            ),
        )  # fmt: skip
        return out

    def _call(self, name: str, arguments: ctypes.Structure) -> None:
        error = getattr(self._library, name)(ctypes.byref(arguments))
        if error:
            raise ValueError(f"{name}: error {error}")
