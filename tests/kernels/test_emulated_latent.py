"""The source of the GPU kernels around the scores of latent attention, run on the CPU in a random order of threads.

What this shows: products by head in any shape, that a row's bits are its own, and that both halves of the joint launch
do their work. test_cuda_latent.py runs them on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import reference
from octavo_kernels.operands import RmsNorm

from .emulated import aligned
from .emulated_latent import EmulatedLatent

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3}
SHAPES = [(20, 512, 192), (3, 256, 512), (2, 40, 8), (1, 32, 264), (5, 24, 128)]  # heads, columns, depth


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedLatent:
    return EmulatedLatent(tmp_path_factory.mktemp("latent"))


def data(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return aligned(torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype))


def products(emulated: EmulatedLatent, x: Tensor, weight: Tensor, columns: int, seed: int = 1) -> Tensor:
    """Heads of what comes out lie apart; what lies between them stays as it is."""
    rows, heads, _ = x.shape
    room = torch.full((rows + 1, heads, columns + 3), float("nan"), dtype=x.dtype)
    emulated.set_up(3, seed)
    emulated.by_head(x, weight, room[:rows, :, :columns])
    assert room[rows:].isnan().all()
    assert room[..., columns:].isnan().all()
    return room[:rows, :, :columns]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "columns", "depth"), SHAPES)
def test_each_head_has_its_own_matrix(
    emulated: EmulatedLatent, heads: int, columns: int, depth: int, dtype: torch.dtype
) -> None:
    weight = data(heads * columns, depth, dtype=dtype)
    for rows in (1, 7, 9) if heads > 3 else (1, 8, 70):
        whole = data(rows, heads, depth + 16, dtype=dtype, seed=rows)  # of which a part is multiplied
        x = whole[..., 8 : 8 + depth]
        wanted = torch.einsum("thd,hcd->thc", x.double(), weight.double().view(heads, columns, depth))
        found = products(emulated, x, weight, columns)
        scale = depth**0.5 * TOLERANCE[dtype] / 4
        torch.testing.assert_close(found.double(), wanted, atol=scale, rtol=TOLERANCE[dtype])


def test_bits_of_a_row_are_its_own(emulated: EmulatedLatent) -> None:
    """Whatever rows there are beside it, and in whatever order blocks run."""
    x, weight = data(67, 2, 200, dtype=torch.bfloat16), data(2 * 64, 200, dtype=torch.bfloat16, seed=2)
    together = products(emulated, x, weight, 64)
    for row in (0, 7, 8, 63, 64, 66):
        assert torch.equal(products(emulated, x[row : row + 1], weight, 64, seed=row), together[row : row + 1])


def test_rows_that_are_not_numbers_stay_alone(emulated: EmulatedLatent) -> None:
    x, weight = data(3, 2, 64, dtype=torch.float16), data(2 * 32, 64, dtype=torch.float16, seed=2)
    x[1] = float("nan")
    found = products(emulated, x, weight, 32)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def test_what_no_kernel_takes_is_refused(emulated: EmulatedLatent) -> None:
    weight = data(64, 64, dtype=torch.float16)
    out = torch.empty(1, 2, 32, dtype=torch.float16)
    for x in (data(1, 2, 65, dtype=torch.float16)[..., 1:], data(1, 2, 68, dtype=torch.float16)[..., :64]):
        with pytest.raises(ValueError, match="error 1"):
            emulated.by_head(x, weight, out)


@pytest.mark.parametrize("cells", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_one_launch_keeps_rows_and_turns_queries(emulated: EmulatedLatent, cells: torch.dtype | None) -> None:
    """The product is of the first rows alone. What is kept is compared where it is no code; codes have their own tests
    on a GPU."""
    tokens, few, heads, plain, rank, rotated, block = 5, 3, 2, 24, 64, 16, 16
    dtype = torch.bfloat16
    q, kept = data(tokens, heads, plain + rotated, dtype=dtype), data(tokens, rank + rotated, dtype=dtype, seed=2)
    weight, norm = data(heads * rank, plain, dtype=dtype, seed=3), RmsNorm(data(rank, dtype=dtype, seed=4))
    cos_sin, positions = aligned(torch.randn(9, rotated)), torch.tensor([0, 8, 3, 4, 5])
    slots = torch.tensor([17, 3, -1, 31, 0])
    out = torch.full((tokens, heads, rank + rotated), float("nan"), dtype=dtype)
    elements = block * (rank + rotated) if cells is None else block * (rank + 4 + 2 * rotated)
    cache = aligned(torch.zeros(2, elements, dtype=cells or dtype))
    emulated.set_up(3, 1)
    emulated.keep(
        q[..., plain:], kept, norm, out, cache, slots, positions, cos_sin, block,
        (q[:few, :, :plain], weight, out[:few, :, :rank]),
    )  # fmt: skip
    met = torch.einsum("thd,hcd->thc", q[:few, :, :plain].double(), weight.double().view(heads, rank, plain))
    torch.testing.assert_close(out[:few, :, :rank].double(), met, atol=5e-2, rtol=2e-2)
    assert out[few:, :, :rank].isnan().all()
    turned = reference.rope(q[..., plain:].float(), positions, cos_sin)
    torch.testing.assert_close(out[..., rank:].float(), turned, atol=2e-2, rtol=2e-2)
    key = reference.rope(kept[:, None, rank:].float(), positions, cos_sin)[:, 0]
    for token in (0, 1, 3, 4):
        cell = cache[slots[token] // block]
        at = int(slots[token] % block)
        if cells is None:
            row = cell.view(block, rank + rotated)[at]
            latent = reference.rms_norm(kept[token : token + 1, :rank].float(), norm.weight.float(), norm.eps)
            wanted = torch.cat((latent[0], key[token])).sort().values
            torch.testing.assert_close(row.float().sort().values, wanted, atol=5e-2, rtol=2e-2)
        else:
            exact = cell.view(torch.uint8)[block * (rank + 4) :].view(dtype).view(block, rotated)[at]
            torch.testing.assert_close(exact.float(), key[token], atol=2e-2, rtol=2e-2)
    assert (cache.view(torch.uint8) != 0).sum() > 0
