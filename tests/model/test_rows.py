"""The rows of a step that are computed to the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo_kernels import ops
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch


def test_there_may_be_more_rows_than_tokens() -> None:
    runner = load_runner(ModelOptions(model=str(model_folder("demo")), device="cpu", num_blocks=40))
    batch = ragged_batch([SequenceStep([5, 9, 30], 0, [4])], runner.block_size, runner.vocab_size)
    rows = [2, 0, 2, 2, 1, 2]
    with torch.inference_mode():
        every = runner.model.forward(batch, None).clone()
        some = runner.model.forward(batch, torch.tensor(rows))
    assert torch.equal(some, every[rows])


@pytest.mark.parametrize("chosen", [[1], None])
def test_a_shortened_model_makes_every_product_of_a_step(
    chosen: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of as many rows: the last block has fewer of them than the others, and what is not tried before a graph
    is captured may be impossible in it, such as making a library's handle."""
    made = set[tuple[object, ...]]()
    for name in ("linear", "gated_linear"):
        product = getattr(ops, name)

        def noted(p: ops.Product[Any], *rest: Any, _made: Any = product, _name: str = name) -> Any:
            made.add((_name, *p.x.shape, *p.weight.shape))
            return _made(p, *rest)

        monkeypatch.setattr(ops, name, noted)
    runner = load_runner(ModelOptions(model=str(model_folder("demo")), device="cpu", num_blocks=40))
    batch = ragged_batch([SequenceStep([5, 9, 30], 0, [4])], runner.block_size, runner.vocab_size)
    rows = None if chosen is None else torch.tensor(chosen)
    with torch.inference_mode():
        runner.model.forward(batch, rows)
        whole = set(made)
        made.clear()
        with runner.model.shortened():
            runner.model.forward(batch, rows)
    assert made == whole
    assert {rows for _, rows, *_ in made} == ({3} if chosen is None else {1, 3})
