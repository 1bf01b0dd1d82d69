"""Layers of several widths, some of which keep nothing: answers are the same however blocks were filled, moved or cut,
and those of transformers in the type in which they are compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.drafts import ModelProposer, NgramProposer, RowTimes, Speculation, StepCosts
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.decoder import Decoder
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Answers, Engine, assert_same, request
from .gemmas import GEMMAS4
from .test_preemption import MixedPolicy
from .zoo import VOCAB

NAMES = list(GEMMAS4)
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8 cache": {"dtype": "bfloat16", "kv_dtype": "int8"},
    "fp8 cache": {"dtype": "float32", "kv_dtype": "fp8"},
    "int8 weights": {"dtype": "bfloat16", "quantization": "int8"},
    "int4 weights": {"dtype": "bfloat16", "quantization": "int4"},
}
FREE = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))
"""Any draft pays."""


@pytest.fixture(scope="module")
def load(cpu_pair: Callable[[str], Pair]) -> Callable[..., PagedRunner]:
    @cache
    def loaded(name: str, form: str = "plain", **more: Any) -> PagedRunner:
        folder: Path = cpu_pair(name).folder
        fixed = {"num_blocks": 257, "host_cache_bytes": 8 << 20, "max_running": 64, "threads": 1}
        runner = load_runner(ModelOptions(model=str(folder), device="cpu", **fixed | FORMS[form] | more))
        assert isinstance(runner, PagedRunner)
        assert isinstance(runner.model, Decoder)
        return runner

    return loaded


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(length + seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def all_kinds() -> list[AddRequest]:
    """Prompts shorter and longer than a window, some of which begin alike."""
    kinds: list[dict[str, Any]] = [
        {"logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0.9, "logprobs": 0},
        {"n": 4, "temperature": 1.0, "logprobs": 0},
        {"n": 2, "beam": BeamOptions(3, 1.0, False), "stop_token_ids": list(range(0, VOCAB, 9))},
        {"temperature": 1.2, "top_p": 0.8},
        {"repetition_penalty": 1.3, "logprobs": 0},
    ]
    first = prompt(40)
    made = []
    for number, kind in enumerate(kinds * 2):
        asked = first[: 8 * number] + prompt(9 + 7 * number, number) if number % 2 else prompt(5 + 11 * number, number)
        made.append(request(str(number), asked, **{"seed": number, "max_tokens": 20} | kind))
    return made


@pytest.fixture(scope="module")
def ample(load: Callable[..., PagedRunner]) -> Callable[..., Answers]:
    @cache
    def run(name: str, form: str = "plain") -> Answers:
        answers = Engine(load(name, form)).run(all_kinds())
        assert answers.stats.preemptions == 0
        assert len({token for tokens in answers.tokens.values() for token in tokens[0]}) > 20
        return answers

    return run


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_cut_anywhere(name: str, load: Callable[..., PagedRunner]) -> None:
    """In chunks of every length from one token on, across a window and several blocks."""
    asked = [request("a", prompt(45), max_tokens=3, prompt_logprobs=1, logprobs=1)]
    whole = Engine(load(name)).run(asked)
    for budget in range(1, 45):
        assert_same(Engine(load(name), token_budget=budget).run(asked), whole)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", NAMES)
def test_a_cached_prefix_of_any_length(name: str, load: Callable[..., PagedRunner]) -> None:
    """Behind a prefix that another request left, an answer is that of an empty cache."""
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
    policy = MixedPolicy() if mode == "mixed" else PreemptionPolicy(mode)
    hosts = 0 if mode == "recompute" else 100
    tight = Engine(load(name, form), num_blocks=26, num_host_blocks=hosts, policy=policy).run(all_kinds())
    assert tight.stats.preemptions > 0
    assert (tight.stats.swapped_out > 0) == (mode != "recompute")
    assert_same(tight, ample(name, form))


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_of_which_most_lies_on_the_host(name: str, load: Callable[..., PagedRunner]) -> None:
    asked = [request("a", prompt(150), max_tokens=30, temperature=0.7, logprobs=1)]
    small = Engine(load(name), num_blocks=6, num_host_blocks=40, policy=PreemptionPolicy("swap")).run(asked)
    assert small.cold_steps > 0
    assert_same(small, Engine(load(name)).run(asked))


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("form", ["plain", "int8 cache", "int4 weights"])
@pytest.mark.parametrize("name", NAMES)
def test_drafts_change_no_bit(
    name: str, form: str, load: Callable[..., PagedRunner], ample: Callable[..., Answers]
) -> None:
    speculation = Speculation(NgramProposer(least=1), FREE, 4)
    drafted = Engine(load(name, form), speculation=speculation).run(all_kinds())
    assert drafted.stats.drafted_tokens > 30
    assert_same(drafted, ample(name, form))


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_draft_that_is_the_target_is_always_right(
    name: str, load: Callable[..., PagedRunner], cpu_pair: Callable[[str], Pair]
) -> None:
    """Its own cache has layers of several widths, too, in blocks that are swapped with the target's."""
    asked = [one for one in all_kinds() if one.sampling.beam is None]
    runner = load(name, speculate=f"draft:{cpu_pair(name).folder}")
    answers = Engine(runner).run(asked)
    tight = {"num_blocks": 16, "num_host_blocks": 200, "reads_host": False, "policy": PreemptionPolicy("swap")}
    for memory in ({}, tight):
        drafted = Engine(runner, speculation=Speculation(ModelProposer(), FREE, 3), **memory).run(asked)
        assert_same(drafted, answers)
        assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 30
        assert (drafted.stats.swapped_out > 0) == bool(memory)


@pytest.mark.full(but=8)
@pytest.mark.parametrize("form", list(FORMS)[2:])
@pytest.mark.parametrize("name", NAMES)
def test_fewer_bits_lose_little(name: str, form: str, load: Callable[..., PagedRunner]) -> None:
    asked = [request("a", prompt(120), max_tokens=1, prompt_logprobs=0)]

    def logprobs(runner: PagedRunner) -> torch.Tensor:
        found = Engine(runner).run(asked).prompt_logprobs["a"]
        assert found is not None
        return torch.tensor([entry.logprob for entry in found if entry is not None])

    rounded, plain = logprobs(load(name, form)), logprobs(load(name))
    assert not torch.equal(rounded, plain)
    assert (rounded - plain).abs().mean() < (0.6 if "int4" in form else 0.15)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_takes_what_its_layers_keep(name: str, load: Callable[..., PagedRunner]) -> None:
    """Four bytes a value, keys and values: two heads of 16 in layers with a window, one or two of 32 in the others, and
    nothing where a layer shares."""
    config = GEMMAS4[name].get_text_config()
    own = config.layer_types[: len(config.layer_types) - config.num_kv_shared_layers]
    wide = 32 * (1 if config.attention_k_eq_v else 2)
    values = sum(wide if kind == "full_attention" else 2 * 16 for kind in own)
    runner = load(name)
    assert runner.window_layout is not None
    assert runner.layout.block_bytes + runner.window_layout.block_bytes == 16 * 4 * 2 * values


@pytest.mark.skipif(not NAMES, reason="not in this transformers")
def test_keys_of_a_layer_that_shares_are_left_aside(cpu_pair: Callable[[str], Pair], tmp_path: Path) -> None:
    """Released files have them."""
    copytree(cpu_pair(NAMES[0]).folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    at = "model.layers.5.self_attn."
    tensors |= {at + name: torch.randn(64, 64) for name in ("k_proj.weight", "v_proj.weight")}
    tensors |= {at + "k_norm.weight": torch.randn(32)}
    save_file(tensors, tmp_path / "model.safetensors")
    asked = [request("a", prompt(30), max_tokens=3, prompt_logprobs=0)]
    options = ModelOptions(model=str(tmp_path), device="cpu", dtype="float32", num_blocks=65, threads=1)
    assert_same(Engine(load_runner(options)).run(asked), Engine(cpu_pair(NAMES[0]).runner).run(asked))
