"""Latent attention, and Gemma 4's heads of 512, on a GPU: octavo's own decoder scores as transformers does, with graphs
as without, whatever moves blocks about, and with `--deterministic` in every company."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import DeepseekV2Config, DeepseekV3Config, PreTrainedConfig

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.expansion import Expansion
from octavo_worker.runner.cuda.runner import CudaRunner

from .drive import Engine, assert_same, request
from .scored import assert_company_changes_nothing, assert_graphs_change_nothing, assert_scores_are_near, requests
from .test_cuda import COMMON, VOCAB, options, random_model

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

FOUR: dict[str, Any] = {**COMMON, "num_key_value_heads": 4}
WIDE: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
NARROW: dict[str, Any] = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "n_shared_experts": 1, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip
MODELS: dict[str, PreTrainedConfig] = {
    "deepseek_v2": DeepseekV2Config(
        **FOUR, **WIDE, **EXPERTS, q_lora_rank=None, topk_method="group_limited_greedy", norm_topk_prob=False
    ),
    "deepseek_v3": DeepseekV3Config(**FOUR, **WIDE, **EXPERTS, q_lora_rank=64),
    "deepseek_v3-narrow": DeepseekV3Config(**FOUR, **NARROW, **EXPERTS, q_lora_rank=64),
}
GEMMA: dict[str, Any] = {
    **COMMON, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 100,
    "head_dim": 64, "global_head_dim": 512,
}  # fmt: skip
if hasattr(transformers, "Glm4MoeLiteConfig"):
    MODELS["glm4_moe_lite"] = transformers.Glm4MoeLiteConfig(**FOUR, **WIDE, **EXPERTS, q_lora_rank=64)
if hasattr(transformers, "YoutuConfig"):
    MODELS["youtu"] = transformers.YoutuConfig(**FOUR, **WIDE, q_lora_rank=64)
if hasattr(transformers, "MiniCPM3Config"):
    MODELS["minicpm3"] = transformers.MiniCPM3Config(**FOUR, **NARROW, q_lora_rank=64, dim_model_base=64)
if hasattr(transformers, "Gemma4TextConfig"):
    MODELS["gemma4"] = transformers.Gemma4TextConfig(
        **GEMMA, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB
    )
    MODELS["gemma4-keys"] = transformers.Gemma4TextConfig(
        **GEMMA, attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0
    )


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(MODELS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    made = load_runner(options(folder))
    assert isinstance(made.model, Decoder)
    return made


@pytest.fixture
def deterministic(folder: Path) -> ModelRunner:
    if folder.name.startswith("gemma4"):
        pytest.skip("--deterministic covers models whose layers have equal numbers of heads")
    return load_runner(options(folder, deterministic=True))


def test_log_probabilities_are_those_of_transformers(runner: ModelRunner, folder: Path) -> None:
    """Every token of prompts and answers counts; what transformers loses in bfloat16 measures what we may lose."""
    assert_scores_are_near(runner, folder)


def test_expanded_prompts_score_as_those_of_transformers(
    runner: ModelRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks, several in a step, beside decodes, and with heads one after the other."""
    if folder.name.startswith("gemma4"):
        pytest.skip("no latent rows")
    assert isinstance(runner, CudaRunner)
    room = runner._room
    assert room is not None
    assert "expanded prompts" in runner.numerics
    monkeypatch.setattr(room, "prices", replace(room.prices, absorbed_pair=1e6, key=0.0))
    attended, attend = [0], Expansion.attend

    def counted(expansion: Expansion, *operands: Any) -> None:
        attended[0] += 1
        attend(expansion, *operands)

    monkeypatch.setattr(Expansion, "attend", counted)
    rng = random.Random(5)
    lengths = (1, 40, 700, 1300, 900, 17, 1500)
    asked = [
        request(str(n), [rng.randrange(VOCAB) for _ in range(n)], max_tokens=12, logprobs=0, prompt_logprobs=0)
        for n in lengths
    ]
    assert_scores_are_near(runner, folder, asked, token_budget=1024)
    assert attended[0] >= 4 * 3  # steps of more than 512 tokens, in each layer
    monkeypatch.setattr(room, "heads_at_once", lambda contexts: 2)
    assert_scores_are_near(runner, folder, asked, token_budget=2000)


def test_graphs_compute_what_launches_one_by_one_do(runner: ModelRunner, folder: Path) -> None:
    assert_graphs_change_nothing(runner, folder)


def test_deterministic_answers_do_not_depend_on_company(deterministic: ModelRunner) -> None:
    assert_company_changes_nothing(deterministic)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_caches_in_eight_bits(folder: Path, kv_dtype: str) -> None:
    """Graphs change nothing, in any row's company; rows that no kernel takes in eight bits are refused."""
    if folder.name.startswith(("deepseek_v3-narrow", "minicpm3")):
        with pytest.raises(UnsupportedModel, match="leave --kv-dtype out"):
            load_runner(options(folder, kv_dtype=kv_dtype))
        return
    assert_graphs_change_nothing(load_runner(options(folder, kv_dtype=kv_dtype)), folder, kv_dtype=kv_dtype)
    if not folder.name.startswith("gemma4"):
        assert_company_changes_nothing(load_runner(options(folder, kv_dtype=kv_dtype, deterministic=True)))


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_changes_nothing(deterministic: ModelRunner, mode: str) -> None:
    runner, every = deterministic, requests(48)
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    short = Engine(runner, num_blocks=90, num_host_blocks=runner.num_host_blocks, policy=policy).run(every)
    assert short.stats.preemptions > 0
    assert_same(short, Engine(runner).run(every))
