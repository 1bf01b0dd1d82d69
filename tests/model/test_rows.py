"""The rows of a step that are computed to the end."""

from __future__ import annotations

import torch

from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.files import model_folder
from octavo_worker.model import load_runner
from octavo_worker.model.batch import ragged_batch


def test_there_may_be_more_rows_than_tokens() -> None:
    runner = load_runner(ModelOptions(model=str(model_folder("demo")), device="cpu", num_blocks=40))
    batch = ragged_batch([SequenceStep([5, 9, 30], 0, [4])], runner.block_size, runner.vocab_size)
    rows = [2, 0, 2, 2, 1, 2]
    with torch.inference_mode():
        every = runner.model.forward(batch, None).clone()
        some = runner.model.forward(batch, torch.tensor(rows))
    assert torch.equal(some, every[rows])
