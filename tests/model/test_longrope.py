"""LongRoPE: one choice of factors for all sequences of a worker, the same on both routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config

from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import ModelError
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.runner.paged import PagedRunner

ORIGINAL, CONTEXT = 64, 256
ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 900.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0],
    "original_max_position_embeddings": ORIGINAL,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phi3")
    config = Phi3Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=ROPE,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(path)
    return path


def options(folder: Path, **fields: object) -> ModelOptions:
    fields = {"device": "cpu", "dtype": "float32", "num_blocks": 33, "threads": 1, **fields}
    return ModelOptions(model=str(folder), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("decoders", [True, False])
@pytest.mark.parametrize(
    ("fields", "factors", "longest"),
    [
        ({}, "long", CONTEXT),
        ({"max_model_len": ORIGINAL}, "short", ORIGINAL),
        ({"max_model_len": ORIGINAL + 1}, "long", ORIGINAL + 1),
        ({"max_model_len": ORIGINAL, "longrope": "long"}, "long", ORIGINAL),
        ({"longrope": "short"}, "short", ORIGINAL),
    ],
)
def test_the_choice_holds_on_both_routes(
    folder: Path, decoders: bool, fields: dict[str, object], factors: str, longest: int
) -> None:
    model: Any
    model, length = load_model(options(folder, **fields), decoders=decoders)
    assert (model.factors, length) == (factors, longest)
    runner = PagedRunner(model, CacheConfig(33, 16), length)
    assert runner.numerics.endswith(f" {factors} factors")
    if decoders:
        frequencies = model.config.ropes["rope"].inv_freq
    else:
        rotary = model.model.model.rotary_emb
        rotary(torch.zeros(1), torch.tensor([[0]]))  # a short sequence would choose the short ones
        frequencies = rotary.inv_freq
    exponents = torch.arange(0, 16, 2, dtype=torch.float32) / 16
    assert torch.allclose(frequencies, 1 / (torch.tensor(ROPE[f"{factors}_factor"]) * 900.0**exponents))


def test_short_factors_of_a_longer_context_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="--longrope short holds for 64 tokens"):
        load_model(options(folder, longrope="short", max_model_len=ORIGINAL + 1))
