"""Answers of a runner on a GPU beside those of transformers, of itself without graphs, and in other company."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.step import ModelRunner

from .drive import Engine, assert_same, request
from .test_cuda import VOCAB, logprobs, options


def in_type(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=False).eval()


def requests(count: int, scored: bool = False) -> list[AddRequest]:
    rng = random.Random(count)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.choice([1, 15, 16, 40, 150, 300]))] for _ in range(count)]
    more = {"prompt_logprobs": 0} if scored else {}
    return [
        request(str(i), prompt, max_tokens=rng.randint(10, 40), logprobs=0, temperature=0.7 * (i % 2), seed=i, **more)
        for i, prompt in enumerate(prompts)
    ]


def assert_scores_are_near(
    runner: ModelRunner, folder: Path, asked: Sequence[AddRequest] = (), token_budget: int = 200
) -> None:
    """Every token of prompts and answers counts; what transformers loses in bfloat16 measures what `runner` may
    lose. `asked` are scored, too; without them, some of every length up to 300."""
    oracle, rounded = in_type(folder, torch.float32), in_type(folder, torch.bfloat16)
    asked = asked or requests(12, scored=True)
    answers = Engine(runner, token_budget=token_budget).run(asked)
    ours, theirs = [], []
    for one in asked:
        tokens = [*one.prompt, *answers.tokens[one.id][0]]
        scores = [*answers.prompt_logprobs[one.id][1:], *answers.logprobs[one.id][0]]
        found = torch.tensor([score.logprob for score in scores])
        wanted, close = (
            logprobs(model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
            for model in (oracle, rounded)
        )
        ours.append((found - wanted).abs())
        theirs.append((close - wanted).abs())
    mine, other = torch.cat(ours), torch.cat(theirs)
    assert mine.mean() <= 1.3 * other.mean()
    assert mine.quantile(0.8) <= 1.5 * other.quantile(0.8)


def assert_graphs_change_nothing(runner: ModelRunner, folder: Path, **more: object) -> None:
    """`more`: options with which `runner` was loaded."""
    alone = load_runner(options(folder, cuda_graphs=False, **more))
    for one in requests(8):
        assert_same(Engine(runner).run([one]), Engine(alone).run([one]))


def assert_company_changes_nothing(runner: ModelRunner) -> None:
    every = requests(48)
    together = Engine(runner).run(every)
    assert_same(Engine(runner, token_budget=90).run(every), together)
    engine = Engine(runner)
    for one in every[::6]:
        answers = engine.run([one])
        assert answers.tokens[one.id] == together.tokens[one.id]
        assert answers.logprobs[one.id] == together.logprobs[one.id]
