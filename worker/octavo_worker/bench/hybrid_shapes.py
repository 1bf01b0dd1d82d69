"""Public shapes of models with recurrent layers, with the fields that vLLM reads beside those of transformers."""

from __future__ import annotations

from typing import Any

_QWEN3_5 = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 256,
    "vocab_size": 248_320,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "mamba_ssm_dtype": "float32",
}
_GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "position_embedding_type": "nope",
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "embedding_multiplier": 12,
    "attention_multiplier": 0.0078125,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "vocab_size": 100_352,
    "max_position_embeddings": 131_072,
}
_NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "dtype": "bfloat16",
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "mlp_hidden_act": "relu2",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 128,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 131_072,
    "max_position_embeddings": 262_144,
}


def _qwen3_5_moe(layers: int) -> dict[str, Any]:
    return _QWEN3_5 | {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "tie_word_embeddings": False,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "num_hidden_layers": layers,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }


def _granite(layers: int, **sizes: Any) -> dict[str, Any]:
    """Layers 5, 15, 25, ... have attention."""
    kinds = ["attention" if layer % 10 == 5 else "mamba" for layer in range(layers)]
    return _GRANITE | {"num_hidden_layers": layers, "layer_types": kinds} | sizes


_GRANITE_SMALL = {
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_n_heads": 128,
    "logits_scaling": 16,
}
HYBRID_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": _QWEN3_5
    | {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 24,
        "linear_num_value_heads": 16,
    },
    "qwen3.5-4b": _QWEN3_5
    | {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 32,
        "linear_num_value_heads": 32,
    },
    "qwen3.5-9b": _QWEN3_5
    | {
        "tie_word_embeddings": False,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 32,
        "linear_num_value_heads": 32,
    },
    "olmo-hybrid-7b": {
        field: _QWEN3_5[field] for field in ("dtype", "hidden_act", "rms_norm_eps", "linear_conv_kernel_dim")
    }
    | {
        "architectures": ["OlmoHybridForCausalLM"],
        "model_type": "olmo_hybrid",
        "hidden_size": 3840,
        "intermediate_size": 11_008,
        "num_attention_heads": 30,
        "num_key_value_heads": 30,
        "num_hidden_layers": 32,
        "linear_num_key_heads": 30,
        "linear_num_value_heads": 30,
        "linear_key_head_dim": 96,
        "linear_value_head_dim": 192,
        "linear_allow_neg_eigval": True,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 8,
        "vocab_size": 100_352,
        "max_position_embeddings": 65_536,
        "rope_parameters": None,
        "tie_word_embeddings": False,
    },
    "qwen3.5-35b-a3b": _qwen3_5_moe(40),
    "qwen3.5-35b-a3b-20": _qwen3_5_moe(20),
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "dtype": "bfloat16",
        "hidden_size": 2048,
        "block_ff_dim": 12_288,
        "block_multiple_of": 256,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 16,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "conv_L_cache": 3,
        "block_dim": 2048,  # the width, as vLLM reads it
        "conv_dim": 2048,
        "norm_eps": 1e-5,
        "vocab_size": 65_536,
        "max_position_embeddings": 128_000,
        "rope_theta": 1e6,
        "tie_embedding": True,
    },
    "granite-4-h-tiny": _granite(
        40,
        hidden_size=1536,
        intermediate_size=512,
        shared_intermediate_size=1024,
        num_local_experts=64,
        num_experts_per_tok=6,
        num_attention_heads=12,
        num_key_value_heads=4,
        mamba_n_heads=48,
        logits_scaling=6,
    ),
    "granite-4-h-small": _granite(40, **_GRANITE_SMALL),
    "granite-4-h-small-20": _granite(20, **_GRANITE_SMALL),
    "nemotron-3-nano": _NEMOTRON | {"hybrid_override_pattern": "MEMEM*E" * 5 + "MEMEMEM*E" + "MEMEMEME"},
}
