"""Mixtures of experts on a GPU, on octavo's own decoder: log-probabilities as transformers computes them, the same
answers with graphs as without, and with `--deterministic` in every company."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from released_gpt_oss import CONFIG, released
from transformers import (
    Glm4MoeConfig,
    GraniteMoeConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from octavo_kernels import ops
from octavo_kernels.products.weights import Activations, Codes
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import OnlineQuantization
from octavo_worker.contract.step import ModelRunner
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.layers.linear import Dense
from octavo_worker.model.layers.quantised import CodedExperts

from .drive import Engine, assert_same, request
from .scored import assert_company_changes_nothing, assert_graphs_change_nothing, assert_scores_are_near, requests
from .test_cuda import COMMON, logprobs, options, random_model

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 96, "decoder_sparse_step": 1}
MODELS: dict[str, PreTrainedConfig] = {
    "qwen3_moe": Qwen3MoeConfig(**COMMON, **EXPERTS, head_dim=64, norm_topk_prob=True, mlp_only_layers=[1]),
    "qwen2_moe": Qwen2MoeConfig(**COMMON, **EXPERTS, shared_expert_intermediate_size=160),
    "mixtral": MixtralConfig(**COMMON, num_local_experts=8, num_experts_per_tok=2),
    "granitemoe": GraniteMoeConfig(**COMMON, num_local_experts=8, num_experts_per_tok=3),
    "glm4_moe": Glm4MoeConfig(
        **COMMON, n_routed_experts=32, num_experts_per_tok=6, moe_intermediate_size=64, n_group=4, topk_group=2,
        n_shared_experts=1, first_k_dense_replace=1, head_dim=64,
    ),
}  # fmt: skip
if hasattr(transformers, "Gemma4TextConfig"):
    MODELS["gemma4"] = transformers.Gemma4TextConfig(
        **{**COMMON, "num_hidden_layers": 4}, layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=100, head_dim=64, global_head_dim=64, hidden_size_per_layer_input=0, enable_moe_block=True,
        num_experts=16, top_k_experts=4, moe_intermediate_size=96,
    )  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(MODELS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    made = load_runner(options(folder))
    assert isinstance(made.model, Decoder)
    return made


def test_log_probabilities_are_those_of_transformers(runner: ModelRunner, folder: Path) -> None:
    """Every token of prompts and answers counts; what transformers loses in bfloat16 measures what we may lose. One in
    ten takes other experts than in float32, and is as far off by chance: test_near_ties.py leaves these out."""
    assert_scores_are_near(runner, folder)


def test_graphs_compute_what_launches_one_by_one_do(runner: ModelRunner, folder: Path) -> None:
    assert_graphs_change_nothing(runner, folder)


def test_deterministic_answers_do_not_depend_on_company(folder: Path) -> None:
    assert_company_changes_nothing(load_runner(options(folder, deterministic=True)))


@pytest.mark.parametrize(
    ("kind", "error", "form"), [("int4", 0.15, Codes.INT4), ("int8", 0.012, Codes.INT8), ("fp8", 0.04, Codes.FP8)]
)
def test_quantised_experts_are_read_as_codes(
    kind: OnlineQuantization, error: float, form: Codes, tmp_path: Path
) -> None:
    """And are as near to what they were as their form allows."""
    folder = random_model(MODELS["qwen3_moe"], tmp_path)
    plain, runner = load_runner(options(folder)), load_runner(options(folder, quantization=kind))
    assert runner.quantization
    for one, other in zip(decoder_of(plain).mixtures, decoder_of(runner).mixtures, strict=True):
        for exact, coded in ((one.up, other.up), (one.down, other.down)):
            assert isinstance(exact, Dense)
            assert isinstance(coded, CodedExperts)
            assert coded.weight.scheme[0::2] == (form, Activations.AS_GIVEN)
            off = (ops.copy_of(coded.weight, torch.float32) - exact.weight.float()).norm() / exact.weight.float().norm()
            assert 0 < off < error
    Engine(runner).run(requests(8))


def decoder_of(runner: ModelRunner) -> Decoder:
    assert isinstance(runner.model, Decoder)
    return runner.model


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_experts_in_few_bits_answer_as_on_a_cpu(kind: OnlineQuantization, tmp_path: Path) -> None:
    """Four bits nearer than as in 16 bits, by far: activations stay as they are."""
    folder = random_model(MODELS["qwen3_moe"], tmp_path)
    on_cpu = options(folder, quantization=kind, device="cpu", host_cache_bytes=0)
    asked = requests(6, scored=True)
    theirs, ours, plain = (
        scores_of(load_runner(each), asked) for each in (on_cpu, options(folder, quantization=kind), options(folder))
    )
    off, apart = (ours - theirs).abs().mean(), (plain - theirs).abs().mean()
    assert off < (0.5 if kind == "int4" else 1.3) * apart


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_deterministic_answers_of_experts_in_few_bits(kind: OnlineQuantization, tmp_path: Path) -> None:
    folder = random_model(MODELS["qwen3_moe"], tmp_path)
    runner = load_runner(options(folder, quantization=kind, deterministic=True))
    every = requests(24)
    together = Engine(runner).run(every)
    assert_same(Engine(runner, token_budget=90).run(every), together)
    engine = Engine(runner)
    for one in every[::6]:
        assert engine.run([one]).tokens[one.id] == together.tokens[one.id]


def test_graphs_of_experts_in_few_bits(tmp_path: Path) -> None:
    folder = random_model(MODELS["qwen3_moe"], tmp_path)
    runner, alone = (load_runner(options(folder, quantization="int4", cuda_graphs=graphs)) for graphs in (True, False))
    for one in requests(6):
        assert_same(Engine(runner).run([one]), Engine(alone).run([one]))


def scores_of(runner: ModelRunner, asked: Sequence[AddRequest]) -> torch.Tensor:
    """Log-probabilities of all prompts."""
    answers = Engine(runner, token_budget=200).run(asked)
    return torch.tensor([score.logprob for one in asked for score in answers.prompt_logprobs[one.id][1:]])


def test_gpt_oss_loads_as_it_is_released(tmp_path: Path) -> None:
    oracle = released(tmp_path)
    runner = load_runner(options(tmp_path))
    assert isinstance(runner.model, Decoder)
    assert runner.quantization == "fp4g32"
    assert all(isinstance(each, CodedExperts) for m in runner.model.mixtures for each in (m.up, m.down))
    prompt = [random.Random(2).randrange(CONFIG.vocab_size) for _ in range(90)]
    found = scores_of(runner, [request("a", prompt, max_tokens=1, prompt_logprobs=0)])
    wanted, rounded = (
        logprobs(model, prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        for model in (oracle, copy.deepcopy(oracle).bfloat16())
    )
    assert (found - wanted).abs().mean() <= 1.5 * (rounded - wanted).abs().mean()
