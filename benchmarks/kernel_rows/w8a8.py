"""Products of codes of eight bits with such codes, as a layer of an 8B has them, beside the same in bf16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_rows.linear import DECODERS
from kernel_rows.measuring import MATMUL, READ, Row, bf16, changed, measure_by_turns, rotations, row
from octavo_kernels import cuda, ops
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import choice
from octavo_kernels.products.choice import Form, W8A8Kernel, W8A8Launch
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Activations, Codes, PackedWeight, QuantisedWeight, Scheme

W8A8_ROWS = (1, 8, 32, 64, 256, 8192)
TILED_ROWS = (8, 16, 32, 64, 96, 128, 192, 256, 512, 2048)
FORMS = (Form.INT8, Form.FP8, Form.FP8_BLOCKS)
CODES_FLOPS = 2 * MATMUL
NAMES = ("qkv", "out", "gate_up", "down")


def packed(form: Form, columns: int, depth: int) -> PackedWeight:
    group = 128 if form is Form.FP8_BLOCKS else 0
    integers = form is Form.INT8
    codes = torch.randint(-80, 81, (columns, depth), dtype=torch.int8, device="cuda")
    if not integers:
        codes = (codes.float() * 4).to(torch.float8_e4m3fn)
    scales = torch.full((-(-depth // (group or depth)), columns), 0.02 / 160, device="cuda")
    kinds = (Codes.INT8, Activations.INT8) if integers else (Codes.FP8, Activations.FP8)
    return ops.pack(QuantisedWeight(Scheme(kinds[0], group or depth, kinds[1], group), codes, scales))


class Layer:
    """The products of a layer with what begins and ends them: norms, gate, residual."""

    def __init__(self, rows: int) -> None:
        shapes = DECODERS["8B"][0]
        self.x = {depth: bf16(rows, depth) for _, depth in shapes}
        self.out = {columns: bf16(rows, columns) for columns, _ in shapes}
        self.hidden, self.normed = bf16(rows, 4096), bf16(rows, 4096)
        self.activated = bf16(rows, 14336)
        self.norm = RmsNorm(torch.ones(4096, dtype=torch.bfloat16, device="cuda"))

    def run(self, name: str, w: PackedWeight | Tensor) -> object:
        columns, depth = (w.columns, w.depth) if isinstance(w, PackedWeight) else w.shape
        x, out = self.x[depth], self.out[columns]
        if name == "gate_up":
            return ops.gated_linear(Product(x, w, out=self.activated, norm=self.norm, normed=self.normed), "silu", out)
        if name == "qkv":
            return ops.linear(Product(x, w, out=out, norm=self.norm, normed=self.normed))
        return ops.linear(Product(x, w, out=self.hidden, residual=self.hidden))


def floor_of(rows: int, columns: int, depth: int) -> float:
    return max(columns * depth / READ, 2 * rows * columns * depth / CODES_FLOPS)


def product_rows(rows: int, layer: Layer, at: int) -> list[Row]:
    """One of a layer's products, by each form and in bf16."""
    name, (columns, depth) = NAMES[at], DECODERS["8B"][0][at]
    count = rotations(columns * depth, 2)
    rivals: dict[str, list[Callable[[], object]]] = {
        form.name: [lambda w=w: layer.run(name, w) for w in [packed(form, columns, depth) for _ in range(count)]]
        for form in FORMS
    }
    rivals["bf16"] = [lambda w=w: layer.run(name, w) for w in [bf16(columns, depth) for _ in range(count)]]
    seconds = measure_by_turns(rivals, replays=9)
    floor = floor_of(rows, columns, depth)
    return [
        row("w8a8", f"{rows} x {name}, {form.name}", seconds[form.name], floor, ("bf16", seconds["bf16"]))
        for form in FORMS
    ]


def layers_row(rows: int, layer: Layer, form: Form, layers: int) -> Row:
    """All products of so many layers, one after the other."""
    shapes = DECODERS["8B"][0]
    calls: list[Callable[[], object]] = []
    dense: list[Callable[[], object]] = []
    for _ in range(layers):
        for name, (columns, depth) in zip(NAMES, shapes, strict=True):
            calls.append(partial(layer.run, name, packed(form, columns, depth)))
            dense.append(partial(layer.run, name, bf16(columns, depth)))
    seconds = measure_by_turns({"codes": calls, "bf16": dense}, replays=9)
    floor = layers * sum(floor_of(rows, *shape) for shape in shapes)
    name, whole = f"{rows} x {layers} layers, {form.name}", len(calls)
    return row("w8a8", name, whole * seconds["codes"], floor, ("bf16", whole * seconds["bf16"]))


def w8a8_rows() -> list[Row]:
    """Every form."""
    result = []
    for rows in W8A8_ROWS:
        layer = Layer(rows)
        for at in range(len(NAMES)):
            result += product_rows(rows, layer, at)
        result += [layers_row(rows, layer, form, 32 if rows <= 256 else 2) for form in FORMS]
    return result


def tiles_for(rows: int) -> list[W8A8Launch]:
    return [
        W8A8Launch(W8A8Kernel.WIDE, consumers, tokens, height)
        for consumers, tokens in choice.W8A8_TILES
        if rows <= tokens < 4 * max(rows, 8) or (tokens >= 128 and rows > 128)
        for height in range(64 * consumers, 64 * (consumers - 1), -16)
    ]


def tile_rows(form: Form, name: str, rows: int, weights: list[PackedWeight]) -> list[Row]:
    """A product in every tile that makes sense, beside the one that is chosen."""
    columns, depth = weights[0].columns, weights[0].depth
    chip = cuda.chip(torch.device("cuda", torch.cuda.current_device()))
    chosen = choice.choose_w8a8(rows, columns, depth, form, chip)
    layer, result = Layer(rows), []
    for tile in tiles_for(rows):
        rivals: dict[str, list[Callable[[], object]]] = {
            label: [lambda w=w, to=to: forced(to, layer, name, w) for w in weights]
            for label, to in (("tile", tile), ("chosen", chosen))
        }
        took = measure_by_turns(rivals, replays=5)
        shape = f"{rows} x {name}, {form.name}, {tile.consumers} x {tile.tokens} x {tile.height}"
        floor = floor_of(rows, columns, depth)
        result.append(row("w8a8 tile", shape, took["tile"], floor, ("chosen", took["chosen"])))
    return result


def w8a8_tile_rows() -> list[Row]:
    """Figures by which `choice` is tuned."""
    result = []
    for form in (Form.FP8, Form.INT8):
        for name, (columns, depth) in zip(NAMES, DECODERS["8B"][0], strict=True):
            weights = [packed(form, columns, depth) for _ in range(rotations(columns * depth, 2))]
            for rows in TILED_ROWS:
                result += tile_rows(form, name, rows, weights)
    return result


def forced(launch: W8A8Launch | None, layer: Layer, name: str, weight: PackedWeight) -> Any:
    with changed(choice, choose_w8a8=lambda *_: launch):
        return layer.run(name, weight)
