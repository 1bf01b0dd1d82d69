"""Members of the families with recurrent layers as small as a GPU's kernels take them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

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
    PreTrainedModel,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from .hybrid import mend_convolutions
from .zoo import build

VOCAB, CONTEXT = 211, 2048
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 96}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
THREE_OF_FOUR = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
QWEN: dict[str, Any] = {
    **COMMON,
    **DELTA,
    "head_dim": 64,
    "layer_types": THREE_OF_FOUR,
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.25},
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4, "mamba_d_head": 64, "mamba_n_groups": 2, "mamba_d_state": 128, "mamba_chunk_size": 32,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    **COMMON, **MAMBA, "embedding_multiplier": 3.0, "logits_scaling": 1.5, "residual_multiplier": 0.7,
    "attention_multiplier": 0.2, "layer_types": THREE_OF_FOUR, "shared_intermediate_size": 96,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    **{name: value for name, value in COMMON.items() if name != "num_hidden_layers"}, "head_dim": 64,
    "mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 2, "chunk_size": 32,
}  # fmt: skip
FALCON: dict[str, Any] = {
    **COMMON, **MAMBA, "mamba_d_ssm": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
}  # fmt: skip

WIDE: dict[str, PreTrainedConfig] = {
    "lfm2": Lfm2Config(
        **COMMON, layer_types=["conv", "conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False
    ),
    "lfm2_moe": Lfm2MoeConfig(
        **COMMON, **EXPERTS, num_dense_layers=1, layer_types=["conv", "conv", "full_attention", "conv"]
    ),
    "qwen3_5": Qwen3_5TextConfig(**QWEN),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**QWEN, **EXPERTS, shared_expert_intermediate_size=160),
    "qwen3_next": Qwen3NextConfig(**QWEN, **EXPERTS, shared_expert_intermediate_size=160, decoder_sparse_step=2),
    "olmo_hybrid": OlmoHybridConfig(
        **{**COMMON, **DELTA, "linear_key_head_dim": 96, "linear_value_head_dim": 192},
        layer_types=THREE_OF_FOUR,
        rope_parameters=None,
    ),
    "bamba": BambaConfig(**COMMON, **MAMBA, attn_layer_indices=[1]),
    "granitemoehybrid": GraniteMoeHybridConfig(**GRANITE, num_local_experts=0, position_embedding_type="rope"),
    "granitemoehybrid-experts": GraniteMoeHybridConfig(
        **{**GRANITE, "intermediate_size": 96}, num_local_experts=8, num_experts_per_tok=3
    ),
    "mamba2": Mamba2Config(
        vocab_size=VOCAB,
        hidden_size=128,
        num_heads=4,
        head_dim=64,
        state_size=128,
        n_groups=1,
        num_hidden_layers=3,
        chunk_size=32,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
        residual_in_fp32=False,
    ),
    "nemotron_h": NemotronHConfig(
        **NEMOTRON,
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
    ),
    "nemotron_h-experts": NemotronHConfig(
        **NEMOTRON,
        n_routed_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=80,
        moe_shared_expert_intermediate_size=160,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        layers_block_type=["moe", "linear_attention", "full_attention", "moe", "linear_attention"],
    ),
    "falcon_h1": FalconH1Config(**FALCON),
    "falcon_h1-rows": FalconH1Config(**{**FALCON, "mamba_d_state": 256, "mamba_n_groups": 1}),
    "falcon_h1-normed": FalconH1Config(
        **FALCON, mamba_rms_norm=True, mamba_norm_before_gate=False, ssm_multipliers=[0.7, 1.3, 0.9, 1.1, 0.6]
    ),
}


def save_rounded(name: str, folder: Path) -> PreTrainedModel:
    """Saves a model with random weights of bfloat16. Returns it in float32, with the same weights."""
    model = build(name, WIDE[name], width=1.0).bfloat16()
    model.save_pretrained(folder)
    if isinstance(model.config, OlmoHybridConfig):
        mend_convolutions(folder, model.config)
    oracle: PreTrainedModel = copy.deepcopy(model).float()
    return oracle
