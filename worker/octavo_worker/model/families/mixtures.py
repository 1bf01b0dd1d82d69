"""Families whose MLPs are mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo_kernels.ops import Routing
from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config import DenseMlp, MixtureMlp, OutputGate
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.families.expert_names import (
    AFMOE,
    ERNIE,
    ERNIE_RENAMED,
    GPT_OSS,
    GRANITE,
    GRANITE_RENAMED,
    HUNYUAN_EXPERTS,
    HY,
    HY_RENAMED,
    LAGUNA,
    MIXTRAL,
    QWEN2,
    RENAMED,
    SARVAM,
)
from octavo_worker.model.families.family import (
    Differences,
    Family,
    Mlps,
    rotates_by_kind,
    rotates_partly,
    rotates_partly_by_kind,
    rotates_where,
)
from octavo_worker.model.families.kin import multiplied, rotates_by_base
from octavo_worker.model.families.layer_normed import COHERE2
from octavo_worker.model.families.llama import (
    HUNYUAN,
    no_bias,
    own_qkv_bias,
    slides_if_rotated,
)


def mixed(
    mixture: Callable[[ModelConfig], MixtureMlp], is_mixture: Callable[[ModelConfig, int], bool] | None = None
) -> Mlps:
    """Mixtures in the layers for which `is_mixture` is true of the config and their number; None: in all."""

    def mlps(config: ModelConfig) -> Sequence[DenseMlp | MixtureMlp]:
        layers = range(config.num_hidden_layers)
        return [
            mixture(config) if is_mixture is None or is_mixture(config, layer) else DenseMlp(config.intermediate_size)
            for layer in layers
        ]

    return mlps


def is_sparse_step(config: ModelConfig, layer: int) -> bool:
    listed = layer in config.mlp_only_layers
    return not listed and config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0


def is_listed(config: ModelConfig, layer: int) -> bool:
    return bool(config.mlp_layer_types[layer] == "sparse")


def follows_dense(config: ModelConfig, layer: int) -> bool:
    return bool(layer >= config.first_k_dense_replace)


def _is_in_interval(config: ModelConfig, layer: int) -> bool:
    last = config.moe_layer_end_index
    start, end = config.moe_layer_start_index, config.num_hidden_layers - 1 if last == -1 else last
    return bool(start <= layer <= end and (layer + 1) % config.moe_layer_interval == 0)


def _scored(config: ModelConfig, experts: int) -> Routing:
    """By softmax; whether weights are normalised says the config."""
    return Routing(experts, config.num_experts_per_tok, normalised=config.norm_topk_prob)


def _qwen3(config: ModelConfig) -> MixtureMlp:
    return MixtureMlp(config.moe_intermediate_size, _scored(config, config.num_experts))


def _qwen3_vl(config: ModelConfig) -> MixtureMlp:
    return MixtureMlp(
        config.moe_intermediate_size, Routing(config.num_experts, config.num_experts_per_tok, normalised=True)
    )


def qwen2(config: ModelConfig) -> MixtureMlp:
    return replace(_qwen3(config), shared=config.shared_expert_intermediate_size, shared_gated=True)


def _qwen2_bias(config: ModelConfig) -> Differences:
    return {**own_qkv_bias(config), "qkv_bias": config.qkv_bias}


def _mixtral(config: ModelConfig) -> MixtureMlp:
    return MixtureMlp(
        config.intermediate_size, Routing(config.num_local_experts, config.num_experts_per_tok, normalised=True)
    )


def _olmoe(config: ModelConfig) -> MixtureMlp:
    return MixtureMlp(config.intermediate_size, _scored(config, config.num_experts))


def _is_not_clipped(config: ModelConfig) -> bool:
    """OLMoE clips queries and keys behind their norms."""
    return getattr(config, "clip_qkv", None) is None


def granite(config: ModelConfig) -> MixtureMlp:
    shared = getattr(config, "shared_intermediate_size", 0)
    routing = Routing(config.num_local_experts, config.num_experts_per_tok, "chosen softmax")
    return MixtureMlp(config.intermediate_size, routing, shared)


def _granite_values(config: ModelConfig) -> Differences:
    return {**multiplied(config), "mlp_bias": False}


def _hunyuan(config: ModelConfig) -> Sequence[MixtureMlp]:
    def of(values: int | Sequence[int], layer: int) -> int:
        return values if isinstance(values, int) else values[layer]

    return [
        MixtureMlp(
            config.intermediate_size,
            Routing(of(config.num_experts, layer), of(config.moe_topk, layer), normalised=True),
            shared=config.intermediate_size,
        )
        for layer in range(config.num_hidden_layers)
    ]


def _ernie(config: ModelConfig) -> MixtureMlp:
    width = config.moe_intermediate_size
    routing = Routing(config.moe_num_experts, config.moe_k, normalised=True, least=config.moe_norm_min)
    return MixtureMlp(width, routing, shared=width * config.moe_num_shared_experts, corrected=True)


def _has_no_bias(config: ModelConfig) -> bool:
    """Nor one of the head."""
    return not config.use_bias


def _grouped(config: ModelConfig, experts: int, shared: int, scale: float) -> MixtureMlp:
    """As in DeepSeek-V3: sigmoids, of which a group's score is the sum of the best two."""
    groups, top = getattr(config, "n_group", 1), getattr(config, "topk_group", 1)
    normalised = getattr(config, "norm_topk_prob", True)
    routing = Routing(
        experts, config.num_experts_per_tok, "sigmoid", groups, top, 2, normalised, eps=1e-20, scale=scale
    )  # fmt: skip
    return MixtureMlp(
        config.moe_intermediate_size, routing, config.moe_intermediate_size * (shared or 0), corrected=True
    )


def deepseek(config: ModelConfig) -> MixtureMlp:
    return _grouped(config, config.n_routed_experts, config.n_shared_experts, config.routed_scaling_factor)


def _exaone(config: ModelConfig) -> MixtureMlp:
    return _grouped(config, config.num_experts, config.num_shared_experts, config.routed_scaling_factor)


def _hy(config: ModelConfig) -> MixtureMlp:
    return _grouped(config, config.num_experts, config.num_shared_experts, config.router_scaling_factor)


def _afmoe(config: ModelConfig) -> MixtureMlp:
    return _grouped(config, config.num_experts, config.num_shared_experts, config.route_scale)


def _slides(config: ModelConfig, layer: int) -> bool:
    return bool(config.layer_types[layer] == "sliding_attention")


def follows_first(config: ModelConfig, layer: int) -> bool:
    return bool(layer >= config.num_dense_layers)


def _afmoe_values(config: ModelConfig) -> Differences:
    return {"embedding_multiplier": config.hidden_size**0.5 if config.mup_enabled else 1.0}


def _laguna(config: ModelConfig) -> MixtureMlp:
    scale = config.moe_routed_scaling_factor
    routing = Routing(config.num_experts, config.num_experts_per_tok, "sigmoid", normalised=True, scale=scale)
    return MixtureMlp(config.moe_intermediate_size, routing, config.shared_expert_intermediate_size, corrected=True)


def _laguna_values(config: ModelConfig) -> Differences:
    heads = list(config.num_attention_heads_per_layer)
    gate = OutputGate("softplus", by_head=config.gating in (True, "per-head"))
    return {"attention": [{"heads": each} for each in heads], "num_heads": max(heads), "output_gate": gate}


def _is_not_capped(config: ModelConfig) -> bool:
    """The router's logits."""
    return not config.moe_router_logit_softcapping


def _glm(config: ModelConfig) -> Differences:
    """Layers behind the last one guess tokens."""
    return {"out_bias": False, "mlp_bias": False, "qk_norm": _glm_norm(config), **_extra_layers(config)}


def _extra_layers(config: ModelConfig) -> Differences:
    return {"extra_layers": getattr(config, "num_nextn_predict_layers", None) or 0}


def _glm_norm(config: ModelConfig) -> str:
    return "head" if config.use_qk_norm else "none"


def _minimax(config: ModelConfig) -> MixtureMlp:
    routing = Routing(config.num_local_experts, config.num_experts_per_tok, "sigmoid", normalised=True)
    return MixtureMlp(config.intermediate_size, routing, corrected=True)


def _cohere2(config: ModelConfig) -> Sequence[DenseMlp | MixtureMlp]:
    scored = config.expert_selection_fn == "sigmoid"
    routing = Routing(
        config.num_experts,
        config.num_experts_per_tok,
        "sigmoid" if scored else "chosen softmax",
        normalised=scored and config.norm_topk_prob,
    )
    mixture = MixtureMlp(config.intermediate_size, routing, config.intermediate_size * config.num_shared_experts)
    dense = DenseMlp(config.prefix_dense_intermediate_size or config.intermediate_size)
    return [mixture if kind == "sparse" else dense for kind in config.mlp_layer_types]


def _cohere2_rotates(config: ModelConfig, layer: int) -> bool:
    slides = _slides(config, layer) and config.sliding_window is not None
    forced = config.mlp_layer_types[layer] == "dense" and config.prefix_dense_sliding_window_pattern == 1
    return slides or forced


def _adds_shared(config: ModelConfig) -> bool:
    """And its norms take the mean off."""
    adds = config.num_shared_experts == 0 or config.shared_expert_combination_strategy == "sum"
    return bool(adds and config.rms_norm_eps is None)


def _gpt_oss(config: ModelConfig) -> MixtureMlp:
    return MixtureMlp(
        config.intermediate_size,
        Routing(config.num_local_experts, config.num_experts_per_tok, "chosen softmax"),
        router_bias=True,
        biased=True,
        clamped=getattr(config, "swiglu_limit", 7.0),  # transformers 5.17 has no other
    )


def _is_quick(config: ModelConfig) -> bool:
    """The constant that the activation's kernel has."""
    return bool(getattr(config, "swiglu_alpha", 1.702) == 1.702)  # transformers 5.17 has no other


HEAD_NORMS = {"qk_norm": "head"}
MIXTURES: dict[str, Family] = {
    "qwen3_moe": Family(slides=True, mlps=mixed(_qwen3, is_sparse_step), fields=HEAD_NORMS),
    "qwen3_vl_moe_text": Family(
        names=Names(experts=(replace(RENAMED, transposed=True),)),
        mlps=mixed(_qwen3_vl, is_sparse_step),
        fields=HEAD_NORMS,
    ),
    "mixtral": Family(names=Names(experts=(MIXTRAL, RENAMED)), slides=True, mlps=mixed(_mixtral)),
    "qwen2_moe": Family(
        names=Names(experts=(QWEN2,)), slides=True, mlps=mixed(qwen2, is_sparse_step), differences=_qwen2_bias
    ),
    "olmoe": Family(mlps=mixed(_olmoe), fields={"qk_norm": "whole"}, as_described=_is_not_clipped),
    "flex_olmo": Family(norms="after", mlps=mixed(_olmoe), fields={"qk_norm": "whole"}),
    "granitemoe": Family(
        names=Names(experts=(GRANITE, GRANITE_RENAMED)), mlps=mixed(granite), differences=_granite_values
    ),
    "granitemoeshared": Family(
        names=Names(experts=(GRANITE, GRANITE_RENAMED)), mlps=mixed(granite), differences=_granite_values
    ),
    "granitemoe_swa": Family(
        names=Names(experts=(GRANITE_RENAMED, GRANITE)),
        slides=True,
        rotation=rotates_by_base,
        mlps=mixed(granite),
        fields={"sinks": True},
        differences=_granite_values,
    ),
    "hunyuan_v1_moe": replace(HUNYUAN, names=replace(HUNYUAN.names, experts=(HUNYUAN_EXPERTS,)), mlps=_hunyuan),
    "ernie4_5_moe": Family(
        names=Names(
            experts=(ERNIE, ERNIE_RENAMED), towers=("mtp_block", "mtp_emb_norm", "mtp_hidden_norm", "mtp_linear_proj")
        ),
        interleaved=True,
        mlps=mixed(_ernie, _is_in_interval),
        as_described=_has_no_bias,
    ),
    "dots1": Family(slides=True, mlps=mixed(deepseek, follows_dense), fields={**HEAD_NORMS, "mlp_bias": False}),
    "glm4_moe": Family(rotation=rotates_partly, mlps=mixed(deepseek, follows_dense), differences=_glm),
    "glm4v_moe_text": Family(
        rotation=rotates_partly,
        mlps=mixed(deepseek, follows_dense),
        fields={"out_bias": False, "mlp_bias": False},
    ),
    "sarvam_moe": Family(
        names=Names(
            embed="word_embeddings",
            qkv=("attention.query_key_value",),
            q_norm="attention.query_layernorm",
            k_norm="attention.key_layernorm",
            out="attention.dense",
            experts=(SARVAM,),
        ),
        rotation=rotates_partly,
        mlps=mixed(deepseek, follows_dense),
        differences=_glm,
    ),
    "afmoe": Family(
        names=Names(
            post_attn_norm="post_attention_layernorm",
            mlp_norm="pre_mlp_layernorm",
            post_mlp_norm="post_mlp_layernorm",
            experts=(AFMOE,),
        ),
        norms="both",
        slides=True,
        rotation=rotates_where(_slides),
        mlps=mixed(_afmoe, follows_first),
        fields={**HEAD_NORMS, "output_gate": OutputGate("sigmoid")},
        differences=_afmoe_values,
    ),
    "laguna": Family(
        names=Names(output_gate="self_attn.g_proj", experts=(LAGUNA,)),
        slides=True,
        rotation=rotates_partly_by_kind,
        mlps=mixed(_laguna, is_listed),
        fields=HEAD_NORMS,
        differences=_laguna_values,
        as_described=_is_not_capped,
    ),
    "mellum": Family(
        slides=True,
        rotation=rotates_by_kind,
        mlps=mixed(_qwen3, is_listed),
        fields=HEAD_NORMS,
        differences=_extra_layers,
    ),
    "solar_open": Family(rotation=rotates_partly, mlps=mixed(deepseek), differences=no_bias),
    "minimax_m2": Family(
        names=Names(experts=(MIXTRAL, HY_RENAMED)),
        rotation=rotates_partly,
        mlps=mixed(_minimax),
        fields={"qk_norm": "whole"},
        differences=no_bias,
    ),
    "hy_v3": Family(names=Names(experts=(HY, HY_RENAMED)), mlps=mixed(_hy, is_listed), fields=HEAD_NORMS),
    "exaone_moe": Family(
        names=Names(experts=(HY_RENAMED, RENAMED), towers=("mtp",)),
        slides=True,
        rotation=rotates_where(slides_if_rotated),
        mlps=mixed(_exaone, is_listed),
        fields=HEAD_NORMS,
        differences=no_bias,
    ),
    "cohere2_moe": replace(COHERE2, rotation=rotates_where(_cohere2_rotates), mlps=_cohere2, as_described=_adds_shared),
    "gpt_oss": Family(
        names=Names(experts=(GPT_OSS,)),
        slides=True,
        mlps=mixed(_gpt_oss),
        fields={"sinks": True, "activation": "gelu_quick"},
        as_described=_is_quick,
    ),
}
