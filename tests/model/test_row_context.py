"""The context of rows reaches every product that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from rank_threads import logits_alone, logits_on_ranks
from torch import Tensor

from octavo_kernels.ops import Gate
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep, StepPlan
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.layers.summed import Summed
from octavo_worker.runner.paged import PagedRunner
from octavo_worker.runner.parallel.steps import decode, encode_plan

PROMPTS = [[5, 9, 30, 7], [11, 3], [40, 41, 42]]


@dataclass(frozen=True, eq=False)
class Shifted(Linear):
    """A Linear whose outputs are moved by each row's context, `scale` times."""

    inner: Linear
    scale: float = 1e-3

    @property
    def reads_context(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        assert x.context is not None
        assert len(x.context) == len(x.rows)
        made = self.inner.apply(x, out, residual)
        return made.add_(x.context[:, None] * self.scale)

    def gated(self, x: Input, kind: Gate, out: Tensor, scratch: Tensor) -> Tensor:
        return Linear.gated(self, x, kind, out, scratch)


def shifted(decoder: Decoder, names: Sequence[str]) -> Decoder:
    """The decoder with these products of all blocks moved."""
    for number, block in enumerate(decoder.layers.blocks):
        attention, mlp = block.attention, block.mlp
        if "qkv" in names:
            attention.qkv = Shifted(attention.qkv)
        if "out" in names:
            attention.out = _inside(attention.out)
        if "up" in names:
            mlp = replace(mlp, up=Shifted(mlp.up))
        if "down" in names:
            mlp = replace(mlp, down=_inside(mlp.down))
        decoder.layers.blocks[number] = replace(block, mlp=mlp)
    decoder.reads_context = any(linear.reads_context for linear in decoder.layers.linears)
    return decoder


def _inside(linear: Linear) -> Linear:
    """On several ranks the part of each is moved by its share, so that the sum is."""
    if not isinstance(linear, Summed):
        return Shifted(linear)
    return replace(linear, part=Shifted(linear.part, 1e-3 / linear.group.rank.count))


def options(**more: object) -> ModelOptions:
    return ModelOptions(model=str(model_folder("demo")), device="cpu", dtype="float32", num_blocks=40, **more)


def demo(names: Sequence[str]) -> PagedRunner:
    model, context = load_model(options())
    assert isinstance(model, Decoder)
    return PagedRunner(shifted(model, names), CacheConfig(40, 16), min(context, 256))


def steps(contexts: Sequence[int]) -> list[SequenceStep]:
    return [
        SequenceStep(tokens, 0, [place + 1], row_context=context)
        for place, (tokens, context) in enumerate(zip(PROMPTS, contexts, strict=True))
    ]


def hidden(runner: PagedRunner, asked: list[SequenceStep], rows: Tensor | None = None) -> Tensor:
    batch = ragged_batch(asked, runner.block_size, runner.vocab_size)
    with torch.inference_mode():
        return runner.model.forward(batch, rows).clone()


@pytest.mark.parametrize("names", [["qkv"], ["out"], ["up"], ["down"], ["qkv", "out", "up", "down"]])
def test_rows_of_one_step_have_contexts_of_their_own(names: list[str]) -> None:
    runner = demo(names)
    together = hidden(runner, steps([0, 3, 7]))
    for place, context in enumerate([0, 3, 7]):
        alone = hidden(runner, [steps([context] * 3)[place]])
        start = sum(map(len, PROMPTS[:place]))
        assert torch.equal(together[start : start + len(PROMPTS[place])], alone)
    plain = hidden(demo([]), steps([0, 3, 7]))
    assert torch.equal(together[:4], plain[:4]), "a context of zero changes nothing here"
    assert not torch.allclose(together[4:], plain[4:], atol=1e-4)


def test_rows_that_are_selected_keep_their_context() -> None:
    runner = demo(["out", "up", "down"])
    rows = torch.tensor([8, 3, 5, 5])
    assert torch.equal(hidden(runner, steps([0, 3, 7]), rows), hidden(runner, steps([0, 3, 7]))[rows])


def test_a_model_that_reads_none_is_given_none() -> None:
    runner = demo([])
    assert isinstance(runner.model, Decoder)
    assert not runner.model.reads_context


@pytest.mark.parametrize("names", [["qkv", "up"], ["out", "down"]])
def test_parts_of_a_product_on_ranks_read_them_too(names: list[str]) -> None:
    def change(model: CausalModel) -> None:
        assert isinstance(model, Decoder)
        shifted(model, names)

    alone = logits_alone(options(), steps([0, 3, 7]), change)
    for logits in logits_on_ranks(options(tensor_parallel=2), 2, steps([0, 3, 7]), change):
        torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


def test_contexts_travel_to_other_ranks() -> None:
    plan = StepPlan(steps([0, 3, 7]), 0)
    sent = decode(encode_plan(plan, 16))
    assert isinstance(sent, StepPlan)
    assert [step.row_context for step in sent.sequences] == [0, 3, 7]
