"""Parts side by side are the matrix that they are parts of."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.operands import RmsNorm
from octavo_worker.model.layers.linear import Dense
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.layers.parts import Parts

GENERATOR = torch.Generator().manual_seed(1)
X, WEIGHT, BIAS = (torch.randn(shape, generator=GENERATOR) for shape in ((5, 32), (24, 32), (24,)))
COLUMNS = (12, 4, 8)
WHOLE = Dense(WEIGHT, BIAS)
PARTS = Parts([Dense(w, b) for w, b in zip(WEIGHT.split(COLUMNS), BIAS.split(COLUMNS), strict=True)], COLUMNS)


@pytest.mark.parametrize("has_norm", [False, True])
def test_products_lie_side_by_side(has_norm: bool) -> None:
    x = Input(X, RmsNorm(torch.rand(32), 1e-6, 0.0) if has_norm else None)
    torch.testing.assert_close(PARTS.apply(x), WHOLE.apply(x))


def test_the_residual_stream_is_added_where_it_lies() -> None:
    residual = torch.randn(5, 24, generator=GENERATOR)
    wanted = WHOLE.apply(Input(X)) + residual
    assert PARTS.apply(Input(X), residual, residual) is residual
    torch.testing.assert_close(residual, wanted)


def test_a_gate_that_is_a_part_acts_on_the_other() -> None:
    halves = Parts([Dense(WEIGHT[:12]), Dense(WEIGHT[12:])], (12, 12))
    out, scratch = torch.empty(5, 12), torch.empty(5, 24)
    wanted = Dense(WEIGHT).gated(Input(X), "silu", torch.empty(5, 12), torch.empty(5, 24))
    torch.testing.assert_close(halves.gated(Input(X), "silu", out, scratch), wanted)
