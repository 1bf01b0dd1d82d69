"""Tiny members of the families with recurrent layers."""

from __future__ import annotations

from typing import Any

from transformers import Lfm2Config, PreTrainedConfig, Qwen3_5TextConfig

from .tiny import COMMON

FOUR: dict[str, Any] = {**COMMON, "num_hidden_layers": 4}
QWEN: dict[str, Any] = {
    **FOUR,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.25},
}
WIDE: dict[str, Any] = {
    **QWEN,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
    "attention_bias": True,
    "tie_word_embeddings": True,
}

HYBRID: dict[str, PreTrainedConfig] = {
    "lfm2": Lfm2Config(**FOUR, layer_types=["conv", "conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False),
    "lfm2-adjusted": Lfm2Config(
        **{**FOUR, "tie_word_embeddings": False}, layer_types=["full_attention", "conv", "conv", "full_attention"],
        conv_bias=True, conv_L_cache=5, block_multiple_of=24, block_ffn_dim_multiplier=1.3,
    ),
    "qwen3_5": Qwen3_5TextConfig(**QWEN),
    "qwen3_5-biased": Qwen3_5TextConfig(**WIDE),
}  # fmt: skip
