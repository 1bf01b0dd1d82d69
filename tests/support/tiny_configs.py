"""Tiny configs of every class of transformers that has a causal language model."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""Values of `model_type`."""

PARTS = ("text_config", "vision_config", "audio_config", "decoder", "text_encoder", "audio_encoder")

SMALL: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"), 96),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("attention_head_size", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_dim"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_top_k", "experts_per_token", "n_group", "topk_group"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), 128),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    "hidden_size_per_layer_input": 0,
    "sliding_window": 32,
}

FULL = ["full_attention", "full_attention"]
LOCAL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 96,
}

ONE_TO_ONE = (
    "axk1",
    "deepseek_v3",
    "dots3_note",
    "dots3_note_text",
    "glm4_moe_lite",
    "minicpm3",
    "sarvam_mla",
    "youtu",
)
"""Families whose code has keys and values for each query head."""

PER_KIND: dict[str, dict[str, Any]] = {
    **{kind: {"num_key_value_heads": 4} for kind in ONE_TO_ONE},
    "blt": {
        "encoder_hash_byte_group_vocab": 64,
        "patcher_config": LOCAL,
        "encoder_config": LOCAL | {"hidden_size_global": 64},
        "decoder_config": LOCAL | {"hidden_size_global": 64},
        "global_config": LOCAL,
    },
    "cohere_compass_text": {"layer_types": FULL},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": 1, "num_experts": 2},
    "lfm2_moe": {"layer_types": FULL},
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16},
    "prophetnet": {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "is_decoder": True},
    "reformer": {"is_decoder": True},
}
"""Values that a family needs beside `SMALL`."""


def tiny(kind: str, **more: Any) -> PreTrainedConfig | None:
    """None for a class that takes none of these sizes."""
    made = CONFIG_MAPPING[kind]
    try:
        default = made()
        parts = {name: getattr(default, name, None) for name in PARTS}
        asked: dict[str, Any] = {n: _small(part) for n, part in parts.items() if isinstance(part, PreTrainedConfig)}
        return made(**(asked | _small(default) | PER_KIND.get(kind, {}) | more))
    except Exception:  # classes of configs check their values, each in its own way
        return None


def _small(config: PreTrainedConfig) -> dict[str, int]:
    values, aliases = config.to_dict(), config.attribute_map or {}
    names = SMALL.keys() & {*values, *aliases}
    asked = {name for name in names if not isinstance(getattr(type(config), name, None), property)}
    return {name: SMALL[name] for name in asked if type(values.get(aliases.get(name, name))) is int}
