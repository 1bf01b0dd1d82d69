"""Public model shapes as configurations: benchmarks fill them with random weights, so nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo_worker.bench.hybrid_shapes import HYBRID_SHAPES

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
_GLM_FLASH = {k: v for k, v in _LLAMA.items() if k != "mlp_bias"} | {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "hidden_size": 2048,
    "intermediate_size": 10_240,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.8,
    "vocab_size": 154_880,
    "max_position_embeddings": 131_072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
_GEMMA = {
    "dtype": "bfloat16",
    "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GEMMA4 = _GEMMA | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "final_logit_softcapping": 30.0,
    "vocab_size": 262_144,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 131_072,
}


def _glm_flash(layers: int) -> dict[str, Any]:
    return _GLM_FLASH | {
        "num_hidden_layers": layers,
        "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
        "first_k_dense_replace": 1,  # the same, as vLLM reads it
    }


def _gemma(common: dict[str, Any], layers: int, **sizes: Any) -> dict[str, Any]:
    """Every sixth layer sees all tokens."""
    kinds = ["full_attention" if n % 6 == 5 else "sliding_attention" for n in range(layers)]
    return common | {"num_hidden_layers": layers, "layer_types": kinds} | sizes


_GEMMA4_31B = {
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
}
_GEMMA3 = _GEMMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 168,
    "sliding_window": 1024,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    },
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
    "glm-4.7-flash": _glm_flash(47),
    "glm-4.7-flash-12": _glm_flash(12),
    "gemma4-e4b": _gemma(
        _GEMMA4,
        42,
        hidden_size=2560,
        intermediate_size=10_240,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_kv_shared_layers=18,
        hidden_size_per_layer_input=256,
        sliding_window=512,
    ),
    "gemma4-26b-a4b": _gemma(
        _GEMMA4,
        30,
        hidden_size=2816,
        intermediate_size=2112,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "gemma3-27b": _gemma(
        _GEMMA3,
        62,
        hidden_size=5376,
        intermediate_size=21_504,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=128,
    ),
    "gemma4-31b": _gemma(_GEMMA4, 60, **_GEMMA4_31B),
    "gemma4-31b-30": _gemma(_GEMMA4, 30, **_GEMMA4_31B),
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
    **HYBRID_SHAPES,
}


def write_shape(name: str, folder: Path) -> Path:
    """Write `folder/name/config.json` and return its folder. Raises ValueError for an unknown name."""
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}: known are {', '.join(SHAPES)}; or give a model folder")
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(SHAPES[name], indent=1))
    return target
