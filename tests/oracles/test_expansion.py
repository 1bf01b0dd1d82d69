"""Prompts of latent attention in the expanded form, which GPUs take, computed on the CPU: answers are those of the
absorbed form but for the order of sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.cache import AttentionShape
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.batch import Batch, ragged_batch
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.expansion import Expansion, ExpansionRoom
from octavo_worker.model.layers.latent import LatentAttention
from octavo_worker.model.stage import Stage
from octavo_worker.runner.cuda import memory
from octavo_worker.runner.cuda import plans as plans_module
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Answers, Engine, request
from .latent import LATENT
from .test_shapes import prompt

CLOSE = 5e-5  # a router magnifies what sums in another order differ by; tests/model/test_expansion.py has one layer's
CLOSE_CODES = 5e-4  # a latent on the edge between two codes may be the other one in either form
NAMES = list(LATENT)


class Expanding:
    """A decoder on the CPU whose steps expand every prompt behind the last decode, as a GPU's do those that gain; and
    the numbers of sequences that were absorbed and expanded in each step."""

    def __init__(self, runner: PagedRunner, monkeypatch: pytest.MonkeyPatch, *, staged: bool = False) -> None:
        model = runner.model
        assert isinstance(model, Decoder)
        (layer,) = {b.attention.layer for b in model.layers.blocks if isinstance(b.attention, LatentAttention)}
        self.room = ExpansionRoom(layer, model.dtype, model.device, runner.block_size, 2 * runner.max_model_len)
        self.room.prices = replace(self.room.prices, absorbed_pair=1e6, key=0.0)
        self.steps: list[tuple[int, int]] = []
        forward = model.forward

        def expanding(batch: Batch, rows: Tensor | None) -> Tensor:
            queries, contexts = batch.query_start.diff().numpy(), batch.context_lens.numpy()
            decodes = int(np.flatnonzero(np.append(queries, 2) > 1)[0])
            parts = (batch.block_tables, batch.context_lens, batch.query_start)
            batch.expansion = Expansion.of(self.room, parts, queries, contexts, decodes)
            if staged:
                batch.stage = Stage.of(batch.block_tables, contexts, runner.block_size)
            kept = len(queries) if batch.expansion is None else batch.expansion.sequences
            self.steps.append((kept, len(queries) - kept))
            return forward(batch, rows)

        monkeypatch.setattr(model, "forward", expanding)


@pytest.fixture(scope="module")
def load(cpu_pair: Callable[[str], Pair]) -> Callable[..., PagedRunner]:
    @cache
    def loaded(name: str, **more: Any) -> PagedRunner:
        fixed = {"num_blocks": 257, "host_cache_bytes": 8 << 20, "max_running": 64, "threads": 1, "dtype": "float32"}
        runner = load_runner(ModelOptions(model=str(cpu_pair(name).folder), device="cpu", **fixed | more))
        assert isinstance(runner, PagedRunner)
        return runner

    return loaded


def asked() -> list[AddRequest]:
    words = prompt(90)
    lengths = (1, 15, 16, 17, 40, 64, 90)
    return [request(str(n), words[:n], max_tokens=9, logprobs=0, prompt_logprobs=0) for n in lengths]


def assert_near(found: Answers, expected: Answers, close: float = CLOSE) -> None:
    """Tokens, and the log-probabilities of all that was generated and of the prompts."""
    assert found.tokens == expected.tokens
    for name in expected.tokens:
        for ours, theirs in (
            (found.logprobs[name][0], expected.logprobs[name][0]),
            (found.prompt_logprobs[name] or [], expected.prompt_logprobs[name] or []),
        ):
            scores = [[0.0 if one is None else one.logprob for one in each] for each in (ours, theirs)]
            assert scores[0] == pytest.approx(scores[1], abs=close)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", NAMES)
def test_expanded_prompts_score_as_absorbed_ones(
    name: str, load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in chunks of several lengths, beside decodes and each other."""
    runner = load(name)
    expected, alone = (Engine(runner).run(each) for each in (asked(), asked()[-1:]))
    expanding = Expanding(runner, monkeypatch)
    for budget in (512, 64, 23):
        assert_near(Engine(runner, token_budget=budget).run(asked()), expected)
    assert_near(Engine(runner, token_budget=64).run(asked()[-1:]), alone)
    assert any(absorbed and expanded for absorbed, expanded in expanding.steps)
    assert any(expanded > 1 for _, expanded in expanding.steps)
    assert any(not absorbed for absorbed, _ in expanding.steps)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_a_cached_prefix_is_expanded_with_what_follows(
    name: str, load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, words = load(name), prompt(90)
    again = [request(str(n), words[:n] + prompt(7), max_tokens=5, logprobs=0) for n in (17, 33, 64, 81)]

    def answers() -> Answers:
        engine = Engine(runner)
        engine.run([request("first", words, max_tokens=8)])
        return engine.run(again)

    expected = answers()
    Expanding(runner, monkeypatch)
    found = answers()
    assert found.cached == expected.cached
    assert all(found.cached.values())
    assert_near(found, expected)


@pytest.mark.parametrize("hosts", [0, 100])
def test_blocks_may_move_meanwhile(
    hosts: int, load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load("deepseek_v3")
    expected = Engine(runner).run(asked())
    Expanding(runner, monkeypatch)
    policy = PreemptionPolicy("swap" if hosts else "recompute")
    tight = Engine(runner, num_blocks=14, num_host_blocks=hosts, policy=policy).run(asked())
    assert tight.stats.preemptions > 0
    assert_near(tight, expected)


def test_a_step_may_be_staged(load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load("deepseek_v3")
    expected = Engine(runner).run(asked())
    Expanding(runner, monkeypatch, staged=True)
    assert_near(Engine(runner, token_budget=23).run(asked()), expected)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_rows_in_eight_bits_are_expanded_as_they_were_rounded(
    kv_dtype: str, load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load("minicpm3", kv_dtype=kv_dtype)
    expected = Engine(runner).run(asked())
    Expanding(runner, monkeypatch)
    assert_near(Engine(runner).run(asked()), expected, CLOSE_CODES)


@pytest.mark.parametrize("at_once", [1, 2])
def test_heads_may_come_one_after_the_other(
    at_once: int, load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And products may be of a block each."""
    runner = load("deepseek_v3")
    Expanding(runner, monkeypatch)
    whole = Engine(runner).run(asked())
    monkeypatch.undo()
    expanding = Expanding(runner, monkeypatch)
    monkeypatch.setattr(expanding.room, "heads_at_once", lambda contexts: at_once)
    monkeypatch.setattr(expanding.room, "_piece", 1)
    assert_near(Engine(runner).run(asked()), whole)


def test_plans_of_latent_rows_leave_out_what_is_expanded(
    load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of other layers have all, and nothing is planned where all is expanded."""
    runner = load("deepseek_v3")
    batch = ragged_batch([SequenceStep([5], 0, [1]), SequenceStep([1, 2, 3], 0, [2])], 16, runner.vocab_size)
    parts = (batch.block_tables, batch.context_lens, batch.query_start)
    room, latent, full = (
        Expanding(runner, monkeypatch).room,
        AttentionShape(0, 4, 1, 32, 24),
        AttentionShape(0, 4, 4, 8),
    )
    planned: list[tuple[str, list[int], list[int]]] = []

    class Plan:
        def __init__(self, name: str) -> None:
            self.name = name

        def update(self, context_lens: Tensor, query_start: Tensor, *_: object, **__: object) -> None:
            planned.append((self.name, context_lens.tolist(), query_start.tolist()))

    plans: Any = {latent: Plan("latent"), full: Plan("full")}
    for decodes, expected in ((1, [("latent", [1], [0, 1])]), (0, [])):
        planned.clear()
        batch.expansion = Expansion.of(room, parts, np.array([1, 3]), np.array([1, 3]), decodes)
        plans_module._updated(plans, batch)
        assert planned == [*expected, ("full", [1, 3], [0, 1, 4])]


def test_memory_of_a_gpu_counts_the_room(load: Callable[..., PagedRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("deepseek_v3").model
    assert isinstance(model, Decoder)
    monkeypatch.setattr(memory.AttentionPlans, "scratch_bytes", lambda *_: 0)
    options = ModelOptions(model="any")
    without = memory.step_bytes(options, model, 4000)
    (layer,) = {b.attention.layer for b in model.layers.blocks if isinstance(b.attention, LatentAttention)}
    monkeypatch.setattr(model, "expanded", layer)
    rows = len(model.buffers.hidden)
    wider = 2 * 4 * (2 * 64 - 24) * 4 * rows  # what queries and what they read are more than latents, in two places
    room = ExpansionRoom.step_bytes(layer, model.dtype, 4000 + rows)
    assert memory.step_bytes(options, model, 4000) - without == room + wider


def test_a_worker_says_whether_it_expands(
    load: Callable[..., PagedRunner], cpu_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on a CPU does not."""
    runner = load("deepseek_v3")
    assert runner.model.expanded is None
    assert "expanded" not in runner.numerics
    monkeypatch.setattr("octavo_worker.model.decoder.expanded_layer", lambda layers, *_, **__: layers[0])
    there = load_runner(ModelOptions(model=str(cpu_pair("deepseek_v3").folder), device="cpu", num_blocks=9))
    assert "expanded prompts" in there.numerics
