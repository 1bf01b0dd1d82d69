"""Public model shapes as configurations: benchmarks fill them with random weights, so nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN3 = {k: v for k, v in _LLAMA.items() if k != "mlp_bias"} | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 28,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
}
_QWEN3_MOE = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "tie_word_embeddings": False,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_QWEN3_5 = _QWEN3 | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "vocab_size": 248_320,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
}
_GPT_OSS = _LLAMA | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "vocab_size": 201_088,
    "max_position_embeddings": 131_072,
    "rope_theta": 150_000.0,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "smollm-135m": _LLAMA
    | {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": 30,
        "head_dim": 64,
        "vocab_size": 49_152,
        "max_position_embeddings": 2048,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": _QWEN3,
    "qwen3-30b-a3b": _QWEN3_MOE | {"num_hidden_layers": 48},
    "qwen3-30b-a3b-24": _QWEN3_MOE | {"num_hidden_layers": 24},
    "qwen3-30b-a3b-8": _QWEN3_MOE | {"num_hidden_layers": 8},
    "qwen3-30b-a3b-3": _QWEN3_MOE | {"num_hidden_layers": 3},
    "gpt-oss-20b": _GPT_OSS
    | {"num_hidden_layers": 24, "num_local_experts": 32, "layer_types": ["sliding_attention", "full_attention"] * 12},
    "gpt-oss-120b": _GPT_OSS
    | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": ["sliding_attention", "full_attention"] * 18},
    "olmoe-1b-7b-4": {k: v for k, v in _LLAMA.items() if k != "mlp_bias"}
    | {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 4,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "vocab_size": 50_304,
        "max_position_embeddings": 4096,
        "rope_theta": 10_000.0,
    },
    "qwen3.5-0.8b": _QWEN3_5
    | {
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
        "norm_eps": 1e-5,
        "vocab_size": 65_536,
        "max_position_embeddings": 128_000,
        "rope_theta": 1e6,
        "tie_embedding": True,
    },
    "llama-8b": _LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
    },
    "llama-70b": _LLAMA
    | {
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 80,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
    },
    "llama-13b": _LLAMA
    | {
        "hidden_size": 5120,
        "intermediate_size": 13_824,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "num_hidden_layers": 40,
        "head_dim": 128,
        "vocab_size": 32_000,
        "max_position_embeddings": 16_384,
        "rope_theta": 10_000.0,
    },
}


def write_shape(name: str, folder: Path) -> Path:
    """Write `folder/name/config.json` and return its folder. Raises ValueError for an unknown name."""
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}: known are {', '.join(SHAPES)}; or give a model folder")
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(SHAPES[name], indent=1))
    return target
