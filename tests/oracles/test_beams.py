"""Beam search gives the tokens of transformers' `generate(num_beams=...)`, alone, batched and under pressure."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.memory.cost import PreemptionPolicy

from .conftest import Pair
from .drive import Engine, request
from .gemmas import GEMMAS4
from .zoo import VOCAB

ARCHITECTURES = ["llama", "mistral", "qwen3", "gemma2", "gpt2", "opt", "gpt_neox", "mixtral", *GEMMAS4]
ARCHITECTURES += ["lfm2", "qwen3_5", "bamba"]
NEW = 20
EOS = list(range(3, VOCAB, 8))  # many, so that random models come to an end now and then

CASES = [
    {"width": 4},
    {"width": 4, "early_stopping": True, "eos": EOS},
    {"width": 3, "early_stopping": False, "eos": EOS, "length_penalty": 0.6},
    {"width": 3, "early_stopping": "never", "eos": EOS, "length_penalty": 2.0},
    {"width": 5, "early_stopping": "never", "eos": EOS, "length_penalty": -1.0, "n": 1},
    {"width": 2, "early_stopping": False, "eos": EOS, "length_penalty": 0.0, "min_tokens": 6},
    {"width": 4, "eos": EOS, "repetition_penalty": 1.3},
]


def prompt(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(VOCAB) for _ in range(length)]


def beams(id: str, prompt: list[int], case: dict[str, object]) -> AddRequest:
    width = case["width"]
    options = BeamOptions(width, case.get("length_penalty", 1.0), case.get("early_stopping", False))
    sampling = {key: case[key] for key in ("min_tokens", "repetition_penalty") if key in case}
    return request(
        id, prompt, n=case.get("n", width), max_tokens=NEW, beam=options, stop_token_ids=case.get("eos", []), **sampling
    )


def transformers_beams(pair: Pair, prompt: list[int], case: dict[str, object]) -> list[list[int]]:
    """Results of `generate`, without padding."""
    eos = case.get("eos")
    ids = torch.tensor([prompt])
    generated = pair.oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        num_beams=case["width"],
        num_return_sequences=case.get("n", case["width"]),
        length_penalty=case.get("length_penalty", 1.0),
        early_stopping=case.get("early_stopping", False),
        eos_token_id=eos,
        min_new_tokens=case.get("min_tokens"),
        repetition_penalty=case.get("repetition_penalty", 1.0),
        pad_token_id=VOCAB - 1,
    )
    return [_cut(row, eos) for row in generated[:, len(prompt) :].tolist()]


def _cut(tokens: list[int], eos: list[int] | None) -> list[int]:
    end = next((i + 1 for i, token in enumerate(tokens) if eos and token in eos), len(tokens))
    return tokens[:end]


def sequences(answers: dict[int, list[int]]) -> list[list[int]]:
    return [answers[index] for index in sorted(answers)]


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_transformers(name: str, pair: Callable[[str], Pair]) -> None:
    """All cases in one batch, with prompts that end in and on a block."""
    lengths = [5, 16, 33, 47, 17, 64, 31]
    requests = [beams(str(i), prompt(lengths[i]), case) for i, case in enumerate(CASES)]
    answers = Engine(pair(name).runner).run(requests)
    for i, case in enumerate(CASES):
        expected = transformers_beams(pair(name), prompt(lengths[i]), case)
        assert sequences(answers.tokens[str(i)]) == expected, case
    lengths = [len(tokens) for answer in answers.tokens.values() for tokens in answer.values()]
    assert sum(length < NEW for length in lengths) >= 5, "nothing ended early: proves little"
    assert NEW in lengths


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted_beams_find_the_same(mode: str, pair: Callable[[str], Pair]) -> None:
    """Groups too many for the pool are preempted as gangs, and beside them samples and a greedy request."""
    requests = [beams(str(i), prompt(20 + 9 * i), case) for i, case in enumerate(CASES)]
    requests += [request("n", prompt(25), n=4, temperature=1.0, seed=3), request("greedy", prompt(40))]
    roomy = Engine(pair("llama").runner).run(requests)
    assert roomy.stats.preemptions == 0
    tight = Engine(pair("llama").runner, num_blocks=30, num_host_blocks=64, policy=PreemptionPolicy(mode)).run(requests)
    assert tight.stats.preemptions > 8
    assert (tight.stats.swapped_out > 0) == (mode == "swap")
    assert tight.tokens == roomy.tokens
