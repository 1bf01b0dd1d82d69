"""Blocks brought side by side are read as those at their places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpus import devices

from octavo_kernels import ops
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.stage import Stage

DEVICES = devices()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_attention_over_a_stage_is_that_over_the_cache(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(2)
    block_size, contexts, queries = 16, np.array([50, 1, 200]), [3, 1, 120]
    data = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.bfloat16
    cache = ops.empty_cache(60, 3, 2, block_size, 40, dtype, device)
    tables = torch.full((3, 16), -1, dtype=torch.int32)
    order = torch.randperm(59).int() + 1
    for row, blocks in zip(tables, order.split([4, 1, 13, 41]), strict=False):
        row[: len(blocks)] = blocks
    tables = tables.to(device)
    for row, length in zip(tables, contexts, strict=True):
        position = torch.arange(int(length), device=device)
        k, v = torch.randn(2, int(length), 2, 40, device=device).to(data)
        ops.write_kv(k, v, cache[:, 1], row[position // block_size].long() * block_size + position % block_size)
    lengths = torch.tensor(contexts, dtype=torch.int32, device=device)
    starts = torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32, device=device)
    q = torch.randn(sum(queries), 4, 40, device=device).to(data)

    stage = Stage.of(tables, contexts, block_size)
    staged = stage.gather(cache[:, 1])
    assert len(staged) == 4 + 1 + 13
    there = ops.paged_attention(q, cache[:, 1], tables, lengths, starts, torch.empty_like(q), 0.2, block_size)
    here = ops.paged_attention(q, staged, stage.tables, lengths, starts, torch.empty_like(q), 0.2, block_size)
    assert torch.equal(there, here)


def test_a_step_over_a_stage_is_that_over_the_cache() -> None:
    runner = load_runner(ModelOptions(model=str(model_folder("demo")), device="cpu", num_blocks=40))
    tokens = torch.randint(runner.vocab_size, (100,), generator=torch.Generator().manual_seed(3)).tolist()
    tables = [[7, 3, 9, 12, 30], [5, 21]]
    steps = [SequenceStep(tokens[:70], 0, tables[0]), SequenceStep(tokens[70:], 0, tables[1])]
    model = runner.model
    with torch.inference_mode():
        model.forward(ragged_batch(steps, runner.block_size, runner.vocab_size), None)
        later = [SequenceStep([11, 12, 13], 70, tables[0]), SequenceStep([14], 30, tables[1])]
        batch = ragged_batch(later, runner.block_size, runner.vocab_size)
        there = model.forward(batch, None).clone()
        batch.stage = Stage.of(batch.block_tables, np.array([73, 31]), runner.block_size)
        here = model.forward(batch, None)
    assert torch.equal(there, here)


def test_more_than_there_is_room_for_does_not_fit() -> None:
    assert Stage.fits(np.array([16 * 4000, 16 * 96]), 16, 128 << 10)
    assert not Stage.fits(np.array([16 * 4000, 16 * 97]), 16, 128 << 10)
