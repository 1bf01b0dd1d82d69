"""The runner of GPUs on two ranks, over the CPU's kernels: one rank packs, and both compute what one process does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from gpu_on_cpu import pretend

from octavo_worker.assembly.follower import compute_packed
from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.cache import group_window
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.ranks.board import Board
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.parallel.leader import Leader, Member

from .drive import Engine, request
from .test_masks import bound, check, free
from .test_ranks import all_kinds, assert_close, prompt, random_requests
from .zoo import save

BLOCKS, LENGTH, BUDGET = 513, 384, 512


@contextmanager
def packed_ranks(model: str) -> Iterator[ModelRunner]:
    """The first of two ranks, of which the other is a thread."""
    options = options_of(model, tensor_parallel=2)
    descriptor = os.memfd_create("ranks")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(load_model, options, member=Member(Rank(1, 2), descriptor))
        models = [load_model(options, member=Member(Rank(0, 2), descriptor))[0], other.result()[0]]
        os.close(descriptor)
        groups = [model.group for model in models]
        assert groups[0] is not None
        assert groups[1] is not None
        runner = runner_of(models[0], Leader(None, groups[0]))  # type: ignore[arg-type]
        following = pool.submit(follow, runner_of(models[1]), Board(groups[1].memory, Rank(1, 2)))
        try:
            yield runner
        finally:
            runner._leader._board.publish(b"")  # type: ignore[union-attr]
            following.result()


def follow(runner: CudaRunner, board: Board) -> None:
    """Until a message is no step."""
    with suppress(msgspec.DecodeError):
        while True:
            compute_packed(runner, board)


def runner_of(model: CausalModel, leader: Leader | None = None) -> CudaRunner:
    windows = BLOCKS if group_window(model.cache) else 0  # layers with a window have a group of their own
    cache = CacheConfig(BLOCKS, 16, BLOCKS, num_window_blocks=windows, num_host_window_blocks=windows)
    return CudaRunner(model, cache, LENGTH, BUDGET, max_running=64, graphs=False, leader=leader)


def options_of(model: str, **more: int) -> ModelOptions:
    fixed = {"device": "cpu", "dtype": "float32", "threads": 1, "num_blocks": BLOCKS, "max_model_len": LENGTH}
    return ModelOptions(model=model, max_running=64, **fixed | more)  # type: ignore[arg-type]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_steps_travel_packed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of requests, with much memory and with little: filters, penalties, beams, scores, swaps. The norm
    behind a sum is part of it, or follows other norms, or is of another kind. One of them has two groups of blocks."""
    save(name, tmp_path)
    alone = load_runner(options_of(str(tmp_path)))
    pretend(monkeypatch)
    with packed_ranks(str(tmp_path)) as runner:
        assert_close(Engine(runner).run(all_kinds()), Engine(alone).run(all_kinds()))
        roomy = Engine(runner).run(random_requests(24))
        for mode in ("swap", "recompute"):
            policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
            tight = Engine(runner, num_blocks=30, num_host_blocks=200, policy=policy).run(random_requests(24))
            assert tight.stats.preemptions > 0
            assert (tight.tokens, tight.logprobs) == (roomy.tokens, roomy.logprobs)


def test_blocks_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("llama", tmp_path)
    long = request("long", prompt(280, 3), max_tokens=60, temperature=0.9)
    expected = Engine(load_runner(options_of(str(tmp_path)))).run([long])
    pretend(monkeypatch)
    with packed_ranks(str(tmp_path)) as runner:
        tight = Engine(runner, num_blocks=6, num_host_blocks=41, token_budget=70).run([long])
    assert tight.cold_steps > 60
    assert tight.tokens == expected.tokens


@pytest.mark.full
def test_masks_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Engine(load_runner(options_of("demo"))).run([*free(), *bound()])
    pretend(monkeypatch)
    with packed_ranks("demo") as runner:
        answers = Engine(runner).run([*free(), *bound()])
    check(answers)
    assert answers.tokens == expected.tokens
