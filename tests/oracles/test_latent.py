"""Latent attention: answers are the same however blocks were filled, moved or cut, and what is kept of a token is one
row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from octavo_worker.assembly.devices import check_kv_dtype
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import Logprob
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.drafts import ModelProposer, NgramProposer, Speculation
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import ModelError, UnsupportedModel
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Answers, Engine, assert_same, request
from .latent import LATENT
from .test_preemption import MixedPolicy
from .test_shapes import FREE, all_kinds, prompt

NAMES = list(LATENT)
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8 weights": {"dtype": "bfloat16", "quantization": "int8"},
}


@pytest.fixture(scope="module")
def load(cpu_pair: Callable[[str], Pair]) -> Callable[..., PagedRunner]:
    @cache
    def loaded(name: str, form: str = "plain", **more: Any) -> PagedRunner:
        fixed = {"num_blocks": 257, "host_cache_bytes": 8 << 20, "max_running": 64, "threads": 1}
        options = ModelOptions(model=str(cpu_pair(name).folder), device="cpu", **fixed | FORMS[form] | more)
        runner = load_runner(options)
        assert isinstance(runner, PagedRunner)
        return runner

    return loaded


@pytest.fixture(scope="module")
def ample(load: Callable[..., PagedRunner]) -> Callable[..., Answers]:
    @cache
    def run(name: str, form: str = "plain") -> Answers:
        answers = Engine(load(name, form)).run(all_kinds())
        assert answers.stats.preemptions == 0
        return answers

    return run


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_cut_anywhere(name: str, load: Callable[..., PagedRunner]) -> None:
    """Chunks are of every length from one token on, across several blocks."""
    asked = [request("a", prompt(45), max_tokens=3, prompt_logprobs=1, logprobs=1)]
    whole = Engine(load(name)).run(asked)
    for budget in range(1, 45):
        assert_same(Engine(load(name), token_budget=budget).run(asked), whole)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_cached_prefix_of_any_length(name: str, load: Callable[..., PagedRunner]) -> None:
    words = prompt(90)
    asked = [request(str(n), words[:n] + prompt(7), logprobs=1, max_tokens=9) for n in (17, 33, 64, 81, 90)]
    alone = [Engine(load(name)).run([one]) for one in asked]
    engine = Engine(load(name))
    engine.run([request("first", words, max_tokens=8)])
    for one, expected in zip(asked, alone, strict=True):
        again = engine.run([one])
        assert again.cached[one.id] == int(one.id) // 16 * 16
        assert again.logprobs == expected.logprobs


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_preemption_changes_no_bit(
    name: str, form: str, mode: str, load: Callable[..., PagedRunner], ample: Callable[..., Answers]
) -> None:
    """Requests are greedy, sampled, four of one prompt, and beams."""
    policy = MixedPolicy() if mode == "mixed" else PreemptionPolicy(mode)
    hosts = 0 if mode == "recompute" else 100
    tight = Engine(load(name, form), num_blocks=26, num_host_blocks=hosts, policy=policy).run(all_kinds())
    assert tight.stats.preemptions > 0
    assert_same(tight, ample(name, form))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_drafts_change_no_bit(name: str, load: Callable[..., PagedRunner], ample: Callable[..., Answers]) -> None:
    drafted = Engine(load(name), speculation=Speculation(NgramProposer(least=1), FREE, 4)).run(all_kinds())
    assert drafted.stats.drafted_tokens > 30
    assert_same(drafted, ample(name))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_a_draft_that_is_the_target_is_always_right(
    name: str, load: Callable[..., PagedRunner], cpu_pair: Callable[[str], Pair]
) -> None:
    asked = [one for one in all_kinds() if one.sampling.beam is None]
    runner = load(name, speculate=f"draft:{cpu_pair(name).folder}")
    drafted = Engine(runner, speculation=Speculation(ModelProposer(), FREE, 3)).run(asked)
    assert_same(drafted, Engine(runner).run(asked))
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 30


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_a_token_keeps_one_row_a_layer(name: str, load: Callable[..., PagedRunner]) -> None:
    """A latent of 24 values and a key of 8, four bytes each, in three layers, whatever the heads."""
    assert load(name).layout.block_bytes == 16 * 3 * (24 + 8) * 4


def chosen(scores: list[Logprob | None] | None) -> list[float]:
    return [score.logprob for score in scores or [] if score is not None]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_cache_in_eight_bits_keeps_the_rotated_key_whole(kv_dtype: Any, load: Callable[..., PagedRunner]) -> None:
    """24 codes, their scale, and a key of 8 values of four bytes each. Cuts, company and preemption change no bit, and
    rounding little."""
    name = "minicpm3"  # without experts, which rounding would choose otherwise
    runner, exact = load(name, kv_dtype=kv_dtype), load(name)
    assert runner.layout.block_bytes == 16 * 3 * (24 + 4 + 8 * 4)
    asked = all_kinds()
    whole = Engine(runner).run(asked)
    assert_same(Engine(runner, token_budget=7).run(asked), whole)
    for hosts in (0, 100):
        policy = PreemptionPolicy("swap" if hosts else "recompute")
        tight = Engine(runner, num_blocks=26, num_host_blocks=hosts, policy=policy).run(asked)
        assert tight.stats.preemptions > 0
        assert_same(tight, whole)
    scored = [request("scored", prompt(60), max_tokens=1, prompt_logprobs=1, logprobs=1)]
    found, expected = (chosen(Engine(each).run(scored).prompt_logprobs["scored"]) for each in (runner, exact))
    assert found != expected
    assert found == pytest.approx(expected, abs=0.03 if kv_dtype == "int8" else 0.1)


def test_rows_that_a_gpu_does_not_take_in_eight_bits_are_refused(load: Callable[..., PagedRunner]) -> None:
    model = load("deepseek_v3").model
    assert isinstance(model, Decoder)
    with pytest.raises(UnsupportedModel, match=r"'deepseek_v3' keeps latent rows of 24 \+ 8.*leave --kv-dtype out"):
        check_kv_dtype("int8", torch.device("cuda"), torch.bfloat16, "deepseek_v3", model.config)


@pytest.mark.parametrize("ranks", [3, 8])
def test_ranks_that_do_not_divide_the_heads_are_refused(ranks: int, cpu_pair: Callable[[str], Pair]) -> None:
    folder = str(cpu_pair("deepseek_v3").folder)
    with pytest.raises(ModelError, match=rf"4 attention heads .*among {ranks} ranks"):
        load_runner(ModelOptions(model=folder, device="cpu", num_blocks=9, tensor_parallel=ranks))
