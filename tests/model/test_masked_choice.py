"""Masked samples of a GPU's step, with tensors of the CPU: those that ask for a mask alone get the token that the
general way gives them, whatever their neighbours ask for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_kernels.step import StepInputs, unpack_step
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import Masks, SampleSpec, SequenceStep, StepPlan
from octavo_worker.runner.cuda.launched import LaunchedStep
from octavo_worker.runner.cuda.mailbox import Slot
from octavo_worker.runner.cuda.packer import Packer
from octavo_worker.runner.cuda.sampling import StepSampler
from octavo_worker.runner.cuda.shapes import DecodeShape, StepSizes
from octavo_worker.runner.sampler import WholeRows, sample

ROWS, BLOCKS, BLOCK, VOCAB = 8, 4, 16, 203
WORDS = -(-VOCAB // 32)


class Stream:
    """Everything happens at once."""

    def wait_stream(self, other: Stream) -> None: ...


class Padded:
    def of(self, step: StepSizes) -> DecodeShape:
        return DecodeShape(ROWS, False)


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "Stream": lambda device: Stream(),
        "stream": lambda stream: nullcontext(),
        "current_stream": Stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


def spec(kind: str, seed: int, temperature: float, top_k: int) -> SampleSpec:
    asked: dict[str, dict[str, Any]] = {"penalised": {"presence_penalty": 0.7}, "scored": {"logprobs": 2}}
    params = EngineSampling(
        seed=seed, max_tokens=9, temperature=temperature, top_k=top_k, min_tokens=2, **asked.get(kind, {})
    )
    return SampleSpec(params, 0, [1, 2, 3], [4, 5], masked=kind != "free", forbidden=(7,) * (kind == "free"))


SPECS = st.builds(
    spec,
    st.sampled_from(["masked", "masked", "penalised", "scored", "free"]),
    st.integers(0, 2**62),
    st.sampled_from([0.0, 0.8, 1.0]),
    st.sampled_from([0, 0, 3]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(SPECS, st.booleans()), min_size=1, max_size=ROWS),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 2**31),
)
def test_tokens_are_those_of_the_general_way(
    drawn: list[tuple[SampleSpec, bool]], dtype: torch.dtype, seed: int
) -> None:
    """Some sequences have ended: they have no mask."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCAB, generator=generator).to(dtype)
    words = torch.randint(-(2**31), 2**31, (ROWS, WORDS), generator=generator, dtype=torch.int64).to(torch.int32)
    steps = [SequenceStep([6], 5, [place], [each], run_id=place + 1) for place, (each, _) in enumerate(drawn)]
    message = np.zeros(Packer.capacity(ROWS, ROWS, ROWS, BLOCKS), np.int32)
    packer = Packer(rows=ROWS, block_size=BLOCK, vocab_size=VOCAB, shapes=Padded())
    packed = packer.pack(StepPlan(steps, len(steps)), message)
    masked = [place for place, (each, has_ended) in enumerate(drawn) if each.masked and not has_ended]
    wanted = {
        place: sample(logits[place : place + 1].clone(), [steps[place].sample_row(0)], None, words[place : place + 1])
        for place in masked
    }

    inputs = StepInputs.allocate(ROWS, ROWS, BLOCKS, torch.device("cpu"))
    unpack_step(
        torch.from_numpy(message), torch.zeros(ROWS, BLOCKS, dtype=torch.int32), torch.zeros(ROWS), inputs, ROWS, BLOCK
    )
    sampler = StepSampler(WholeRows(VOCAB), inputs, reads=True, guesses=3)
    sampler.tokens.fill_(-2)
    slot = Slot(torch.from_numpy(message), message, sampler.tokens, *[None] * 4)  # type: ignore[arg-type]
    step = LaunchedStep(packed, [], slot)
    if masked:
        sampler.choose_masked(logits, step, Masks(masked, words[masked].numpy()))
    chosen = {place: token for place, token in enumerate(sampler.tokens.tolist()) if token != -2}
    assert chosen == {place: choice.tokens.item() for place, choice in wanted.items()}
    assert set(packed.masked) == {place for place, (each, _) in enumerate(drawn) if each.masked} - {
        row.place for row in packed.special
    }
    for special in step.special:
        for row, answer in zip(special.rows, special.choice.result(), strict=True):
            assert answer.token == chosen[row.place]
