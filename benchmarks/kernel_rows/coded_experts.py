"""Mixtures whose experts are codes, by their launches: one layer of a model's shape, of several so that weights are
cold. Random codes under one scale stand for any: the kernels take the same time for all."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts import gpu
from octavo_kernels.ops import Experts, Routed, RouterProduct, Routing
from octavo_kernels.products.coded import CodedWeight, lay_out
from octavo_kernels.products.weights import DTYPES, PER_BYTE, Codes, QuantisedWeight, Scheme

from .measuring import MATMUL, READ, Row, bf16, measure, row

LAYERS = 4
ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 256, 2048, 8192)
SHAPES = {  # experts, chosen, hidden, width
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "gpt-oss-20b": (32, 4, 2880, 2880),
}
KINDS = (
    ("Qwen3-30B-A3B", Scheme(Codes.INT4, 128)),
    ("Qwen3-30B-A3B", Scheme(Codes.FP8, 128)),
    ("gpt-oss-20b", Scheme(Codes.FP4, 32)),
)


def coded(scheme: Scheme, columns: int, depth: int) -> CodedWeight:
    raw = torch.randint(0, 0x7E, (columns, depth // PER_BYTE[scheme.codes]), dtype=torch.uint8, device="cuda")
    scales = torch.full((-(-depth // scheme.group), columns), 2**-7, device="cuda")
    return ops.pack_experts(lay_out(QuantisedWeight(scheme, raw.view(DTYPES[scheme.codes]), scales)))


class Layer:
    """A mixture of this shape and form."""

    def __init__(self, shape: tuple[int, int, int, int], scheme: Scheme, counters: Tensor) -> None:
        experts, chosen, hidden, width = shape
        self.routing, self.counters = Routing(experts, chosen, normalised=True), counters
        self.router = torch.randn(experts, hidden, device="cuda")
        self.up = Experts(coded(scheme, experts * 2 * width, hidden), bf16(experts * 2 * width))
        self.down = Experts(coded(scheme, experts * hidden, width), bf16(experts * hidden))
        self.few = self.up.few

    def route(self, x: Tensor) -> Routed:
        return ops.route_rows(RouterProduct(x, self.router, self.routing, self.counters, few=self.few))

    def first(self, routed: Routed) -> Tensor:
        return ops.experts_up(routed.rows, self.up, routed.taken, "silu")

    def second(self, routed: Routed, inner: Tensor) -> Tensor:
        return ops.experts_down(inner, self.down, routed.taken)

    def whole(self, x: Tensor) -> Tensor:
        routed = self.route(x)
        return self.second(routed, self.first(routed))


def coded_experts_rows() -> list[Row]:
    """Floors are the bytes of the experts hit, scales included, or the operations."""
    return [one for model, scheme in KINDS for one in _rows(model, scheme)]


def few_coded_experts_rows() -> list[Row]:
    """The same for a few rows, by the kernels for these and with lists and tiles."""
    ways = {"kernels for a few": 8, "lists and tiles": 0}
    counts = (1, 2, 3, 4)
    return [
        one for model, scheme in KINDS for way, few in ways.items() for one in _rows(model, scheme, counts, way, few)
    ]


def _rows(
    model: str, scheme: Scheme, counts: tuple[int, ...] = ROWS, way: str = "", few: int | None = None
) -> list[Row]:
    counters = torch.zeros(gpu.COUNTERS, dtype=torch.int32, device="cuda")
    experts, chosen, hidden, width = SHAPES[model]
    layers = [Layer(SHAPES[model], scheme, counters) for _ in range(LAYERS)]
    for layer in layers if few is not None else ():
        layer.few = few
    up, down = (matrix.weight for matrix in (layers[0].up, layers[0].down))
    assert isinstance(up, CodedWeight)
    assert isinstance(down, CodedWeight)
    made = []
    for count in counts:
        x = bf16(count, hidden)
        routed = [layer.route(x) for layer in layers]
        hit = sum(int((ops.listed(one.taken).starts.diff() > 0).sum()) for one in routed) / LAYERS
        inner = [layer.first(one) for layer, one in zip(layers, routed, strict=True)]
        kind = (
            f"{model}, {scheme.codes.name} in groups of {scheme.group}, {count} rows, {hit:.1f} experts hit"
            + f", {way}" * bool(way)
        )
        product = 2 * count * chosen * hidden * width
        for name, work, nbytes, products in (
            ("up", [partial(layer.first, one) for layer, one in zip(layers, routed, strict=True)], up.nbytes, 2),
            ("down", [partial(layer.second, *each) for layer, *each in zip(layers, routed, inner, strict=True)],
             down.nbytes, 1),
            ("mixture", [partial(layer.whole, x) for layer in layers], up.nbytes + down.nbytes, 3),
        ):  # fmt: skip
            floor = max(hit / experts * nbytes / READ, products * product / MATMUL)
            made.append(row(f"coded experts, {name}", kind, measure(work), floor))
    return made
