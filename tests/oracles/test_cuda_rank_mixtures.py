"""Mixtures on two GPUs: MiniMax M2 under norms of all heads, in blocks of FP8, too, DeepSeek V3 over latent rows, and
Nemotron-H's experts without a gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import MiniMaxM2Config, PreTrainedConfig
from two_gpus import TWO_GPUS

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ExpertsOfRanks
from octavo_worker.contract.step import ModelRunner

from .drive import Engine, assert_same
from .hybrid_wide import WIDE
from .scored import assert_company_changes_nothing, assert_scores_are_near, requests
from .test_cuda import COMMON, options, random_model
from .test_cuda_latent import MODELS as LATENT
from .test_cuda_ranks import on_two

pytestmark = TWO_GPUS

MINIMAX = MiniMaxM2Config(
    **COMMON, head_dim=64, num_local_experts=16, num_experts_per_tok=4,
    rope_parameters={"rope_theta": 900.0, "partial_rotary_factor": 0.5},
)  # fmt: skip
MODELS: dict[str, PreTrainedConfig] = {
    "minimax_m2": MINIMAX, "deepseek_v3": LATENT["deepseek_v3"], "nemotron_h": WIDE["nemotron_h-experts"],
}  # fmt: skip
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(MODELS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("experts", ["split", "whole"])
def test_log_probabilities_are_those_of_transformers(experts: ExpertsOfRanks, folder: Path) -> None:
    with on_two(options(folder, experts=experts)) as runner:
        assert_scores_are_near(runner, folder)


def test_graphs_compute_what_launches_one_by_one_do(folder: Path) -> None:
    with on_two(options(folder)) as runner, on_two(options(folder, cuda_graphs=False)) as alone:
        for one in requests(8):
            assert_same(Engine(runner).run([one]), Engine(alone).run([one]))


def test_deterministic_answers_do_not_depend_on_company(folder: Path) -> None:
    with on_two(options(folder, deterministic=True)) as runner:
        assert_company_changes_nothing(runner)


def test_parts_of_blocks_of_fp8_are_those_of_the_whole(tmp_path: Path) -> None:
    """Codes are drawn as a whole, and each rank has its blocks. Rows of x become codes by groups, which are whole."""
    MINIMAX.save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": BLOCKS}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    asked = options(tmp_path, load_format="dummy")
    wanted = scores(load_runner(asked))
    with on_two(asked) as runner:
        found = scores(runner)
    assert (found - wanted).abs().mean() < 0.02 + 0.1 * wanted.std()


def scores(runner: ModelRunner) -> torch.Tensor:
    """Log-probabilities of the tokens of prompts."""
    answers = Engine(runner, token_budget=200).run(requests(12, scored=True))
    by_prompt = [scores or [] for _, scores in sorted(answers.prompt_logprobs.items())]
    return torch.tensor([score.logprob for scores in by_prompt for score in scores if score is not None])
