"""Architectures that the generic decoder does not know, on a GPU: transformers' code around our kernels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.errors import UnsupportedModel

from .drive import Engine, request
from .zoo import CONTEXT, ROUTED_ON_CUDA, VOCAB, save

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Routed:
    """A model three times: as a folder, as transformers runs it in float32, and in float16 on the GPU, whose distance
    from the former is the measure of what may be lost."""

    folder: Path
    oracle: PreTrainedModel
    rounded: PreTrainedModel


@pytest.fixture(scope="module", params=ROUTED_ON_CUDA)
def routed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Routed:
    folder = tmp_path_factory.mktemp(request.param)
    oracle = save(request.param, folder, ROUTED_ON_CUDA[request.param])
    rounded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float16, attn_implementation="eager", trust_remote_code=False
    ).cuda()
    return Routed(folder, oracle, rounded)


def options(routed: Routed, **more: object) -> ModelOptions:
    fixed = {"device": "cuda", "dtype": "float16", "num_blocks": 257, "max_running": 32, "max_model_len": CONTEXT}
    return ModelOptions(model=str(routed.folder), **{**fixed, **more})  # type: ignore[arg-type]


def logprobs(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens], device=model.device)).logits[0].float().cpu().log_softmax(-1)


def test_greedy_tokens_are_those_of_transformers(routed: Routed) -> None:
    """Prompts in chunks and decodes in batches that shrink; where rounding decides, within what it costs."""
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (1, 15, 16, 33, 64, 100)]
    requests = [request(str(i), prompt, max_tokens=20 + i) for i, prompt in enumerate(prompts)]
    answers = Engine(load_runner(options(routed)), token_budget=70).run(requests)
    equal, total = 0, 0
    for i, prompt in enumerate(prompts):
        output = answers.tokens[str(i)][0]
        wanted, close = (
            logprobs(model, prompt + output)[len(prompt) - 1 : -1] for model in (routed.oracle, routed.rounded)
        )
        best = wanted.max(-1)
        lost = best.values - wanted.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert lost.max() <= 2 * (close - wanted).abs().max(), i
        equal, total = equal + int((best.indices == torch.tensor(output)).sum()), total + len(output)
    assert equal >= 0.97 * total


def test_graphs_change_no_token(routed: Routed) -> None:
    rng = random.Random(2)
    requests = [
        request(str(n), [rng.randrange(VOCAB) for _ in range(5 + n)], max_tokens=12 + n, temperature=0.8, seed=n)
        for n in range(10)
    ]
    with_graphs, without = (
        Engine(load_runner(options(routed, cuda_graphs=graphs))).run(requests) for graphs in (True, False)
    )
    assert with_graphs.tokens == without.tokens


@pytest.mark.beyond_plain
def test_no_promise_is_made_that_is_not_kept(routed: Routed) -> None:
    with pytest.raises(UnsupportedModel, match="--deterministic"):
        load_runner(options(routed, deterministic=True))
