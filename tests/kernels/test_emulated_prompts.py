"""The source of the kernel for prompts on Hopper, run on the CPU with threads and copies in a random order.

What this shows: the arithmetic, that nothing is read before it is there or replaced before it is read, and that blocks
in pairs give the bits of blocks alone. What it does not: speed. test_cuda_attention.py runs it on a GPU.
"""

from __future__ import annotations

import pytest
import torch

from .emulated_prompts import EmulatedPrompts, Prompts

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
LENGTHS = [(70, 70), (1, 140), (33, 300), (0, 20), (5, 5)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedPrompts:
    return EmulatedPrompts(tmp_path_factory.mktemp("prompts"))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("head_dim", "window"), [(64, 0), (96, 0), (128, 0), (256, 0), (128, 50)])
def test_rows_are_those_of_the_reference(
    emulated: EmulatedPrompts, head_dim: int, window: int, dtype: torch.dtype
) -> None:
    prompts = Prompts.make(LENGTHS, 4, 2, head_dim, dtype=dtype)
    rows, _ = emulated.attend(prompts, 0.125, pairs=True, window=window)
    close(rows, prompts, window)


def close(rows: torch.Tensor, prompts: Prompts, window: int = 0) -> None:
    tolerance = TOLERANCE[rows.dtype]
    torch.testing.assert_close(rows.double(), prompts.expected(0.125, window), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("heads", "kv_heads", "block_size"), [(4, 2, 16), (8, 2, 64), (6, 2, 16), (8, 1, 256)])
def test_pairs_of_blocks_give_the_bits_of_blocks_alone(
    emulated: EmulatedPrompts, heads: int, kv_heads: int, block_size: int
) -> None:
    """Tiles of which one sees a tile of keys less, odd ones that have no neighbour, and some behind other tokens."""
    prompts = Prompts.make([(130, 150), (33, 300), (1, 20), (0, 20)], heads, kv_heads, 128, block_size=block_size)
    alone, _ = emulated.attend(prompts, 0.125, pairs=False)
    close(alone, prompts)
    for blocks, seed in ((2, 2), (5, 3)):
        assert torch.equal(emulated.attend(prompts, 0.125, pairs=True, blocks=blocks, seed=seed)[0], alone)


@pytest.mark.parametrize("seed", range(3))
def test_pairs_in_any_order_of_events(emulated: EmulatedPrompts, seed: int) -> None:
    prompts = Prompts.make([(64, 600), (30, 30)], 4, 1, 128, dtype=torch.float16)
    rows, _ = emulated.attend(prompts, 0.125, pairs=True, blocks=2, seed=100 + seed)
    close(rows, prompts)


def test_a_plan_lists_neighbours_side_by_side(emulated: EmulatedPrompts) -> None:
    """Each tile once, and one without rows where their number is odd; without pairs none."""
    prompts = Prompts.make([(90, 90), (40, 40), (33, 200)], 8, 2, 128)
    _, alone = emulated.attend(prompts, 0.125, pairs=False)
    _, listed = emulated.attend(prompts, 0.125, pairs=True)
    assert sorted(alone) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert sorted(listed) == sorted([*alone, (0, 3)])
    pairs = list(zip(listed[::2], listed[1::2], strict=True))
    assert all(first[1] % 2 == 0 and second == (first[0], first[1] + 1) for first, second in pairs)
