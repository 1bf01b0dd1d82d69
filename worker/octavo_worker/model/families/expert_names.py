"""Names of experts' tensors in the checkpoints of each family, as it is released and as transformers saves it anew."""

from __future__ import annotations

from dataclasses import replace

from octavo_worker.model.checkpoint.names import ExpertNames

RENAMED = ExpertNames()
"""As transformers calls them inside."""
QWEN2 = replace(
    RENAMED,
    shared_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)
MIXTRAL = ExpertNames(
    router="block_sparse_moe.gate",
    correction="block_sparse_moe.e_score_correction_bias",
    each="block_sparse_moe.experts.{}.",
    up=("w1", "w3"),
    down="w2",
)
GRANITE = ExpertNames(
    router="block_sparse_moe.router.layer",
    stacked=("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
    shared_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)
GRANITE_RENAMED = replace(
    GRANITE,
    router="block_sparse_moe.router",
    stacked=("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
)
HUNYUAN_EXPERTS = ExpertNames(
    router="mlp.gate.wg",
    shared_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
)
HY = replace(HUNYUAN_EXPERTS, router="mlp.router.gate", correction="mlp.expert_bias")
HY_RENAMED = replace(RENAMED, correction="mlp.e_score_correction_bias")
ERNIE = replace(RENAMED, correction="mlp.moe_statics.e_score_correction_bias")
ERNIE_RENAMED = replace(RENAMED, correction="mlp.gate.moe_statics.e_score_correction_bias")
AFMOE = replace(RENAMED, router="mlp.router.gate", correction="mlp.expert_bias")
SARVAM = replace(RENAMED, correction="mlp.gate.expert_bias")
LAGUNA = replace(QWEN2, correction="mlp.experts.e_score_correction_bias")
GPT_OSS = replace(RENAMED, router="mlp.router", transposed=True, alternating=True)
LFM2_EXPERTS = replace(
    MIXTRAL,
    router="feed_forward.gate",
    correction="feed_forward.expert_bias",
    each="feed_forward.experts.{}.",
    stacked=("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
)
NEMOTRON = ExpertNames(
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    each="mixer.experts.{}.",
    up=("up_proj",),
    stacked=("mixer.experts.up_proj", "mixer.experts.down_proj"),
    shared_up=("mixer.shared_experts.up_proj",),
    shared_down="mixer.shared_experts.down_proj",
)
