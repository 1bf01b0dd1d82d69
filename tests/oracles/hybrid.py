"""Tiny members of the families with recurrent layers."""

from __future__ import annotations

from typing import Any

from transformers import Lfm2Config, PreTrainedConfig

from .tiny import COMMON

FOUR: dict[str, Any] = {**COMMON, "num_hidden_layers": 4}

HYBRID: dict[str, PreTrainedConfig] = {
    "lfm2": Lfm2Config(**FOUR, layer_types=["conv", "conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False),
    "lfm2-adjusted": Lfm2Config(
        **{**FOUR, "tie_word_embeddings": False},
        layer_types=["full_attention", "conv", "conv", "full_attention"],
        conv_bias=True,
        conv_L_cache=5,
        block_multiple_of=24,
        block_ffn_dim_multiplier=1.3,
    ),
}
