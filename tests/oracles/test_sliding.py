"""Models whose every layer slides: blocks leave with the window, and no token changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from octavo_worker.contract.messages import AddRequest
from octavo_worker.memory.cost import PreemptionPolicy

from .conftest import Pair
from .drive import Answers, Engine, request
from .zoo import VOCAB

SLIDING = {"mistral": 24, "phi3": 60, "mixtral-sliding": 24}  # on a GPU the last one takes the transformers route
BUDGET = 80  # tokens a step: prompts are cut into chunks


def prompt(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def seeded() -> list[AddRequest]:
    """Ten prompts, long ones and short ones that grow, half of them greedy, one with four samples."""
    requests = []
    for i in range(10):
        sampling = {"temperature": 0.9, "seed": i} if i % 2 else {}
        tokens = prompt(160 if i == 4 else 5 + i, i)
        requests.append(request(str(i), tokens, n=4 if i == 3 else 1, max_tokens=90 + i, **sampling))
    return requests


def roomy(pair: Pair, requests: list[AddRequest]) -> Answers:
    """All blocks of all tokens are there, nothing slides."""
    answers = Engine(pair.runner, window=0, reads_host=False).run(requests)
    assert answers.stats.preemptions == 0
    return answers


@pytest.mark.parametrize("name", SLIDING)
def test_tokens_are_those_of_transformers_in_the_memory_of_a_window(name: str, pair: Callable[[str], Pair]) -> None:
    tokens = prompt(200)
    blocks = -(-(SLIDING[name] + BUDGET) // 16) + 1
    assert blocks * 16 < len(tokens)
    answers = Engine(pair(name).runner, num_blocks=blocks + 1, token_budget=BUDGET).run(
        [request("a", tokens, max_tokens=150)]
    )
    output = answers.tokens["a"][0]
    with torch.inference_mode():
        logits = pair(name).oracle(torch.tensor([tokens + output])).logits[0, len(tokens) - 1 : -1]
    assert output == logits.argmax(-1).tolist()
    assert len(set(output)) > 10, "degenerate model: proves nothing"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", SLIDING)
def test_a_sequence_holds_a_window_and_a_chunk_and_later_a_window(name: str, pair: Callable[[str], Pair]) -> None:
    prefill = Engine(pair(name).runner, token_budget=BUDGET).run([request("a", prompt(300), max_tokens=1)])
    assert prefill.most_blocks <= -(-(SLIDING[name] + BUDGET - 2) // 16) + 1 < 300 // 16
    decode = Engine(pair(name).runner, token_budget=BUDGET).run([request("a", prompt(5), max_tokens=300)])
    assert decode.most_blocks <= -(-(SLIDING[name] - 1) // 16) + 1


@pytest.mark.full(but=1)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", SLIDING)
def test_preemption_of_sliding_sequences(name: str, mode: str, pair: Callable[[str], Pair]) -> None:
    expected = roomy(pair(name), seeded())
    tight = Engine(
        pair(name).runner,
        num_blocks=16,
        num_host_blocks=40,
        token_budget=BUDGET,
        policy=PreemptionPolicy(mode),  # type: ignore[arg-type]
    ).run(seeded())
    assert tight.tokens == expected.tokens
    assert tight.stats.preemptions > 3
    assert (tight.stats.swapped_out > 0) == (mode == "swap")
    assert tight.most_blocks <= 15 < expected.most_blocks


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", SLIDING)
def test_takeover_of_sliding_sequences(name: str, pair: Callable[[str], Pair]) -> None:
    whole = roomy(pair(name), [request("a", prompt(100), n=4, temperature=1.0, max_tokens=120)]).tokens["a"]
    published = {i: whole[i][: 30 * i] for i in range(4)}
    resumed = request("a", prompt(100), n=4, temperature=1.0, max_tokens=120, resumed=published)
    again = Engine(pair(name).runner, num_blocks=25, token_budget=BUDGET).run([resumed])
    assert again.tokens["a"] == whole


@pytest.mark.parametrize("name", SLIDING)
def test_a_prefix_is_found_when_only_the_window_before_its_end_is_left_of_it(
    name: str, pair: Callable[[str], Pair]
) -> None:
    expected = roomy(pair(name), [request("b", prompt(200), max_tokens=40)])
    blocks = -(-(SLIDING[name] + BUDGET) // 16) + 1
    engine = Engine(pair(name).runner, num_blocks=blocks + 1, token_budget=BUDGET)
    engine.run([request("a", prompt(200), max_tokens=1)])
    found = engine.run([request("b", prompt(200), max_tokens=40)])
    assert found.cached["b"] == 192
    assert found.tokens["b"] == expected.tokens["b"]


def test_models_with_full_layers_keep_everything(pair: Callable[[str], Pair]) -> None:
    assert [pair(name).runner.window for name in SLIDING] == list(SLIDING.values())
    assert {pair(name).runner.window for name in ("llama", "qwen2", "gemma2", "gemma3", "gpt_oss")} == {0}
