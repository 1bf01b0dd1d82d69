"""Tiny members of the families with recurrent layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Mamba2Config,
    NemotronHConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from .mixed import EXPERTS, FOUR, GROUPED, MULTIPLIED
from .tiny import COMMON, VOCAB

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

MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_chunk_size": 32,
}

NEMOTRON: dict[str, Any] = {
    **{name: value for name, value in COMMON.items() if name != "num_hidden_layers"},
    "head_dim": 24,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 32,
    "mlp_bias": True,
}
FALCON: dict[str, Any] = {**MAMBA, "rope_parameters": {"rope_type": "default", "rope_theta": 900.0}}

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
    "qwen3_5": Qwen3_5TextConfig(**QWEN),
    "qwen3_5-biased": Qwen3_5TextConfig(**WIDE),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**QWEN, **EXPERTS, shared_expert_intermediate_size=48),
    "qwen3_next": Qwen3NextConfig(
        **QWEN, **EXPERTS, shared_expert_intermediate_size=48, decoder_sparse_step=2, norm_topk_prob=False
    ),
    "lfm2_moe": Lfm2MoeConfig(
        **FOUR,
        **EXPERTS,
        num_dense_layers=1,
        routed_scaling_factor=1.7,
        layer_types=["conv", "conv", "full_attention", "conv"],
    ),
    "lfm2_moe-even": Lfm2MoeConfig(
        **FOUR,
        **EXPERTS,
        num_dense_layers=0,
        use_expert_bias=False,
        norm_topk_prob=False,
        layer_types=["full_attention", "conv", "conv", "full_attention"],
    ),
    "olmo_hybrid": OlmoHybridConfig(**FOUR, rope_parameters=None),
    "olmo_hybrid-rotated": OlmoHybridConfig(
        **FOUR,
        linear_allow_neg_eigval=False,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 900.0},
    ),
    "bamba": BambaConfig(**FOUR, **MAMBA, attn_layer_indices=[1]),
    "granitemoehybrid": GraniteMoeHybridConfig(
        **FOUR,
        **MAMBA,
        **MULTIPLIED,
        num_local_experts=0,
        shared_intermediate_size=48,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        position_embedding_type="rope",
    ),
    "granitemoehybrid-experts": GraniteMoeHybridConfig(
        **{**FOUR, "intermediate_size": 32},
        **MAMBA,
        **MULTIPLIED,
        num_local_experts=8,
        num_experts_per_tok=3,
        shared_intermediate_size=48,
        mamba_conv_bias=False,
        mamba_proj_bias=True,
        time_step_limit=(0.01, 0.5),
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    ),
    "mamba2": Mamba2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        num_heads=8,
        head_dim=16,
        state_size=12,
        n_groups=2,
        num_hidden_layers=3,
        chunk_size=32,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
        residual_in_fp32=False,
    ),
    "nemotron_h": NemotronHConfig(
        **NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]
    ),
    "nemotron_h-experts": NemotronHConfig(
        **{**NEMOTRON, "mlp_bias": False},
        **GROUPED,
        moe_shared_expert_intermediate_size=48,
        use_conv_bias=False,
        time_step_min=0.3,
        layers_block_type=["moe", "linear_attention", "full_attention", "moe", "linear_attention"],
    ),
    "falcon_h1": FalconH1Config(**FOUR, **FALCON, mamba_d_ssm=128),
    "falcon_h1-normed": FalconH1Config(
        **FOUR,
        **FALCON,
        mamba_d_ssm=128,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        embedding_multiplier=3.0,
        lm_head_multiplier=0.7,
        mlp_multipliers=[0.8, 1.3],
        key_multiplier=0.6,
        attention_in_multiplier=1.2,
        attention_out_multiplier=0.9,
        ssm_in_multiplier=1.1,
        ssm_out_multiplier=0.8,
        ssm_multipliers=[0.7, 1.3, 0.9, 1.1, 0.6],
    ),
    "falcon_h1-before": FalconH1Config(**FOUR, **FALCON, mamba_d_ssm=128, mamba_rms_norm=True),
}

LIMITED = {"granitemoehybrid-experts", "nemotron_h-experts"}
"""Members whose time steps have limits, which transformers keeps in prompts alone, not in decodes."""
SEEING: dict[str, Any] = {
    "depth": 1, "num_heads": 2, "patch_size": 14, "in_channels": 3, "spatial_merge_size": 2, "hidden_size": 16,
    "intermediate_size": 24, "out_hidden_size": 64, "num_position_embeddings": 4,
}  # fmt: skip
SECTIONED: dict[str, Any] = {**QWEN, "rope_parameters": {**QWEN["rope_parameters"], "mrope_section": [1, 1, 0]}}
HYBRID_WRAPPED: dict[str, PreTrainedConfig] = {
    "qwen3_5": Qwen3_5Config(text_config=SECTIONED, vision_config=SEEING),
    "qwen3_5_moe": Qwen3_5MoeConfig(
        text_config={**SECTIONED, **EXPERTS, "shared_expert_intermediate_size": 48}, vision_config=SEEING
    ),
}


def mend_convolutions(folder: Path, config: OlmoHybridConfig) -> None:
    """Cut OLMo's convolutions where releases have them cut: transformers 5.24 saves three even parts, which it joins
    again."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    for name in [name for name in tensors if name.endswith("q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{part}_conv1d") for part in ("q", "k", "v")]
        whole = torch.cat([tensors[each] for each in names])
        tensors |= {each: part.clone() for each, part in zip(names, whole.split([keys, keys, values]), strict=True)}
    save_file(tensors, file, {"format": "pt"})
