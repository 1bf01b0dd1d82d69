"""EAGLE-3 heads on a GPU: with `--deterministic` tokens and bits are those without, and a head that knows its target is
right as on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from eagle_heads import VOCAB as KNOWN
from eagle_heads import knowing_pair, random_head

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy

from .drive import Engine, assert_same, request
from .test_cuda import CONFIGS, random_model, random_requests
from .test_cuda_speculation import by_model, drafting

pytestmark = pytest.mark.gpu

MEMORIES: dict[str, dict[str, object]] = {
    "ample": {},
    "swapped": {"num_blocks": 60, "policy": PreemptionPolicy("swap")},
    "recomputed": {"num_blocks": 60, "policy": PreemptionPolicy("recompute")},
}


def memory_of(runner: ModelRunner, name: str) -> dict[str, object]:
    options = MEMORIES[name]
    return {**options, "num_host_blocks": runner.num_host_blocks} if options else {}


@pytest.fixture(scope="module", params=CONFIGS)
def guessing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """A random model with a random head."""
    folder = random_model(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))
    head = random_head(tmp_path_factory.mktemp("head"), folder, draft_vocab_size=90)
    return load_runner(drafting(folder, speculate=f"eagle:{head}"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return knowing_pair(tmp_path_factory.mktemp("knowing"))


@pytest.fixture(scope="module", params=["graphs", "kernel by kernel"])
def knowing(request: pytest.FixtureRequest, pair: tuple[Path, Path]) -> ModelRunner:
    """A model with a head that says the same."""
    target, head = pair
    return load_runner(drafting(target, speculate=f"eagle:{head}", cuda_graphs=request.param == "graphs"))


def asked_of_knowing() -> list[AddRequest]:
    return [
        request(
            str(i),
            [(5 * i + j * j) % KNOWN for j in range(2 + 7 * i)],
            max_tokens=40,
            temperature=(0.0, 0.7, 1.0)[i % 3],
            seed=i,
            logprobs=1,
        )
        for i in range(16)
    ]


@pytest.mark.parametrize("memory", MEMORIES)
def test_no_bit_tells_of_a_head(guessing: ModelRunner, memory: str) -> None:
    asked = random_requests(96)
    plain = Engine(guessing).run(asked)
    answers = by_model(guessing, **memory_of(guessing, memory)).run(asked)
    assert_same(answers, plain)
    assert (answers.stats.preemptions > 0) == (memory != "ample")
    assert answers.stats.drafted_tokens > 50


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_head_that_knows_its_target_is_right(knowing: ModelRunner, memory: str) -> None:
    """But for two tokens that change places in 16 bits: features and keys go where blocks go."""
    asked, options = asked_of_knowing(), memory_of(knowing, memory)
    if options:
        options["num_blocks"] = 30
    plain = Engine(knowing).run(asked)
    answers = by_model(knowing, **options).run(asked)
    assert_same(answers, plain)
    assert (answers.stats.preemptions > 0) == (memory != "ample")
    assert answers.stats.accepted_tokens > 0.8 * answers.stats.drafted_tokens > 100


def test_without_determinism_it_is_right_as_often(pair: tuple[Path, Path]) -> None:
    target, head = pair
    runner = load_runner(drafting(target, speculate=f"eagle:{head}", deterministic=False))
    answers = by_model(runner).run(asked_of_knowing())
    assert answers.stats.accepted_tokens > 0.8 * answers.stats.drafted_tokens > 100
