"""Launches between the large ones: products by head, norms and sums between sublayers, gates of attention, and a shared
expert within the launches of the others. Each stands beside the launches that it takes the place of."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kernel_rows.experts import Layer, Shape
from kernel_rows.measuring import COPY, READ, Row, bf16, measure, rotations, row
from octavo_kernels import ops
from octavo_kernels.experts import gpu
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import Addend, Experts, HeadProduct, Product, SharedProduct

GLM, GRANITE = Shape(64, 4, 2048, 1536, name="GLM-4.7-Flash"), Shape(72, 10, 4096, 768, name="Granite-4-H-Small")
SHARED_WIDTH = 1536  # of both


def head_product(rows: int, heads: int, columns: int, depth: int) -> Row:
    moved = heads * columns * depth * 2
    n = rotations(moved)
    x, weight, out = bf16(rows, heads, depth), bf16(n, heads * columns, depth), bf16(rows, heads, columns)

    def peer(i: int) -> None:
        torch.bmm(x.transpose(0, 1), weight[i].view(heads, columns, depth).mT, out=out.transpose(0, 1))

    seconds = measure([partial(ops.by_head, HeadProduct(x, weight[i], out)) for i in range(n)])
    others = measure([partial(peer, i) for i in range(n)])
    return row("by_head", f"{rows} x {heads} x {columns} x {depth}", seconds, moved / READ, ("cuBLAS", others))


def between(tokens: int, width: int, both: bool) -> Row:
    """The end of Gemma 4's mixture, or a norm behind a sublayer."""
    moved = (5 if both else 4) * tokens * width * 2
    n = rotations(moved)
    hidden, first, second, out = bf16(4, n, tokens, width)
    norms, scalar = [RmsNorm(bf16(width)) for _ in range(4)], bf16(1)

    def ours(i: int) -> None:
        one, other = Addend(first[i], norms[0]), Addend(second[i], norms[1])
        if both:
            ops.add_norms(hidden[i], [one, other], post=norms[2], scalar=scalar, norm=norms[3], out=out[i])
        else:
            ops.add_norms(hidden[i], [one], norm=norms[3], out=out[i])

    def normed(x: Tensor, place: int, to: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops.rms_norm(x, norms[place].weight, norms[place].eps, out=to, residual=residual)

    def apart(i: int) -> None:
        delta = normed(first[i], 0, first[i])
        if not both:
            normed(delta, 3, out[i], hidden[i])
            return
        delta = normed(delta.add_(normed(second[i], 1, second[i])), 2, delta)
        normed(hidden[i].add_(delta).mul_(scalar), 3, out[i])

    seconds, others = measure([partial(ours, i) for i in range(n)]), measure([partial(apart, i) for i in range(n)])
    name = "add_norms, two addends" if both else "add_norms"
    return row(name, f"{tokens} x {width}", seconds, moved / COPY, ("apart", others))


def gated_heads(tokens: int, heads: int, head_dim: int) -> Row:
    moved = 3 * tokens * heads * head_dim * 2
    n = rotations(moved)
    x, logits = bf16(n, tokens, heads, head_dim), bf16(n, tokens, heads * head_dim)

    def peer(i: int) -> None:
        x[i].mul_(logits[i].float().sigmoid_().view(tokens, heads, head_dim))

    seconds = measure([partial(ops.gate_heads, x[i], logits[i], "sigmoid") for i in range(n)])
    return row("gate_heads", f"{tokens} x {heads} x {head_dim}", seconds, moved / COPY,
               ("apart", measure([partial(peer, i) for i in range(n)])))  # fmt: skip


def shared_expert(shape: Shape, rows: int) -> Row:
    """From the choice to rows' sums; apart, the shared expert has two launches of its own."""
    counters = torch.zeros(gpu.COUNTERS, dtype=torch.int32, device="cuda")
    layers = [Layer(shape, False, counters) for _ in range(2)]
    shared = [(bf16(2 * SHARED_WIDTH, shape.hidden), bf16(shape.hidden, SHARED_WIDTH)) for _ in layers]
    x, made = bf16(rows, shape.hidden), bf16(rows, SHARED_WIDTH)

    def run(i: int, within: bool) -> None:
        layer, (up, down) = layers[i], shared[i]
        routed, experts = layer.route(x), (Experts(layer.up), Experts(layer.down))
        product = SharedProduct(Experts(up), made) if within else None
        beside: Tensor | SharedProduct = SharedProduct(Experts(down), made)
        if not within:
            beside = ops.linear(Product(ops.gated_linear(Product(routed.rows, up), "silu", made), down))
        inner = ops.experts_up(routed.rows, experts[0], routed.taken, "silu", shared=product)
        ops.experts_down(inner, experts[1], routed.taken, shared=beside)

    seconds, others = (measure([partial(run, i, within) for i in range(len(layers))]) for within in (True, False))
    read = 2 * 3 * shape.hidden * (rows * shape.chosen * shape.width + SHARED_WIDTH)
    return row("mixture, shared expert", f"{rows} x {shape.name}", seconds, read / READ, ("apart", others))


def between_rows() -> list[Row]:
    products = [head_product(n, 20, *sizes) for n in (1, 8, 32, 64) for sizes in ((512, 192), (256, 512))]
    norms = [between(n, 2816, both) for n in (1, 32, 256, 8192) for both in (False, True)]
    gates = [gated_heads(n, 16, 256) for n in (1, 32, 8192)]
    return products + norms + gates + [shared_expert(shape, n) for shape in (GLM, GRANITE) for n in (1, 3)]
