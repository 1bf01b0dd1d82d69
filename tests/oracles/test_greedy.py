"""Greedy tokens are those of transformers, whatever else is in the batch, the cache or the way."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
import torch

from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.transformers_route import TransformersModel

from .conftest import Pair
from .drive import Engine, request
from .gemmas import GEMMAS4
from .hybrid import HYBRID, LIMITED
from .latent import LATENT
from .mixed import MIXED
from .zoo import ALL, ROUTED, VOCAB

LENGTHS = [1, 15, 16, 17, 31, 32, 33, 255, 256, 257]
SOME = (0, 3, 6, 9)
NEW = 24
BATCH = 32
TIE = 5e-4  # logits as close as these are ranked by how a processor rounds


def prompts() -> list[list[int]]:
    """32 prompts: each length three times or more, all different."""
    rng = random.Random(5)
    return [[rng.randrange(VOCAB) for _ in range(LENGTHS[i % len(LENGTHS)])] for i in range(BATCH)]


@pytest.fixture(scope="session")
def batched(pair: Callable[[str], Pair]) -> Callable[[str], list[list[int]]]:
    """Our answers to all prompts in one batch; `test_batch` verifies them, the others compare with them."""

    @cache
    def run(name: str) -> list[list[int]]:
        answers = Engine(pair(name).runner).run([request(str(i), p) for i, p in enumerate(prompts())])
        return [answers.tokens[str(i)][0] for i in range(BATCH)]

    return run


def teacher_forced(pair: Pair, prompts: list[list[int]], outputs: list[list[int]]) -> list[list[int]]:
    """Tokens that transformers picks after prompts of one length and after each prefix of their `outputs`: equal to
    `outputs` exactly if those are the greedy continuations. Of a tie, the token of `outputs`."""
    whole, chosen = torch.tensor(prompts), torch.tensor(outputs)
    with torch.inference_mode():
        logits = pair.oracle(torch.cat((whole, chosen), 1)).logits[:, whole.shape[1] - 1 : -1]
    tied = logits.max(-1).values - logits.gather(2, chosen[..., None])[..., 0] < TIE
    return torch.where(tied, chosen, logits.argmax(-1)).tolist()


@pytest.mark.full(but=6)
@pytest.mark.parametrize("name", ALL)
def test_batch(name: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]) -> None:
    for alike in ([i for i in range(BATCH) if len(prompts()[i]) == length] for length in LENGTHS):
        answers = [batched(name)[i] for i in alike]
        assert teacher_forced(pair(name), [prompts()[i] for i in alike], answers) == answers
    assert len({token for output in batched(name) for token in output}) > 20, "degenerate model: proves nothing"


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", [name for name in ALL if name not in LIMITED])
def test_generate(name: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]) -> None:
    prompt, ours = prompts()[3], batched(name)[3]
    rows = torch.tensor([prompt])
    ids = pair(name).oracle.generate(
        rows, attention_mask=torch.ones_like(rows), max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    generated = ids[0, len(prompt) :].tolist()
    same = next((j for j in range(NEW) if ours[j] != generated[j]), NEW)
    assert same == NEW or teacher_forced(pair(name), [prompt], [ours[: same + 1]])[0][-1] == ours[same], "no tie"


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", ALL)
def test_alone(name: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]) -> None:
    for i in SOME:
        answers = Engine(pair(name).runner).run([request("a", prompts()[i])])
        assert answers.tokens["a"][0] == batched(name)[i]


@pytest.mark.full(but=6)
@pytest.mark.parametrize("name", ALL)
def test_cached_prefix(name: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]) -> None:
    engine = Engine(pair(name).runner)
    requests = [request(str(i), p) for i, p in enumerate(prompts()[: len(LENGTHS)])]
    engine.run(requests)
    again = engine.run(requests)
    for i, length in enumerate(LENGTHS):
        assert again.cached[str(i)] == (length - 1) // 16 * 16
        assert again.tokens[str(i)][0] == batched(name)[i]


@pytest.mark.full(but=6)
@pytest.mark.parametrize("name", ALL)
def test_preemption(name: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]) -> None:
    chosen = [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16]  # 15 to 33 tokens: 2 or 3 blocks, growing to 3 or 4
    engine = Engine(pair(name).runner, num_blocks=24)
    answers = engine.run([request(str(i), prompts()[i]) for i in chosen])
    assert answers.stats.preemptions > 0
    assert [answers.tokens[str(i)][0] for i in chosen] == [batched(name)[i] for i in chosen]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral", "qwen3_5", "lfm2", *GEMMAS4])
def test_preemption_at_any_length(
    name: str, mode: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]
) -> None:
    """Six neighbours grow out of their first block and the last in order gives way: with 1 to 257 tokens of prompt."""
    others = [i for i in range(BATCH) if len(prompts()[i]) in (15, 16)][:6]
    for i in SOME:
        blocks = 1 + len(others) + len(prompts()[i]) // 16 + 4
        engine = Engine(pair(name).runner, num_blocks=blocks, num_host_blocks=64, policy=PreemptionPolicy(mode))
        answers = engine.run([request(str(j), prompts()[j]) for j in (*others, i)])
        gave_way = answers.stats.swapped_out if mode == "swap" else answers.stats.recomputed_tokens
        assert gave_way > 0
        assert {j: answers.tokens[str(j)][0] for j in (*others, i)} == {j: batched(name)[j] for j in (*others, i)}


@pytest.mark.full(but=6)
@pytest.mark.parametrize("name", ALL)
def test_chunked_prefill(name: str, pair: Callable[[str], Pair], batched: Callable[[str], list[list[int]]]) -> None:
    answers = Engine(pair(name).runner, token_budget=65).run([request(str(i), prompts()[i]) for i in SOME])
    assert [answers.tokens[str(i)][0] for i in SOME] == [batched(name)[i] for i in SOME]


@pytest.mark.full
def test_each_model_takes_its_route(pair: Callable[[str], Pair]) -> None:
    """Experts and latent attention have no kernels on a GPU."""
    models = {name: pair(name).runner.model for name in ALL if name not in HYBRID}
    routed = {name for name, model in models.items() if isinstance(model, TransformersModel)}
    mixed = {*MIXED, *LATENT, "gemma4-mixture"} & {*ALL}
    assert routed == {*ROUTED} | (mixed if models["llama"].device.type == "cuda" else set())
    assert {type(model) for name, model in models.items() if name not in routed} == {Decoder}
