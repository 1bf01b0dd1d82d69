"""Mixtures of experts, by their launches: one layer of Qwen3-30B-A3B's shape, and of Nemotron-3-Nano's, whose experts
have no gate, of several so that weights are cold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts import gpu
from octavo_kernels.experts.gpu import Ungated
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import Experts, Gate, Routed, RouterProduct, Routing

from .measuring import MATMUL, READ, Row, bf16, measure, row

LAYERS = 4
ROWS = (1, 4, 8, 16, 24, 32, 64, 256, 2048, 8192)


class Shape(NamedTuple):
    experts: int
    chosen: int
    hidden: int
    width: int
    kind: Gate | Ungated = "silu"
    name: str = ""

    @property
    def halves(self) -> int:
        return 1 if self.kind in gpu.UNGATED else 2


QWEN3 = Shape(128, 8, 2048, 768)
NEMOTRON3 = Shape(128, 6, 2688, 1856, "relu2", ", Nemotron-3-Nano")


class Layer:
    """Random weights; `skew` draws rows to the first experts, about as a Zipf distribution does."""

    def __init__(self, shape: Shape, skew: bool, counters: Tensor) -> None:
        self.shape, (experts, _, hidden, width, *_) = shape, shape
        self.router = torch.randn(experts, hidden, device="cuda")
        if skew:
            self.router /= torch.arange(1, experts + 1, device="cuda")[:, None] ** 0.5
        self.up = bf16(experts * shape.halves * width, hidden).div_(hidden**0.5)
        self.down = bf16(experts * hidden, width).div_(width**0.5)
        self.norm, self.counters = RmsNorm(bf16(hidden)), counters

    def route(self, x: Tensor, uniform: bool = False) -> Routed:
        routing = Routing(self.shape.experts, self.shape.chosen, normalised=True)
        return ops.route_rows(RouterProduct(x, self.router, routing, self.counters, norm=self.norm, uniform=uniform))


def experts_rows() -> list[Row]:
    """Floors are the bytes of the experts hit, or the operations."""
    qwen3 = [one for uniform in (False, True) for skew in (False, True) for one in _rows(QWEN3, skew, uniform)]
    return qwen3 + _rows(NEMOTRON3, False, False)


def _rows(shape: Shape, skew: bool, uniform: bool) -> list[Row]:
    _, chosen, hidden, width, *_ = shape
    counters = torch.zeros(gpu.COUNTERS, dtype=torch.int32, device="cuda")
    layers, made = [Layer(shape, skew, counters) for _ in range(LAYERS)], []
    for count in ROWS if not uniform else (1, 32, 256, 8192):
        x = bf16(count, hidden)
        routed = [layer.route(x, uniform) for layer in layers]
        hit = sum(int((ops.listed(one.taken).starts.diff() > 0).sum()) for one in routed) / LAYERS
        inner = [_up(*each) for each in zip(layers, routed, strict=True)]
        kind = f"{count} rows, {hit:.1f} experts hit" + ", skewed" * skew + ", uniform" * uniform + shape.name
        matrix, product, halves = 2 * hidden * width, 2 * count * chosen * hidden * width, shape.halves
        steps: dict[str, tuple[list[Callable[[], object]], float, float]] = {
            "experts, up": (
                [partial(_up, *each) for each in zip(layers, routed, strict=True)], halves, halves
            ),
            "experts, down": (
                [partial(_down, *each) for each in zip(layers, routed, inner, strict=True)], 1, 1
            ),
            "mixture": ([partial(_whole, layer, x, uniform) for layer in layers], halves + 1, halves + 1),
        }  # fmt: skip
        if not skew and not uniform:
            calls: list[Callable[[], object]] = [partial(layer.route, x) for layer in layers]
            floor = 4 * shape.experts * hidden / READ
            made.append(row("experts, route", kind, measure(calls), floor))
        for name, (work, matrices, products) in steps.items():
            floor = max(hit * matrices * matrix / READ, products * product / MATMUL)
            made.append(row(name, kind, measure(work), floor))
    return made


def _up(layer: Layer, routed: Routed) -> Tensor:
    return ops.experts_up(routed.rows, Experts(layer.up), routed.taken, layer.shape.kind)


def _down(layer: Layer, routed: Routed, inner: Tensor) -> Tensor:
    return ops.experts_down(inner, Experts(layer.down), routed.taken)


def _whole(layer: Layer, x: Tensor, uniform: bool) -> Tensor:
    routed = layer.route(x, uniform)
    return _down(layer, routed, _up(layer, routed))
