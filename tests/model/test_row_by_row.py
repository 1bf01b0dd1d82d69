"""On a CPU every product of transformers' code rounds a row alike whatever the number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from octavo_worker.model.substitutes import RowByRow, substitute

DEPTH, COLUMNS, ROWS = 88, 72, 77
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "as it lies": lambda x, w: x @ w,
    "turned round": lambda x, w: x @ w.T.contiguous().T,
    "matmul": lambda x, w: torch.matmul(x, w),
    "mm": lambda x, w: torch.mm(x, w),
    "addmm": lambda x, w: torch.addmm(w[0], x, w),
    "linear": lambda x, w: F.linear(x, w.T, bias=w[0]),
    "linear, whole": lambda x, w: F.linear(x, w.T.contiguous(), w[0]),
    "bmm": lambda x, w: torch.bmm(torch.stack((x, x)), torch.stack((w, -w)))[1],
    "bmm of small ones": lambda x, w: torch.bmm(torch.stack((x, x)), torch.stack((w, -w))[..., :9])[1],
    "baddbmm": lambda x, w: torch.baddbmm(w[:2, None], torch.stack((x, x)), torch.stack((w, -w)))[1],
    "einsum": lambda x, w: torch.einsum("td,dc->tc", x, w),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_row_is_the_same_alone_and_among_others(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DEPTH, generator=generator).to(dtype)
    w = torch.randn(DEPTH, COLUMNS, generator=generator).to(dtype)
    product = PRODUCTS[kind]
    wanted = product(x.double(), w.double())
    with torch.inference_mode(), RowByRow():
        together = product(x, w)
        for rows in (1, 2, 5, 32):
            assert torch.equal(product(x[:rows], w), together[:rows])
    assert together.dtype == dtype
    assert torch.allclose(together.double(), wanted, rtol=0.02, atol=0.2 if dtype == torch.bfloat16 else 1e-3)


def test_gpt2s_own_kind_of_linear_layer_is_replaced() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(COLUMNS, DEPTH))
    x = torch.randn(ROWS, DEPTH)
    wanted = model(x)
    substitute(model)
    with torch.inference_mode():
        together = model(x)
        assert torch.allclose(together, wanted, atol=1e-5)
        assert torch.equal(model(x[:1]), together[:1])
