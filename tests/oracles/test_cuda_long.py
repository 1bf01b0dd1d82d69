"""Sequences larger than a GPU's pool: attention reads their oldest blocks on the host, and no bit changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from growth import Holdings
from transformers import AutoModelForCausalLM

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.memory.cost import PreemptionPolicy

from .drive import Engine, request
from .test_cuda import CONFIGS, options
from .test_sliding import prompt

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

BLOCKS = 8  # 128 tokens; the prompts are of 280


class Runners:
    """One for each choice of options, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._load = cache(lambda more: load_runner(options(self._folder, max_running=16, **dict(more))))

    def __call__(self, **more: Any) -> ModelRunner:
        runner = self._load(tuple(more.items()))
        assert runner.reads_host
        return runner


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runners:
    """Qwen3's shape: head dims of 64, which all kinds of caches have kernels for."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("qwen3")
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"], dtype=torch.bfloat16, trust_remote_code=False)
    model.save_pretrained(folder)
    return Runners(folder)


def long_one(name: str = "long", **sampling: Any) -> AddRequest:
    return request(name, prompt(280, 3), **{"max_tokens": 60, "logprobs": 2, **sampling})


def small_device(runner: ModelRunner, blocks: int = BLOCKS, hosts: int = 60, **more: Any) -> Engine:
    return Engine(runner, num_blocks=blocks + 1, num_host_blocks=hosts + 1, **{"token_budget": 70, **more})


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 4}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("more", [{}, {"kv_dtype": "int8"}, {"cuda_graphs": False}], ids=str)
def test_a_prompt_of_several_pools_has_the_bits_of_a_large_pool(
    more: dict[str, Any], sampling: dict[str, Any], runner: Runners
) -> None:
    """Deterministic, because its prompt comes in other chunks."""
    exact = runner(deterministic=True, **more)
    expected = Engine(exact).run([long_one(**sampling)])
    tight = small_device(exact).run([long_one(**sampling)])
    assert tight.tokens == expected.tokens
    assert tight.logprobs == expected.logprobs
    assert expected.cold_steps == 0
    assert tight.cold_steps > 60
    assert tight.most_blocks <= BLOCKS


@pytest.mark.parametrize(
    "more", [{}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8"}, {"cuda_graphs": False}, {"dtype": "float16"}], ids=str
)
def test_a_sequence_that_grows_out_of_the_pool_keeps_its_bits(more: dict[str, Any], runner: Runners) -> None:
    grows = request("a", prompt(20), max_tokens=600, logprobs=0)
    expected = Engine(runner(**more)).run([grows])
    tight = small_device(runner(**more)).run([grows])
    assert tight.logprobs == expected.logprobs
    assert tight.cold_steps > 400


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_others_run_beside_it(mode: str, runner: Runners) -> None:
    exact = runner(deterministic=True)
    others = [request(str(i), prompt(10 + 3 * i, i), max_tokens=30, temperature=0.8, seed=i) for i in range(8)]
    requests = [*others[:3], long_one(), *others[3:], long_one("second", n=3, temperature=1.0)]
    expected = Engine(exact).run(requests)
    tight = small_device(exact, 14, 120, policy=PreemptionPolicy(mode)).run(requests)  # type: ignore[arg-type]
    assert tight.tokens == expected.tokens
    assert tight.cold_steps > 100
    assert tight.stats.preemptions > 0


def test_samples_read_what_they_share_on_the_host_once(runner: Runners) -> None:
    several = request("a", prompt(1500, 2), n=3, temperature=1.0, max_tokens=100, logprobs=0)
    together = small_device(runner(), 40, 110)
    alone = small_device(runner(), 40, 110, shared_reading=None)
    one, other = together.run([several]), alone.run([several])
    assert one.logprobs == other.logprobs
    assert one.cold_steps > 90


def test_takeover_of_a_long_sequence(runner: Runners) -> None:
    exact = runner(deterministic=True)
    whole = Engine(exact).run([long_one()]).tokens["long"]
    resumed = long_one(resumed={0: whole[0][:37]})
    assert small_device(exact).run([resumed]).tokens["long"] == whole


@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_an_end_in_its_middle_frees_both_sides_and_harms_nobody(end: str, runner: Runners) -> None:
    now = 100.0
    engine = small_device(runner(deterministic=True), clock=lambda: now)
    scheduler, pipeline = engine.scheduler, Pipeline(engine, engine.scheduler)  # type: ignore[arg-type]
    scheduler.add(msgspec.structs.replace(long_one(), deadline=200.0))
    others = [request(str(i), prompt(30 + i, i), max_tokens=40) for i in range(3)]
    tokens = 0
    while tokens < 5:
        pipeline.advance()
        tokens += len(scheduler.take_output().tokens)
    assert scheduler.stats().cold_blocks > 5
    if end == "abort":
        scheduler.abort("long")
    now = 201.0
    answers = engine_run(engine, pipeline, others)
    assert answers == {name: of[0] for name, of in Engine(runner(deterministic=True)).run(others).tokens.items()}
    host = scheduler.kv.host
    assert host is not None
    assert scheduler.pool.used == host.pool.used == 0


def engine_run(engine: Engine, pipeline: Pipeline, requests: list[AddRequest]) -> dict[str, list[int]]:
    """Goes on with what is under way; the tokens of `requests`."""
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    for one in requests:
        engine.scheduler.add(one)
    busy = True
    while busy:
        busy = pipeline.advance()
        for token in engine.scheduler.take_output().tokens:
            if token.id in answers:
                answers[token.id].append(token.token)
    engine.scheduler.check_integrity()
    return answers


def test_nothing_grows(runner: Runners) -> None:
    engine = small_device(runner(), policy=PreemptionPolicy("swap"))
    for round in range(6):
        if round == 2:
            before = Holdings.now(cuda=True)
        engine.run([long_one(str(i)) for i in range(3)] + [request(f"s{i}", prompt(20, i)) for i in range(20)])
    Holdings.now(cuda=True).assert_no_more_than(before)
