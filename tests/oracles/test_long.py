"""Sequences larger than the device's pool: their oldest blocks lie on the host, and no token changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo_worker.engine.options import ModelOptions
from octavo_worker.engine.plan import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.messages import AddRequest
from octavo_worker.model import load_runner

from .conftest import Pair
from .drive import Answers, Engine, request
from .test_sliding import prompt

BLOCKS = 5  # 80 tokens; the prompts are of 250 to 300


@pytest.fixture(scope="session")
def runner(pair: Callable[[str], Pair]) -> Callable[[str, str], ModelRunner]:
    @cache
    def load(name: str, dtype: str) -> ModelRunner:
        if dtype == "float32":
            return pair(name).runner
        folder: Path = pair(name).folder
        options = ModelOptions(model=str(folder), dtype=dtype, num_blocks=129, host_cache_bytes=4 << 20, threads=1)  # type: ignore[arg-type]
        return load_runner(options)

    return load


def long_one(name: str = "long", **options: Any) -> AddRequest:
    return request(name, prompt(280, 3), **{"max_tokens": 60, **options})


def small_device(runner: ModelRunner, blocks: int = BLOCKS, hosts: int = 40, **options: Any) -> Engine:
    return Engine(runner, num_blocks=blocks + 1, num_host_blocks=hosts + 1, token_budget=70, **options)


def roomy(runner: ModelRunner, requests: list[AddRequest]) -> Answers:
    answers = Engine(runner).run(requests)
    assert answers.cold_steps == answers.stats.preemptions == 0
    return answers


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 4}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_a_prompt_of_several_pools_gives_the_tokens_of_a_large_pool(
    name: str, dtype: str, sampling: dict[str, Any], runner: Callable[[str, str], ModelRunner]
) -> None:
    expected = roomy(runner(name, dtype), [long_one(**sampling, logprobs=2)])
    tight = small_device(runner(name, dtype)).run([long_one(**sampling, logprobs=2)])
    assert tight.tokens == expected.tokens
    assert tight.logprobs == expected.logprobs, "not the same bits"
    assert tight.cold_steps > 60
    assert tight.most_blocks <= BLOCKS


def test_a_sequence_grows_out_of_the_pool(runner: Callable[[str, str], ModelRunner]) -> None:
    grows = request("a", prompt(20), max_tokens=300)
    expected = roomy(runner("llama", "bfloat16"), [grows])
    tight = small_device(runner("llama", "bfloat16")).run([grows])
    assert tight.tokens == expected.tokens
    assert tight.cold_steps > 200


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_others_run_beside_it(mode: str, runner: Callable[[str, str], ModelRunner]) -> None:
    others = [request(str(i), prompt(10 + 3 * i, i), max_tokens=30, temperature=0.8, seed=i) for i in range(8)]
    requests = [*others[:3], long_one(), *others[3:], long_one("second", n=3, temperature=1.0)]
    expected = roomy(runner("llama", "float32"), requests)
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    tight = small_device(runner("llama", "float32"), 12, 90, policy=policy).run(requests)
    assert tight.tokens == expected.tokens
    assert tight.cold_steps > 100
    assert tight.stats.preemptions > 0


def test_takeover_of_a_long_sequence(runner: Callable[[str, str], ModelRunner]) -> None:
    whole = roomy(runner("llama", "bfloat16"), [long_one()]).tokens["long"]
    resumed = long_one(resumed={0: whole[0][:37]})
    assert small_device(runner("llama", "bfloat16")).run([resumed]).tokens["long"] == whole


def test_prompt_logprobs_of_a_long_prompt(runner: Callable[[str, str], ModelRunner]) -> None:
    expected = roomy(runner("llama", "float32"), [long_one(prompt_logprobs=1)])
    tight = small_device(runner("llama", "float32")).run([long_one(prompt_logprobs=1)])
    assert tight.prompt_logprobs == expected.prompt_logprobs
