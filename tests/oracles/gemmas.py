"""Tiny members of Gemma 4: layers of two widths, keys that are values, layers that share, inputs of layers, experts."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PreTrainedConfig

from .tiny import COMMON, VOCAB

SIX: dict[str, Any] = {
    **COMMON,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 24,
    "head_dim": 16,
    "global_head_dim": 32,
    "final_logit_softcapping": 9.0,
}
TWO: dict[str, Any] = {**SIX, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
KEYS: dict[str, Any] = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
INPUTS: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
SHARED: dict[str, Any] = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 64,
    "hidden_size_per_layer_input": 0,
}

VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 8,
}
SOUND: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [4, 4],
    "output_proj_dims": 16,
}

GEMMAS4: dict[str, PreTrainedConfig] = {}
GEMMAS4_WRAPPED: dict[str, PreTrainedConfig] = {}
if hasattr(transformers, "Gemma4UnifiedTextConfig"):  # not in 5.17, the oldest that is supported
    GEMMAS4 |= {
        "gemma4": transformers.Gemma4TextConfig(**SIX, **INPUTS, **SHARED),
        "gemma4-inputs": transformers.Gemma4TextConfig(**TWO, **INPUTS, tie_word_embeddings=False),
        "gemma4-keys": transformers.Gemma4TextConfig(**SIX, **KEYS, hidden_size_per_layer_input=0, attention_bias=True),
        "gemma4-mixture": transformers.Gemma4TextConfig(**SIX, **KEYS, **EXPERTS),
        "gemma4_unified": transformers.Gemma4UnifiedTextConfig(**SIX, **KEYS, **SHARED),
    }
    GEMMAS4_WRAPPED |= {
        "gemma4": transformers.Gemma4Config(
            text_config=GEMMAS4["gemma4"].to_dict() | {"pad_token_id": 0}, vision_config=VISION, audio_config=SOUND
        ),
        "gemma4-mixture": transformers.Gemma4Config(
            text_config=GEMMAS4["gemma4-mixture"].to_dict() | {"pad_token_id": 0}, vision_config=VISION
        ),
        "gemma4_unified": transformers.Gemma4UnifiedConfig(
            text_config=GEMMAS4["gemma4_unified"].to_dict() | {"pad_token_id": 0},
            vision_config={"mm_embed_dim": 16, "mm_posemb_size": 8, "output_proj_dims": 16},
            audio_config={"audio_embed_dim": 16},
        ),
    }
