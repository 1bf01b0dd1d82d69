"""Sampled tokens depend on seed, sequence and position alone; penalties and log-probabilities are transformers'."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from octavo_worker.contract.messages import AddRequest

from .conftest import Pair
from .drive import Engine, request
from .zoo import VOCAB

ROUTES = ["llama", "gemma2", "gpt_neox"]
CLOSE = 3e-4  # of log-probabilities in float32: either side is up to 1e-4 away from float64
WAYS = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.8, "repetition_penalty": 1.2},
    {"temperature": 1.5, "min_p": 0.05, "presence_penalty": 0.6, "frequency_penalty": 0.4},
]


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def seeded(i: int, **more: object) -> AddRequest:
    return request(str(i), prompt(14 + i, i), **{**WAYS[i % len(WAYS)], "seed": 1000 + i, **more})


def alone(pair: Pair, i: int) -> list[int]:
    return Engine(pair.runner).run([seeded(i)]).tokens[str(i)][0]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ROUTES)
def test_the_batch_does_not_change_samples(name: str, pair: Callable[[str], Pair]) -> None:
    together = Engine(pair(name).runner).run([seeded(i) for i in range(12)])
    assert [together.tokens[str(i)][0] for i in range(12)] == [alone(pair(name), i) for i in range(12)]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_large_batch_changes_no_bit_of_logprobs(name: str, cpu_pair: Callable[[str], Pair]) -> None:
    """48 others of many lengths beside it, five times in other places; another engine's differed from 44 on.
    Where all products are our kernels: the transformers route and GPUs multiply with torch, and promise tokens only."""
    runner = cpu_pair(name).runner
    chosen = request("x", prompt(40, 99), max_tokens=12, temperature=0.8, seed=5, logprobs=3, prompt_logprobs=2)
    expected = Engine(runner).run([chosen])
    for repeat in range(5):
        others = [request(str(i), prompt(1 + (7 * i + repeat) % 50, i), max_tokens=12, seed=i) for i in range(48)]
        others.insert(11 * repeat, chosen)
        together = Engine(runner).run(others)
        assert together.tokens["x"] == expected.tokens["x"]
        assert together.logprobs["x"] == expected.logprobs["x"]
        assert together.prompt_logprobs["x"] == expected.prompt_logprobs["x"]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ROUTES)
def test_preemption_does_not_change_samples(name: str, pair: Callable[[str], Pair]) -> None:
    crowded = Engine(pair(name).runner, num_blocks=20).run([seeded(i) for i in range(12)])
    assert crowded.stats.preemptions > 0
    assert [crowded.tokens[str(i)][0] for i in range(12)] == [alone(pair(name), i) for i in range(12)]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ROUTES)
def test_takeover_continues_at_the_next_token(name: str, pair: Callable[[str], Pair]) -> None:
    for i in range(4):
        whole = alone(pair(name), i)
        for published in (1, 7, 23):
            taken_over = Engine(pair(name).runner).run([seeded(i, resumed={0: whole[:published]})])
            assert taken_over.tokens[str(i)][0] == whole


def test_parallel_sequences_differ_and_each_can_be_resumed_alone(pair: Callable[[str], Pair]) -> None:
    whole = Engine(pair("llama").runner).run([seeded(0, n=5)]).tokens["0"]
    assert len({tuple(tokens) for tokens in whole.values()}) == 5
    resumed = Engine(pair("llama").runner).run([seeded(0, n=5, resumed={i: whole[i][: 2 * i] for i in whole})])
    assert resumed.tokens["0"] == whole


def test_another_seed_gives_other_tokens(pair: Callable[[str], Pair]) -> None:
    answers = Engine(pair("llama").runner).run([request(str(s), prompt(20), seed=s, temperature=1.0) for s in (1, 2)])
    assert answers.tokens["1"] != answers.tokens["2"]


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "gpt2", "mixtral"])
def test_logprobs_are_transformers(name: str, pair: Callable[[str], Pair]) -> None:
    """Raw ones: neither temperature nor penalties nor filters show in them."""
    ids = prompt(33)
    answers = Engine(pair(name).runner).run(
        [request("a", ids, temperature=1.4, top_k=50, repetition_penalty=1.5, seed=3, logprobs=5)]
    )
    tokens, logprobs = answers.tokens["a"][0], answers.logprobs["a"][0]
    with torch.inference_mode():
        expected = pair(name).oracle(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    assert len(logprobs) == len(tokens) == 24
    for row, token, logprob in zip(expected, tokens, logprobs, strict=True):
        assert logprob.logprob == pytest.approx(row[token].item(), abs=CLOSE)
        assert [value for _, value in logprob.top] == pytest.approx(row.topk(5).values.tolist(), abs=CLOSE)
        assert [row[id].item() for id, _ in logprob.top] == pytest.approx(row.topk(5).values.tolist(), abs=CLOSE)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("budget", [512, 100], ids=["whole", "chunked"])
def test_prompt_logprobs_are_transformers(name: str, budget: int, pair: Callable[[str], Pair]) -> None:
    ids = prompt(257)
    neighbour = request("b", prompt(40, 1), prompt_logprobs=0)
    answers = Engine(pair(name).runner, token_budget=budget).run([request("a", ids, prompt_logprobs=3), neighbour])
    scored = answers.prompt_logprobs["a"]
    with torch.inference_mode():
        expected = pair(name).oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert scored is not None
    assert scored[0] is None
    assert len(scored) == len(ids)
    for i in range(1, len(ids)):
        score = scored[i]
        assert score is not None
        assert score.logprob == pytest.approx(expected[i - 1, ids[i]].item(), abs=CLOSE)
        assert [value for _, value in score.top] == pytest.approx(expected[i - 1].topk(3).values.tolist(), abs=CLOSE)
    assert len(answers.prompt_logprobs["b"] or []) == 40


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_transformers(penalty: float, pair: Callable[[str], Pair]) -> None:
    ids = torch.tensor([prompt(31)])
    expected = pair("llama").oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=24,
        do_sample=False,
        repetition_penalty=penalty,
        pad_token_id=0,
    )[0, 31:]
    plain, penalised = Engine(pair("llama").runner), Engine(pair("llama").runner)
    answer = penalised.run([request("a", ids[0].tolist(), repetition_penalty=penalty)]).tokens["a"][0]
    assert answer == expected.tolist()
    assert answer != plain.run([request("a", ids[0].tolist())]).tokens["a"][0]
