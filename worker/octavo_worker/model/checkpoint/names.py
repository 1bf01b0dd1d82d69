"""Names of tensors in the checkpoints of each family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the tensors in a family's checkpoints, without `.weight` and `.bias`.

    `qkv` and `up` list the parts in the order in which they are stacked; one name means the checkpoint already has
    them stacked. `prefixes` and `heads` are tried in turn. `transposed` matrices are stored `[in, out]`. Names with an
    `ignored` ending, and those of `towers`, at the top or below `model.`, have no place in the model.
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
    out: str = "self_attn.o_proj"
    post_attn_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    post_mlp_norm: str = "post_feedforward_layernorm"
    transposed: bool = False
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    towers: tuple[str, ...] = ()

    def has_no_use(self, name: str) -> bool:
        """True for a tensor that the model does without."""
        tower = name.removeprefix("model.").partition(".")[0]
        return name.endswith(self.ignored) or tower in self.towers
