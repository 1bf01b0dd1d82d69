"""`--deterministic` on a GPU: tokens and the bits of their log-probabilities, whatever happens around a sequence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import MistralConfig

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy

from .drive import Answers, Engine, assert_same, request
from .test_cuda import COMMON, CONFIGS, VOCAB, options, random_model, random_requests

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

SLIDING = MistralConfig(**COMMON, sliding_window=100)
MODELS = {**CONFIGS, "sliding": SLIDING}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(MODELS[request.param], tmp_path_factory.mktemp(request.param))


def deterministic(folder: Path, **more: object) -> ModelOptions:
    return options(folder, deterministic=True, **more)


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return load_runner(deterministic(folder))


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    """Greedy and seeded, with the log-probability of every token; prompts of a token to several chunks."""
    rng = random.Random(11)
    prefix = [rng.randrange(VOCAB) for _ in range(200)]
    made = []
    for number in range(64):
        length = rng.choice([1, 15, 16, 17, 40, 150, 300])
        prompt = prefix[: rng.choice([0, 0, 48, 200])] + [rng.randrange(VOCAB) for _ in range(length)]
        sampling = {"temperature": rng.choice([0.0, 0.9]), "top_p": rng.choice([1.0, 0.9]), "seed": number}
        made.append(request(str(number), prompt, max_tokens=rng.randint(20, 60), logprobs=0, **sampling))
    return made


@pytest.fixture(scope="module")
def together(runner: ModelRunner, requests: list[AddRequest]) -> Answers:
    return Engine(runner).run(requests)


def only(answers: Answers, name: str) -> tuple[object, ...]:
    return answers.tokens[name], answers.logprobs[name]


def test_alone_as_in_a_batch_of_64(runner: ModelRunner, requests: list[AddRequest], together: Answers) -> None:
    engine = Engine(runner)
    for one in requests[::4]:
        assert only(engine.run([one]), one.id) == only(together, one.id)


@pytest.mark.parametrize("budget", [65, 130])
def test_prompts_may_be_cut_anywhere(
    runner: ModelRunner, requests: list[AddRequest], together: Answers, budget: int
) -> None:
    assert_same(Engine(runner, token_budget=budget).run(requests), together)


def test_a_cached_prefix_changes_nothing(runner: ModelRunner, requests: list[AddRequest], together: Answers) -> None:
    engine = Engine(runner)
    engine.run(requests)
    again = engine.run(requests)
    assert sum(again.cached.values()) > 1000
    assert_same(again, together)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_changes_nothing(
    runner: ModelRunner, requests: list[AddRequest], together: Answers, mode: str
) -> None:
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    short = Engine(runner, num_blocks=90, num_host_blocks=runner.num_host_blocks, policy=policy).run(requests)
    assert short.stats.preemptions > 0
    assert_same(short, together)


def test_every_kind_of_request_is_preempted_without_a_trace(runner: ModelRunner) -> None:
    """Beams, penalties, several samples, scores of prompts."""
    every = random_requests(96)
    short = Engine(runner, num_blocks=60, policy=PreemptionPolicy("recompute")).run(every)
    assert short.stats.preemptions > 0
    assert_same(short, Engine(runner).run(every))


def test_another_engine_goes_on_with_the_next_token(
    folder: Path, requests: list[AddRequest], together: Answers
) -> None:
    """Which never saw the request before, launches kernel by kernel, and has other company for it."""
    rng = random.Random(5)
    orphans, kept = [], {}
    for one in requests:
        tokens = together.tokens[one.id][0]
        kept[one.id] = rng.randrange(len(tokens))
        orphans.append(
            AddRequest(one.id, one.prompt, [type(one.sequences[0])(0, tokens[: kept[one.id]])], one.sampling)
        )
    rng.shuffle(orphans)
    answers = Engine(load_runner(deterministic(folder, cuda_graphs=False)), token_budget=100).run(orphans)
    assert answers.tokens == together.tokens
    for name, count in kept.items():
        assert answers.logprobs[name][0] == together.logprobs[name][0][count:]
