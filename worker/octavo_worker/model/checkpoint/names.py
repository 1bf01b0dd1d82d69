"""Names of tensors in the checkpoints of each family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a mixture's tensors within its layer. Matrices of experts stand alone, `each` and what `up` and `down`
    name; or `stacked` ones have those of all, `[experts, rows, depth]`, or `[experts, depth, rows]` if their shape says
    so, and `transposed` if it leaves both open. Rows of stacked gates and of what they gate lie in halves, or
    `alternating`. `correction` is a whole name, and so are `scale`, of the router's rows, and `factors`, of weights,
    which a mixture beside a dense MLP has, with norms of its rows, of its output and of that MLP's."""

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    each: str = "mlp.experts.{}."
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    stacked: tuple[str, str] = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    transposed: bool = False
    alternating: bool = False
    shared_up: tuple[str, ...] = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")
    shared_down: str = "mlp.shared_experts.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    scale: str = "router.scale"
    factors: str = "router.per_expert_scale"
    norm: str = "pre_feedforward_layernorm_2"
    post_norm: str = "post_feedforward_layernorm_2"
    post_dense_norm: str = "post_feedforward_layernorm_1"


@dataclass(frozen=True, slots=True)
class LayerInputNames:
    """Names of the tensors that make the inputs of layers: a table, a product and a norm for all of them, and in each
    layer a gate, a product and a norm."""

    table: str = "embed_tokens_per_layer"
    product: str = "per_layer_model_projection"
    norm: str = "per_layer_projection_norm"
    gate: str = "per_layer_input_gate"
    out: str = "per_layer_projection"
    post_norm: str = "post_per_layer_input_norm"


@dataclass(frozen=True, slots=True)
class RecurrentNames:
    """Names of a recurrent layer's tensors. `inputs` are the parts of its first product, each with the number of
    segments in it (`RecurrentLayer.segments`), one after the other; if `by_key_head`, the segments of each key head
    lie together. The convolution may be stored in `pieces` of its channels instead. `rates`, `dt_bias` and `skip` are
    whole names."""

    inputs: tuple[tuple[str, int], ...]
    convolution: str
    out: str
    pieces: tuple[str, ...] = ()
    rates: str = ""
    dt_bias: str = ""
    skip: str = ""
    norm: str = ""
    by_key_head: bool = False


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Names of latent attention's tensors: the product of queries, or the two that make them and the norm between; the
    product that makes what is kept, the norm of its latent, and the product that makes keys and values of that."""

    q: str = "self_attn.q_proj"
    q_down: str = "self_attn.q_a_proj"
    q_norm: str = "self_attn.q_a_layernorm"
    q_up: str = "self_attn.q_b_proj"
    kv_down: str = "self_attn.kv_a_proj_with_mqa"
    kv_norm: str = "self_attn.kv_a_layernorm"
    kv_up: str = "self_attn.kv_b_proj"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the tensors in a family's checkpoints, without `.weight` and `.bias`.

    `qkv` and `up` list the parts in the order in which they are stacked; one name means the checkpoint already has
    them stacked. `prefixes`, `heads` and `experts` are tried in turn, and where a norm is missing the second of a pair
    of `renamed`. `transposed` matrices are stored `[in, out]`. Names with an `ignored` ending, and those of `towers`,
    at the top or below `model.`, have no place in the model.
    """

    prefixes: tuple[str, ...] = ("model.", "")
    embed: str = "embed_tokens"
    positions: str = "embed_positions"
    final_norm: str = "norm"
    heads: tuple[str, ...] = ("lm_head",)
    layer: str = "layers.{}."
    attn_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"  # the whole name
    output_gate: str = "self_attn.gate_proj"
    out: str = "self_attn.o_proj"
    post_attn_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    post_mlp_norm: str = "post_feedforward_layernorm"
    experts: tuple[ExpertNames, ...] = (ExpertNames(),)
    recurrent: RecurrentNames | None = None
    latent: LatentNames = LatentNames()
    renamed: tuple[tuple[str, str], ...] = ()
    layer_inputs: LayerInputNames = LayerInputNames()
    layer_scalar: str = "layer_scalar"  # the whole name
    transposed: bool = False
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    towers: tuple[str, ...] = ()

    def has_no_use(self, name: str) -> bool:
        """True for a tensor that the model does without."""
        tower = name.removeprefix("model.").partition(".")[0]
        return name.endswith(self.ignored) or tower in self.towers
