"""Two ranks in two processes give what one process gives: every family, every way of generating, under all pressure.

In float32 the products of ranks are summed in another order, so log-probabilities agree to `CLOSE`, and tokens unless
two are as close to each other.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked_ranks

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, BeamOptions, EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner, SampleSpec, SequenceStep, StepError, StepPlan
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.ranks.processes import Ranks

from .conftest import Pair
from .drive import Answers, Engine, request
from .hybrid import HYBRID
from .latent import LATENT
from .mixed import MIXED
from .test_preemption import MixedPolicy
from .tiny import CONTEXT
from .zoo import OWN, VOCAB

FAMILIES = sorted(OWN)
CLOSE = 2e-5
CLOSE_MIXED = 5e-5  # a router magnifies what ranks round otherwise
CLOSE_RECURRENT = 2e-4  # a state carries it on, too: either side is up to 1e-4 away from float64
END = list(range(0, VOCAB, 9))
MOST_RUNNING = 3


@pytest.fixture(scope="module")
def ranked() -> Iterator[Callable[..., ModelRunner]]:
    """Runners of a folder's model on two ranks. The last few stay: a rank is a process of 250 MB."""
    running: OrderedDict[ModelOptions, tuple[Ranks, ModelRunner]] = OrderedDict()

    def load(folder: Path, **more: Any) -> ModelRunner:
        fixed = {"num_blocks": 513, "max_running": 64, "host_cache_bytes": 8 << 20, "dtype": "float32"}
        fixed |= {"max_model_len": CONTEXT}
        options = ModelOptions(model=str(folder), device="cpu", threads=1, tensor_parallel=2, **fixed | more)  # type: ignore[arg-type]
        if options not in running:
            ranks = forked_ranks(options)
            running[options] = ranks, load_runner(options, ranks)
        running.move_to_end(options)
        while len(running) > MOST_RUNNING:
            running.popitem(last=False)[1][0].close()
        return running[options][1]

    yield load
    for ranks, _ in running.values():
        ranks.close()


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def all_kinds() -> list[AddRequest]:
    kinds: list[dict[str, Any]] = [
        {"logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0.9, "logprobs": 0},
        {"temperature": 1.0, "top_k": 20, "logprobs": 0},
        {"temperature": 1.2, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.05, "presence_penalty": 0.6, "frequency_penalty": 0.4},
        {"repetition_penalty": 1.3, "logit_bias": {5: 3.0, 200: 3.0}},
        {"n": 4, "temperature": 1.0},
        {"min_tokens": 9, "stop_token_ids": END},
        {"n": 3, "beam": BeamOptions(3, 1.0, False), "stop_token_ids": END},
        {"n": 2, "beam": BeamOptions(4, 0.6, "never"), "stop_token_ids": END, "repetition_penalty": 1.2},
    ]
    return [request(str(i), prompt(9 + 13 * i, i), seed=i, max_tokens=20, **kind) for i, kind in enumerate(kinds)]


def assert_close(found: Answers, expected: Answers, close: float = CLOSE) -> None:
    assert found.tokens == expected.tokens
    for name, by_index in expected.logprobs.items():
        for index, wanted in by_index.items():
            for a, b in zip(found.logprobs[name][index], wanted, strict=True):
                assert a.logprob == pytest.approx(b.logprob, abs=close)
                assert dict(a.top) == pytest.approx(dict(b.top), abs=close)
    for name, prompts in expected.prompt_logprobs.items():
        for a, b in zip(found.prompt_logprobs[name] or [], prompts or [], strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert a.logprob == pytest.approx(b.logprob, abs=close)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]) -> None:
    pair = cpu_pair(name)
    runner = ranked(pair.folder)
    assert runner.numerics == f"{pair.runner.numerics} tp2"
    assert runner.num_blocks == pair.runner.num_blocks
    close = CLOSE_MIXED if name in MIXED | LATENT or name == "gemma4-mixture" else CLOSE
    close = CLOSE_RECURRENT if name in HYBRID else close
    assert_close(Engine(runner).run(all_kinds()), Engine(pair.runner).run(all_kinds()), close)


@pytest.mark.parametrize("name", [name for name in ("qwen2_moe", "gpt_oss-clamped") if name in MIXED])
def test_whole_experts(name: str, cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]) -> None:
    """With a shared expert, and with biases and gates by turns: the same answers, and the same bytes in any batch."""
    pair = cpu_pair(name)
    runner = ranked(pair.folder, experts="whole")
    assert runner.numerics == f"{pair.runner.numerics} tp2 whole experts"
    together = Engine(runner).run(all_kinds())
    assert_close(together, Engine(pair.runner).run(all_kinds()), CLOSE_MIXED)
    alone = Engine(runner, token_budget=16).run(all_kinds()[:1])
    assert alone.tokens["0"] == together.tokens["0"]
    assert alone.logprobs["0"] == together.logprobs["0"]
    assert alone.prompt_logprobs["0"] == together.prompt_logprobs["0"]


def random_requests(count: int) -> list[AddRequest]:
    """Greedy, seeded, several samples, beams; many begin alike."""
    rng = random.Random(5)
    prefixes = [prompt(length, length) for length in (48, 49, 50, 200)]
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "top_p": 0.95},
        {"n": 3, "temperature": 1.0, "logprobs": 0},
        {"n": 2, "beam": BeamOptions(3, 1.0, False), "stop_token_ids": END},
    ]
    requests = []
    for number in range(count):
        prefix = rng.choice(prefixes)
        tokens = prefix[: rng.randint(0, len(prefix))] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
        requests.append(request(str(number), tokens, max_tokens=rng.randint(1, 20), seed=number, **kinds[number % 4]))
    return requests


@pytest.mark.full(but=1)
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
def test_preemption_changes_no_bit(
    mode: str, cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]
) -> None:
    runner = ranked(cpu_pair("llama").folder)
    roomy = Engine(runner).run(random_requests(60))
    policy = MixedPolicy() if mode == "mixed" else PreemptionPolicy(mode)  # type: ignore[arg-type]
    tight = Engine(runner, num_blocks=30, num_host_blocks=200, policy=policy).run(random_requests(60))
    assert roomy.stats.preemptions == 0 < tight.stats.preemptions
    assert (tight.stats.swapped_out > 0) == (mode != "recompute")
    assert (tight.tokens, tight.logprobs) == (roomy.tokens, roomy.logprobs)
    assert tight.tokens == Engine(cpu_pair("llama").runner).run(random_requests(60)).tokens


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_sequences_longer_than_the_pool(
    name: str, cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]
) -> None:
    runner, long = ranked(cpu_pair(name).folder), request("long", prompt(280, 3), max_tokens=60, temperature=0.9)
    tight = Engine(runner, num_blocks=6, num_host_blocks=41, token_budget=70).run([long])
    assert tight.cold_steps > 60
    assert tight.tokens == Engine(cpu_pair(name).runner).run([long]).tokens


@pytest.mark.full
def test_a_model_that_slides(cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]) -> None:
    requests = [request(str(i), prompt(100 + i, i), n=1 + i, temperature=1.0, max_tokens=90) for i in range(3)]
    runner = ranked(cpu_pair("mistral").folder)
    tight = Engine(runner, num_blocks=25, token_budget=80).run(requests)
    assert tight.most_blocks <= 24
    assert tight.tokens == Engine(cpu_pair("mistral").runner).run(requests).tokens


def test_a_takeover_continues_at_the_next_token(
    cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]
) -> None:
    runner = ranked(cpu_pair("llama").folder)
    whole = Engine(runner).run([request("a", prompt(30, 1), n=3, temperature=1.0)]).tokens["a"]
    resumed = request("a", prompt(30, 1), n=3, temperature=1.0, resumed={i: whole[i][: 7 * i] for i in whole})
    assert Engine(runner).run([resumed]).tokens["a"] == whole


@pytest.mark.full(but=1)
@pytest.mark.parametrize("more", [{"dtype": "bfloat16"}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8"}, {"block_size": 4}])
def test_types_and_blocks(
    more: dict[str, Any], cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]
) -> None:
    """Alone and in a batch: the same bits, with any way of preemption."""
    runner = ranked(cpu_pair("llama").folder, **more)
    tight = Engine(runner, num_blocks=1 + 480 // runner.block_size, num_host_blocks=100).run(random_requests(24))
    assert tight.stats.preemptions > 0
    for number in (0, 1, 2):
        asked = random_requests(24)[number]
        alone = Engine(runner).run([asked])
        assert alone.tokens[asked.id] == tight.tokens[asked.id]
        assert alone.logprobs[asked.id] == tight.logprobs[asked.id]


def test_a_sequence_to_blame_costs_itself_only(
    cpu_pair: Callable[[str], Pair], ranked: Callable[..., ModelRunner]
) -> None:
    """Every rank sees it, and goes on with the next step."""
    runner = ranked(cpu_pair("llama").folder)
    spec = SampleSpec(EngineSampling(seed=1, max_tokens=5, temperature=0.0), 0, [], [])
    good = SequenceStep([3, 4, 5], 0, [1], [spec])
    before = runner.launch(StepPlan([good], 0)).result()
    with pytest.raises(StepError, match="vocabulary") as failure:
        runner.launch(StepPlan([good, SequenceStep([VOCAB], 0, [2], [spec])], 0)).result()
    assert failure.value.sequence == 1
    assert runner.launch(StepPlan([good], 0)).result() == before
