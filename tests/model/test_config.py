"""Hugging Face configs as the decoder's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.families import decoder_config

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 512}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 128,
}


def described(config: PreTrainedConfig, max_model_len: int | None = None) -> DecoderConfig:
    result = decoder_config(config, max_model_len)
    assert result is not None
    return result


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_table_is_transformers(rope: dict[str, object]) -> None:
    config = LlamaConfig(**SMALL, rope_parameters=rope)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(512)[None])
    table = described(config).ropes["rope"].cos_sin(512)
    assert torch.allclose(table[:, :8], cos[0, :, :8], atol=1e-6)
    assert torch.allclose(table[:, 8:], sin[0, :, :8], atol=1e-6)


@pytest.mark.parametrize(
    ("config", "embedding"),
    [
        (LlamaConfig(**SMALL, partial_rotary_factor=0.5), LlamaRotaryEmbedding),
        (Phi3Config(**SMALL, partial_rotary_factor=0.5, pad_token_id=None), Phi3RotaryEmbedding),
    ],
    ids=["llama", "phi3"],
)
def test_a_partial_rotary_factor_counts_where_the_family_has_one(config: PreTrainedConfig, embedding: Any) -> None:
    assert config.rope_parameters["partial_rotary_factor"] == 0.5
    cos, sin = embedding(config)(torch.zeros(1), torch.arange(512)[None])
    table = described(config).ropes["rope"].cos_sin(512)
    assert table.shape == cos[0].shape
    half = table.shape[1] // 2
    assert torch.allclose(table[:, :half], cos[0, :, :half], atol=1e-6)
    assert torch.allclose(table[:, half:], sin[0, :, :half], atol=1e-6)


@pytest.mark.parametrize("length", [128, 129, None])
def test_longrope_factors_follow_the_context_served(length: int | None) -> None:
    config = Phi3Config(**SMALL, rope_parameters=dict(LONG), pad_token_id=None)
    longest = torch.tensor([[(length or 512) - 1]])
    cos, _ = Phi3RotaryEmbedding(config)(torch.zeros(1), longest)
    table = described(config, length).ropes["rope"].cos_sin(512)
    assert torch.allclose(table[longest[0, 0], :8], cos[0, 0, :8], atol=1e-6)


def test_windows_slide_where_the_config_says() -> None:
    def windows(config: PreTrainedConfig) -> list[int]:
        return [layer.attention.sliding_window for layer in described(config).layers]

    assert windows(MistralConfig(**SMALL, sliding_window=32)) == [32] * 4
    assert windows(MistralConfig(**SMALL, sliding_window=None)) == [0] * 4
    assert windows(Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=3)) == [0, 0, 0, 8]
    assert windows(Qwen2Config(**SMALL, use_sliding_window=False, sliding_window=8)) == [0] * 4


def test_gemma3_layers_rotate_with_their_own_frequencies() -> None:
    config = described(Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8, sliding_window_pattern=2))
    assert [layer.attention.rope for layer in config.layers] == ["sliding_attention", "full_attention"] * 2
    fastest = {kind: rope.inv_freq[1].item() for kind, rope in config.ropes.items()}
    assert fastest["sliding_attention"] == pytest.approx(10_000 ** (-2 / 16))
    assert fastest["full_attention"] == pytest.approx(1_000_000 ** (-2 / 16))


def test_a_window_counts_where_the_family_has_one() -> None:
    windows = {layer.attention.sliding_window for layer in described(MistralConfig(**SMALL, sliding_window=16)).layers}
    assert windows == {16}
    stray = LlamaConfig(**SMALL)
    stray.sliding_window = 16
    assert {layer.attention.sliding_window for layer in described(stray).layers} == {0}


def test_other_architectures_and_odd_variants_take_the_other_route() -> None:
    assert decoder_config(BloomConfig()) is None
    assert decoder_config(OPTConfig(word_embed_proj_dim=32, **SMALL)) is None
    assert decoder_config(OPTConfig(do_layer_norm_before=False, **SMALL)) is None


@pytest.mark.parametrize("activation", ["relu", "mish"])
def test_a_gate_without_a_kernel_is_refused(activation: str) -> None:
    with pytest.raises(UnsupportedModel, match=activation):
        decoder_config(LlamaConfig(**SMALL, hidden_act=activation))


def test_bidirectional_gemma_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="both directions"):
        decoder_config(Gemma3TextConfig(**SMALL, use_bidirectional_attention=True))
