"""A Linear at the end of a sublayer, and the parts that another kind of Linear has to bring along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from octavo_kernels.ops import Addend
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.norm import AddNorm, Input, LayerNorm, Norm, RmsNorm

ROWS, HIDDEN, WIDTH = 3, 16, 24


@dataclass(frozen=True)
class Halves(Linear):
    """A matrix in two pieces, with a product of its own and nothing else."""

    upper: Tensor
    lower: Tensor

    @property
    def nbytes(self) -> int:
        return self.upper.nbytes + self.lower.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        rows = x.materialise()
        product = torch.cat([rows @ self.upper.T, rows @ self.lower.T], dim=1)
        product = product if residual is None else product + residual
        return product if out is None else out.copy_(product)


def made(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def buffers() -> Buffers:
    hidden = made(ROWS, HIDDEN)
    shapes = [(HIDDEN,), (HIDDEN,), (1,), (1,), (1,), (1, 1), (2 * WIDTH,), (WIDTH,)]
    return Buffers(hidden, *(torch.empty(ROWS, *shape) for shape in shapes))


RMS = RmsNorm(made(HIDDEN), 1e-6, 1.0)
LAYER = LayerNorm(made(HIDDEN), made(HIDDEN, 1)[:, 0], 1e-5)
SCALAR = torch.tensor([0.75])
WEIGHT = made(HIDDEN, WIDTH)
KINDS = [Dense(WEIGHT), Halves(*WEIGHT.chunk(2))]


def expected(norm: Norm | None, x: Tensor) -> Tensor:
    if isinstance(norm, RmsNorm):
        return functional.rms_norm(x, (HIDDEN,), norm.operand.weight + norm.operand.offset, norm.operand.eps)
    return functional.layer_norm(x, (HIDDEN,), norm.weight, norm.bias, norm.eps) if norm else x


@pytest.mark.parametrize("linear", KINDS, ids=["dense", "another"])
@pytest.mark.parametrize(
    "add_norm",
    [
        AddNorm(RMS),
        AddNorm(LAYER),
        AddNorm(None),
        AddNorm(RMS, post_norm=RMS),
        AddNorm(None, post_norm=RMS),
        AddNorm(RMS, multiplier=0.5),
        AddNorm(RMS, scalar=SCALAR),
        AddNorm(LAYER, RMS, 2.0, SCALAR),
    ],
    ids=["rms", "layer", "none", "rms-post", "post-alone", "multiplier", "scalar", "all"],
)
def test_a_last_product_goes_into_the_residual_stream_and_the_next_norm(linear: Linear, add_norm: AddNorm) -> None:
    b, x = buffers(), made(ROWS, WIDTH)
    hidden = b.hidden + add_norm.multiplier * expected(add_norm.post_norm, x @ WEIGHT.T)
    hidden = hidden if add_norm.scalar is None else hidden * add_norm.scalar
    got = linear.into_norm(Input(x), b, add_norm).materialise()
    torch.testing.assert_close(b.hidden, hidden)
    torch.testing.assert_close(got, expected(add_norm.norm, hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_multiplied_product_is_rounded_once_and_leaves_the_norm_to_the_next(dtype: torch.dtype) -> None:
    b, x, weight = buffers(), made(ROWS, WIDTH).to(dtype), WEIGHT.to(dtype)
    b.hidden, b.delta = b.hidden.to(dtype), torch.full((ROWS, HIDDEN), torch.nan)
    exact = 0.22 * (x.double() @ weight.double().T) + b.hidden.double()
    got = Dense(weight).into_norm(Input(x), b, AddNorm(RMS, multiplier=0.22))
    torch.testing.assert_close(b.hidden, exact.to(dtype))
    assert got.rows is b.hidden
    assert got.norm is RMS.operand
    assert b.delta.isnan().all()


def test_another_kind_of_linear_needs_only_its_product() -> None:
    weight, b = made(2 * WIDTH, HIDDEN), buffers()
    x = RMS.defer(b.hidden, b.normed)
    gate, up = (expected(RMS, b.hidden) @ weight.T).chunk(2, dim=1)
    for linear in (Dense(weight), Halves(*weight.chunk(2))):
        got = linear.gated(x, "silu", out=b.activated, scratch=b.up)
        torch.testing.assert_close(got, functional.silu(gate) * up)


@dataclass(frozen=True)
class Mixture:
    """Two experts in the place of an MLP: there is no last product."""

    experts: tuple[Linear, Linear]

    def products(self) -> Mapping[str, Linear]:
        return {"first expert": self.experts[0], "second expert": self.experts[1]}

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        rows = x.materialise()
        return add_norm.add(b, *[Addend(expert.apply(Input(rows))) for expert in self.experts])


class Attended:
    """An attention whose heads have been computed."""

    kind = "attended"
    config = SimpleNamespace(num_heads=1)
    out = Dense(made(HIDDEN, HIDDEN))

    def products(self) -> Mapping[str, Linear]:
        return {"out": self.out}

    def attend(self, x: Input, b: Buffers, batch: object) -> None:
        b.attended = x.rows.view(len(x.rows), 2, HIDDEN // 2)

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        return self.out.into_norm(Input(b.attended.flatten(1)), b, add_norm)


@pytest.mark.parametrize("rows", [None, [2, 0]], ids=["all", "some"])
def test_a_mixture_stands_in_the_place_of_an_mlp(rows: list[int] | None) -> None:
    experts = Dense(made(HIDDEN, HIDDEN) + 1), Dense(made(HIDDEN, HIDDEN) - 1)
    block = Block(cast(Any, Attended()), AddNorm(RMS), Mixture(experts), AddNorm(LAYER))
    assert list(block.products()) == ["out", "first expert", "second expert"]
    assert (
        block.kind
        != Block(cast(Any, Attended()), AddNorm(RMS), Mixture((experts[0], Dense(WEIGHT))), AddNorm(LAYER)).kind
    )
    b, x, batch = buffers(), Input(made(ROWS, HIDDEN)), cast(Any, SimpleNamespace())
    after = b.hidden + x.rows @ Attended.out.weight.T
    hidden = after + expected(RMS, after) @ (experts[0].weight + experts[1].weight).T
    if rows is None:
        got = block.forward(x, b, batch).materialise()
    else:
        hidden = hidden[rows]
        got = block.forward_some(x, b, batch, torch.tensor(rows), buffers().first(len(rows))).materialise()
    torch.testing.assert_close(got, expected(LAYER, hidden))
