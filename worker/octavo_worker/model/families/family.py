"""The description of a family: how its config.json becomes a decoder's config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config import (
    Activation,
    AttentionLayer,
    DecoderConfig,
    DenseMlp,
    LatentLayer,
    Layer,
    MixerLayer,
    MixtureMlp,
    Places,
)
from octavo_worker.model.config_file import ModelConfig, Stated
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.rope import Rope, head_dim_of, rope_of

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
GATES = ("silu", "gelu", "gelu_tanh")

Rotation = tuple[dict[str, Rope], Sequence[str | None]]
"""The rotary tables of a model by name, and which of them each layer takes."""
Differences = Mapping[str, Any]
Mlps = Callable[[ModelConfig], Sequence[DenseMlp | MixtureMlp | None]]
"""The MLP of each layer; None: it has none."""
Recurrent = Callable[[ModelConfig, Sequence[AttentionLayer]], Sequence[MixerLayer | None]]
"""The mixer of each layer, of which some are the attention of that layer; None: it has none."""
Latent = Callable[[ModelConfig, AttentionLayer], LatentLayer]
"""The latent attention that each layer has in the place of one."""
LLAMA = Names()


def rotates_alike(config: ModelConfig, max_model_len: int | None) -> Rotation:
    return {"rope": rope_of(config, max_model_len)}, ["rope"] * config.num_hidden_layers


def rotates_partly(config: ModelConfig, max_model_len: int | None) -> Rotation:
    return {"rope": rope_of(config, max_model_len, partly=True)}, ["rope"] * config.num_hidden_layers


def rotates_by_kind(config: ModelConfig, max_model_len: int | None) -> Rotation:
    """Layers of each kind have frequencies of their own."""
    return _by_kind(config, max_model_len, partly=False)


def rotates_partly_by_kind(config: ModelConfig, max_model_len: int | None) -> Rotation:
    """Layers of each kind rotate a part of their own of each head."""
    return _by_kind(config, max_model_len, partly=True)


def _by_kind(config: ModelConfig, max_model_len: int | None, *, partly: bool) -> Rotation:
    kinds = config.layer_types
    return {kind: rope_of(config, max_model_len, kind, partly=partly) for kind in sorted(set(kinds))}, kinds


def rotates_nowhere(config: ModelConfig, max_model_len: int | None) -> Rotation:
    return {}, [None] * config.num_hidden_layers


def rotates_where(is_rotated: Callable[[ModelConfig, int], bool]) -> Callable[[ModelConfig, int | None], Rotation]:
    """Only the layers for which `is_rotated` is true of the config and their number."""

    def rotation(config: ModelConfig, max_model_len: int | None) -> Rotation:
        layers = ["rope" if is_rotated(config, index) else None for index in range(config.num_hidden_layers)]
        return {"rope": rope_of(config, max_model_len)} if any(layers) else {}, layers

    return rotation


def no_differences(config: ModelConfig) -> Differences:
    return {}


def all_as_described(config: ModelConfig) -> bool:
    return True


def as_it_is(config: ModelConfig) -> ModelConfig:
    return config


def width_of(config: ModelConfig) -> int:
    return int(config.intermediate_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Differences of a family from Llama: RMS norms before both sublayers, rotary embeddings, a gated MLP.

    `fields` are values of its `DecoderConfig`, `differences` those that its config states in fields of its own; among
    them `scale` or `scales` (of each layer's scores), `norms` (of all layers, or of each), and `attention` (other
    fields of each `AttentionLayer`). A window counts only if the family `slides`, whatever its files say. `heads` gives
    the config that says how many heads there are, and how wide, where layers differ. A config that is not
    `as_described` takes the transformers route. `stated`: what makes a config.json readable without transformers; None:
    nothing does.
    """

    names: Names = LLAMA
    heads: Callable[[ModelConfig], ModelConfig] = as_it_is
    norms: Places = "before"
    slides: bool = False
    rotation: Callable[[ModelConfig, int | None], Rotation] = rotates_alike
    interleaved: bool = False
    width: Callable[[ModelConfig], int] = width_of
    mlps: Mlps | None = None  # all dense, of that width
    recurrent: Recurrent | None = None  # all are attention
    latent: Latent | None = None  # all are attention
    norm_eps: str | float = "rms_norm_eps"  # a field of the config, or a constant
    fields: Differences = field(default_factory=dict)
    differences: Callable[[ModelConfig], Differences] = no_differences
    as_described: Callable[[ModelConfig], bool] = all_as_described
    stated: Stated | None = None

    def describe(self, config: ModelConfig, max_model_len: int | None) -> DecoderConfig | None:
        """None: this member takes the transformers route. Raises `UnsupportedModel`."""
        if not self.as_described(config):
            return None
        shown, differences = self.heads(config), dict(self.differences(config))
        heads = getattr(config, "num_attention_heads", 0)
        head_dim = head_dim_of(shown) if heads else 1
        scale = differences.pop("scale", head_dim**-0.5)
        scales = differences.pop("scales", [scale] * config.num_hidden_layers)
        norms = differences.pop("norms", self.norms)
        norms = [norms] * config.num_hidden_layers if isinstance(norms, str) else norms
        ropes, rotated = self.rotation(config, max_model_len)
        own = differences.pop("attention", [{}] * config.num_hidden_layers)
        each = zip(scales, self._windows(config), rotated, own, strict=True)
        attentions = [AttentionLayer(scale, window, rope, **fields) for scale, window, rope, fields in each]
        mixers = self._mixers(config, attentions)
        mlps = self.mlps(config) if self.mlps else [DenseMlp(self.width(config))] * config.num_hidden_layers
        layers = [Layer(*each) for each in zip(mixers, mlps, norms, strict=True)]
        bias = getattr(config, "attention_bias", False)
        described: dict[str, Any] = {
            "family": config.model_type,
            "names": self.names,
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "num_heads": heads,
            "num_kv_heads": getattr(shown, "num_key_value_heads", None) or heads,
            "head_dim": head_dim,
            "layers": tuple(layers),
            "ropes": ropes,
            "max_position": getattr(config, "max_position_embeddings", 0),
            "norm_eps": getattr(config, self.norm_eps) if isinstance(self.norm_eps, str) else self.norm_eps,
            "qkv_bias": bias,
            "out_bias": bias,
            "mlp_bias": getattr(config, "mlp_bias", False),
            "activation": self.fields.get("activation") or _activation(config, gated=self.fields.get("gated", True)),
            "interleaved": 2 * len(ropes["rope"].inv_freq) if self.interleaved and ropes else 0,
            "tied": getattr(config, "tie_word_embeddings", False),
        }
        return DecoderConfig(**(described | dict(self.fields) | differences))

    def _mixers(self, config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer | None]:
        if self.latent is not None:
            return [self.latent(config, attention) for attention in attentions]
        return attentions if self.recurrent is None else self.recurrent(config, attentions)

    def _windows(self, config: ModelConfig) -> list[int]:
        """Sliding window of each layer; a config without `layer_types` slides in every layer."""
        window = (getattr(config, "sliding_window", None) or 0) if self.slides else 0
        types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
        return [window if kind == "sliding_attention" else 0 for kind in types]


def _activation(config: ModelConfig, *, gated: bool) -> Activation:
    names = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
    name = next(value for value in (getattr(config, each, None) for each in names) if value)
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {name!r} has no kernel; supported: {', '.join(ACTIVATIONS)}.")
    if gated and ACTIVATIONS[name] not in GATES:
        raise UnsupportedModel(f"a gated MLP with {name} has no kernel; supported gates: {', '.join(GATES)}.")
    return ACTIVATIONS[name]
