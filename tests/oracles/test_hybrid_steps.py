"""Hybrids on the runner of GPUs, over the CPU's kernels: messages, swaps and steps ahead change no bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gpu_on_cpu import pretend

from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import StepPlan
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.runner.cuda.runner import CudaRunner

from .by_hand import ByHand
from .drive import Engine, assert_same, request, states_of
from .hybrid import HYBRID
from .test_hybrids import NEW, prompts
from .test_hybrids import assert_same as assert_all_said
from .tiny import VOCAB
from .zoo import save

BLOCKS, SLOTS, LENGTH = 300, 90, 384


def options_of(folder: Path) -> ModelOptions:
    sizes = {"num_blocks": BLOCKS, "state_slots": SLOTS - 1, "max_model_len": LENGTH, "host_cache_bytes": 32 << 20}
    return ModelOptions(model=str(folder), device="cpu", dtype="bfloat16", threads=1, **sizes)  # type: ignore[arg-type]


def pretended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CudaRunner:
    model, _ = load_model(options_of(folder))
    pretend(monkeypatch)
    cache = CacheConfig(BLOCKS, 16, BLOCKS, None, SLOTS, SLOTS)
    return CudaRunner(model, cache, LENGTH, 512, max_running=64, graphs=False)


def requests() -> list[AddRequest]:
    rng = random.Random(5)
    shared = [rng.randrange(VOCAB) for _ in range(60)]
    made = []
    for number in range(24):
        prompt = shared[: rng.choice([0, 33, 60])] + [rng.randrange(VOCAB) for _ in range(rng.choice([1, 15, 16, 50]))]
        sampling = {"temperature": 0.9 * (number % 2), "seed": number, "n": 1 + 2 * (number % 5 == 4)}
        made.append(request(str(number), prompt, max_tokens=rng.randint(8, 24), logprobs=0, **sampling))  # type: ignore[arg-type]
    return made


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", HYBRID)
def test_steps_are_those_of_a_cpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(name, tmp_path, HYBRID[name], width=1.0)
    alone = ByHand(load_runner(options_of(tmp_path)))
    expected = alone.answers(prompts(), NEW)
    hand = ByHand(pretended(tmp_path, monkeypatch))
    for piece in (1 << 30, 16, 5):
        assert_all_said(hand.answers(prompts(), NEW, piece), expected)


@pytest.mark.parametrize("name", ["qwen3_5", "mamba2"])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_leaves_no_trace(name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a step ahead, forks, hits and few slots."""
    save(name, tmp_path, HYBRID[name], width=1.0)
    expected = Engine(load_runner(options_of(tmp_path))).run(requests())
    runner = pretended(tmp_path, monkeypatch)
    assert_same(Engine(runner).run(requests()), expected)
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    tight = Engine(runner, num_blocks=40, num_host_blocks=200, policy=policy, states=states_of(runner, 24))
    answers = tight.run(requests())
    assert answers.stats.preemptions > 0
    assert_same(answers, expected)


def test_states_that_come_from_the_host_may_leave_for_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("lfm2", tmp_path, HYBRID["lfm2"], width=1.0)
    runner = pretended(tmp_path, monkeypatch)
    host = runner.first_host_state_slot
    runner.states[1].fill_(7)
    runner.launch(StepPlan([], 0, state_out=[(1, host + 1)])).result()
    runner.states[1].zero_()
    runner.launch(StepPlan([], 0, state_in=[(host + 1, 2)], state_out=[(2, host + 3)])).result()
    assert (runner.states[2] == 7).all()
    assert (runner.host_states[3] == 7).all()
    assert not runner.states[1].any()
