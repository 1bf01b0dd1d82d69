"""Sequences larger than the device's pool: their oldest blocks lie on the host, and no token changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner, SequenceStep
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.batch import Batch, ragged_batch
from octavo_worker.model.stage import Stage

from .conftest import Pair
from .drive import Answers, Engine, request
from .test_sliding import prompt
from .zoo import VOCAB

BLOCKS = 5  # 80 tokens; the prompts are of 250 to 300


@pytest.fixture(scope="session")
def in_bfloat16(cpu_pair: Callable[[str], Pair]) -> Callable[[str], ModelRunner]:
    @cache
    def load(name: str) -> ModelRunner:
        folder: Path = cpu_pair(name).folder
        return load_runner(
            ModelOptions(
                model=str(folder), device="cpu", dtype="bfloat16", num_blocks=129, host_cache_bytes=4 << 20, threads=1
            )
        )

    return load


def long_one(name: str = "long", **options: Any) -> AddRequest:
    return request(name, prompt(280, 3), **{"max_tokens": 60, **options})


def small_device(runner: ModelRunner, blocks: int = BLOCKS, hosts: int = 40, **options: Any) -> Engine:
    return Engine(runner, num_blocks=blocks + 1, num_host_blocks=hosts + 1, token_budget=70, **options)


def roomy(runner: ModelRunner, requests: list[AddRequest]) -> Answers:
    answers = Engine(runner).run(requests)
    assert answers.cold_steps == answers.stats.preemptions == 0
    return answers


SAMPLINGS = pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 4}], ids=["greedy", "seeded"]
)


@pytest.mark.full(but="every value")
@SAMPLINGS
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_a_prompt_of_several_pools_gives_the_tokens_of_a_large_pool(
    name: str, sampling: dict[str, Any], host_reading_pair: Callable[[str], Pair]
) -> None:
    expected = roomy(host_reading_pair(name).runner, [long_one(**sampling)])
    tight = small_device(host_reading_pair(name).runner).run([long_one(**sampling)])
    assert tight.tokens == expected.tokens
    assert tight.cold_steps > 60
    assert tight.most_blocks <= BLOCKS


@pytest.mark.full(but="every value")
@SAMPLINGS
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_on_the_cpu_it_gives_the_same_bits(
    name: str, sampling: dict[str, Any], in_bfloat16: Callable[[str], ModelRunner]
) -> None:
    expected = roomy(in_bfloat16(name), [long_one(**sampling, logprobs=2)])
    tight = small_device(in_bfloat16(name)).run([long_one(**sampling, logprobs=2)])
    assert tight.tokens == expected.tokens
    assert tight.logprobs == expected.logprobs
    assert tight.cold_steps > 60


def test_a_sequence_grows_out_of_the_pool(in_bfloat16: Callable[[str], ModelRunner]) -> None:
    grows = request("a", prompt(20), max_tokens=300)
    expected = roomy(in_bfloat16("llama"), [grows])
    tight = small_device(in_bfloat16("llama")).run([grows])
    assert tight.tokens == expected.tokens
    assert tight.cold_steps > 200


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_others_run_beside_it(mode: str, host_reading_pair: Callable[[str], Pair]) -> None:
    others = [request(str(i), prompt(10 + 3 * i, i), max_tokens=30, temperature=0.8, seed=i) for i in range(8)]
    requests = [*others[:3], long_one(), *others[3:], long_one("second", n=3, temperature=1.0)]
    runner = host_reading_pair("llama").runner
    expected = roomy(runner, requests)
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    tight = small_device(runner, 12, 90, policy=policy).run(requests)
    assert tight.tokens == expected.tokens
    assert tight.cold_steps > 100
    assert tight.stats.preemptions > 0


def test_takeover_of_a_long_sequence(in_bfloat16: Callable[[str], ModelRunner]) -> None:
    runner = in_bfloat16("llama")
    whole = roomy(runner, [long_one()]).tokens["long"]
    resumed = long_one(resumed={0: whole[0][:37]})
    assert small_device(runner).run([resumed]).tokens["long"] == whole


def test_prompt_logprobs_of_a_long_prompt(cpu_pair: Callable[[str], Pair]) -> None:
    runner = cpu_pair("llama").runner
    expected = roomy(runner, [long_one(prompt_logprobs=1)])
    tight = small_device(runner).run([long_one(prompt_logprobs=1)])
    assert tight.prompt_logprobs == expected.prompt_logprobs


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox"])
def test_models_read_what_was_gathered_as_they_read_the_cache(name: str, pair: Callable[[str], Pair]) -> None:
    """CUDA does so with a prompt's chunk; both routes do it anywhere."""
    runner = pair(name).runner
    steps = [SequenceStep(prompt(100), 0, list(range(1, 8))), SequenceStep(prompt(37, 2), 0, [9, 12, 11])]
    features = []
    for staged in (False, True):
        batch = on(runner.model.device, ragged_batch(steps, 16, VOCAB))
        if staged:
            batch.stage = Stage.of(batch.block_tables, np.array([100, 37]), 16)
        with torch.inference_mode():
            features.append(runner.model.forward(batch, None).clone())
    assert torch.equal(*features)


def on(device: torch.device, batch: Batch) -> Batch:
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return Batch(**{name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in tensors.items()})
