"""10,000 short requests of every kind through an engine whose memory is always short: nothing grows, all comes back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from growth import Holdings

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy

from .drive import Engine, request
from .zoo import VOCAB, save

BATCH, BATCHES = 1000, 10


def short_requests(rng: random.Random) -> list[AddRequest]:
    prefixes = [[rng.randrange(VOCAB) for _ in range(32)] for _ in range(20)]
    kinds: list[dict[str, object]] = [
        *({"temperature": 0.9, "top_p": 0.9, "seed": seed} for seed in range(8)),
        *({} for _ in range(6)),
        {"n": 3, "temperature": 1.0},
        {"n": 2, "beam": BeamOptions(2, 1.0, False)},
        {"repetition_penalty": 1.3, "logprobs": 1},
        {"prompt_logprobs": 0},
    ]
    made = []
    for number in range(BATCH):
        prompt = [*rng.choice(prefixes)[: rng.choice([0, 16, 32])], *(rng.randrange(VOCAB) for _ in range(9))]
        kind = {**rng.choice(kinds), "max_tokens": rng.choice([1, 2, 3, 4, 25])}
        made.append(request(str(number), prompt, **kind))  # type: ignore[arg-type]
    return made


def assert_nothing_grows(runner: ModelRunner, *, cuda: bool) -> None:
    """The first batches fill what is filled once: caches, free lists, the allocator's pools."""
    policy = PreemptionPolicy("swap")
    engine = Engine(runner, num_blocks=70, num_host_blocks=runner.num_host_blocks, policy=policy)
    rng = random.Random(3)
    preemptions = 0
    for batch in range(BATCHES):
        if batch == 3:
            before = Holdings.now(cuda=cuda)
        answers = engine.run(short_requests(rng))
        assert all(tokens for request in answers.tokens.values() for tokens in request.values())
        preemptions = answers.stats.preemptions
        del answers
        assert engine.scheduler.pool.used == 0
        host = engine.scheduler.kv.host
        assert host is not None
        assert host.pool.used == 0
    assert preemptions > BATCHES
    Holdings.now(cuda=cuda).assert_no_more_than(before)


@pytest.mark.full
def test_10_000_requests_on_the_cpu(tmp_path: Path) -> None:
    save("llama", tmp_path)
    options = ModelOptions(model=str(tmp_path), device="cpu", num_blocks=257, host_cache_bytes=1 << 20, max_running=64)
    assert_nothing_grows(load_runner(options), cuda=False)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.beyond_plain)])
def test_10_000_requests_on_a_gpu(deterministic: bool) -> None:
    options = ModelOptions(
        model="demo", device="cuda", num_blocks=257, host_cache_bytes=16 << 20, max_running=64, max_model_len=256,
        deterministic=deterministic,
    )  # fmt: skip
    assert_nothing_grows(load_runner(options), cuda=True)
