"""A decoder as its config describes it: what `decoder.py` computes, whichever family it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from octavo_kernels.ops import Gate, Routing
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.recurrent.layers import RecurrentLayer
from octavo_worker.model.rope import Rope

Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu2"]
Places = Literal["before", "after", "both", "parallel"]
"""Where norms stand: before a sublayer, after it (in front of the sum), or at both places; "parallel": one norm before
attention and MLP, which both read it."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Attention of one layer, as far as layers may differ. `sliding_window` 0 is full attention; `rope` names one of
    `ropes`; None: queries and keys are not rotated. `heads` are those of queries, `kv_heads` those of keys and values,
    all of `head_dim` elements; None: as the model says. `values_are_keys`: values have no product of their own, but are
    the keys as they were before norm and rotation. A layer that `shares` has queries alone, and reads the keys and
    values of the layer of that number, an earlier one."""

    scale: float
    sliding_window: int = 0
    rope: str | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    values_are_keys: bool = False
    shares: int | None = None

    @property
    def projected(self) -> int:
        """Products of keys and of values that it has."""
        return 0 if self.shares is not None else 1 if self.values_are_keys else 2


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). Of a token it keeps a latent of `rank`
    values and one key of `rotated` values, by `rope`. Queries of each of the `heads` have `plain` values, that meet
    keys made of the latent, then `rotated` ones; its values, `value_dim` wide, are made of the latent, too. Queries are
    a product with the input, or, with a `query_rank`, with a normed product of so many columns. `norm_eps`: of both
    norms. `interleaved`: neighbours are rotated together; the stored order differs. `biased`: of the products that make
    the latents, and of the last one."""

    scale: float
    rope: str
    heads: int
    rank: int
    plain: int
    rotated: int
    value_dim: int
    query_rank: int | None = None
    interleaved: bool = True
    biased: bool = False
    norm_eps: float = 1e-6

    @property
    def width(self) -> int:
        """Elements that are kept of a token."""
        return self.rank + self.rotated

    def weights(self, hidden: int) -> int:
        """Values of its matrices that a step reads, with hidden states so wide."""
        queries = self.heads * (self.plain + self.rotated)
        low = hidden * queries if self.query_rank is None else self.query_rank * (hidden + queries)
        absorbed = self.heads * self.rank * (self.plain + self.value_dim)
        return low + hidden * (self.width + self.heads * self.value_dim) + absorbed

    def kept(self, dtype: str) -> CacheSpec:
        """The cache of a token of the type `dtype`."""
        return CacheSpec(1, self.width, self.rank, dtype, heads=self.heads, latent=True, exact=dtype)


@dataclass(frozen=True, slots=True)
class OutputGate:
    """Factors of attention's output, `activation` of a product with the layer's input: one for each head, or for each
    of its values. One `in_queries` is stored with them: the rows of each head's query, then those of its gate."""

    activation: Literal["sigmoid", "softplus"]
    by_head: bool = False
    in_queries: bool = False


@dataclass(frozen=True, slots=True)
class Branches:
    """Attention and a recurrence that read the same rows; their outputs are added, each times its factor."""

    attention: AttentionLayer
    recurrent: RecurrentLayer
    attention_factor: float = 1.0
    recurrent_factor: float = 1.0


MixerLayer = AttentionLayer | LatentLayer | RecurrentLayer | Branches


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """An MLP whose every row takes all `width` columns."""

    width: int

    @property
    def columns(self) -> int:
        """Columns that a row takes."""
        return self.width


@dataclass(frozen=True, slots=True)
class MixtureMlp:
    """An MLP of experts, each `width` wide, of which a row takes a few; and of the `shared` columns of one that all
    rows take (0: none), times the sigmoid of a product with the row if it is `shared_gated`. Of the router's logits
    there may be a bias, and of its scores a correction for the choice. `clamped`: gates are at most that, and what they
    gate lies within it and is larger by one. `beside`: columns of a dense MLP that reads the same rows (0: there is
    none); the output of each has a norm, experts and router each have a norm of their rows, and weights of experts a
    factor, as in Gemma 4."""

    width: int
    routing: Routing
    shared: int = 0
    shared_gated: bool = False
    router_bias: bool = False
    corrected: bool = False
    biased: bool = False
    clamped: float | None = None
    beside: int = 0

    @property
    def columns(self) -> int:
        """Columns that a row takes."""
        return self.width * self.routing.chosen + self.shared + self.beside


@dataclass(frozen=True, slots=True)
class Layer:
    """One block: `h += norm(attention(norm(h)))`, then the same with the MLP, with the norms that `norms` names. One of
    both may be absent."""

    attention: MixerLayer | None
    mlp: DenseMlp | MixtureMlp | None
    norms: Places = "before"


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs of every layer beside the hidden states, `width` columns for each: the token's row of a table of
    `vocab_size` rows and a product with its embedding, as in Gemma 4."""

    vocab_size: int
    width: int


@dataclass(frozen=True, slots=True)
class Temperature:
    """A factor of the queries that grows with their position: `1 + beta * ln(1 + position // original)`."""

    beta: float
    original: int

    def table(self, positions: int) -> torch.Tensor:
        """The factor of each position, float32 `[positions, 1]`."""
        at = torch.arange(positions, dtype=torch.float32)[:, None]
        return 1 + self.beta * torch.log(1 + torch.floor(at / self.original))


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer. Widths of MLPs belong to layers, and so may heads and their width: `num_heads`,
    `num_kv_heads` and `head_dim` are those of layers that say nothing else."""

    family: str
    names: Names
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[Layer, ...]
    ropes: Mapping[str, Rope]
    max_position: int
    norm: Literal["rms", "layer"] = "rms"
    norm_tensors: tuple[str, ...] = ("weight",)  # those that are stored: a layer norm may have a bias, or nothing
    norm_eps: float = 1e-6
    norm_offset: float = 0.0  # the weight stored is (scale - offset)
    qk_norm: Literal["none", "head", "rotated head", "whole"] = "none"
    v_norm: bool = False  # of each head of the values, without a weight
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    activation: Activation = "silu"
    gated: bool = True
    interleaved: int = 0  # leading values of a head of which neighbours are rotated together; the stored order differs
    qkv_clip: float | None = None
    sinks: bool = False
    output_gate: OutputGate | None = None
    temperature: Temperature | None = None
    layer_inputs: LayerInputs | None = None
    layer_scalars: bool = False  # a factor of the hidden states behind each layer
    position_offset: int | None = None  # learned positions: the table's row of position 0
    tied: bool = False
    extra_layers: int = 0  # stored behind the last one, for guesses at tokens, and of no use here
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    gate_multiplier: float = 1.0  # of what MLPs' activation is applied to
    mlp_multiplier: float = 1.0  # of MLPs' outputs
    logits_divisor: float = 1.0
    logits_multiplier: float = 1.0
    softcap: float = 0.0  # of attention scores
    logits_softcap: float = 0.0

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.q_size + 2 * self.kv_size

    @property
    def gate_behind(self) -> int:
        """Columns of a gate that are made by one product with queries, keys and values, behind them."""
        gate = self.output_gate
        return 0 if gate is None or gate.by_head or (self.qkv_bias and not gate.in_queries) else self.q_size

    @property
    def gate_size(self) -> int:
        """Columns of the gate of attention's output."""
        if self.output_gate is None:
            return 0
        return self.num_heads if self.output_gate.by_head else self.q_size

    def of(self, layer: AttentionLayer) -> DecoderConfig:
        """The config as that layer's attention sees it."""
        own = layer.heads, layer.kv_heads, layer.head_dim
        if own == (None, None, None):
            return self
        heads, kv_heads, head_dim = layer.heads, layer.kv_heads, layer.head_dim
        return replace(
            self,
            num_heads=self.num_heads if heads is None else heads,
            num_kv_heads=self.num_kv_heads if kv_heads is None else kv_heads,
            head_dim=self.head_dim if head_dim is None else head_dim,
        )

    @property
    def attention_layers(self) -> list[AttentionLayer | None]:
        """The attention of each layer, None where there is none."""
        mixers = [layer.attention for layer in self.layers]
        parts = [mixer.attention if isinstance(mixer, Branches) else mixer for mixer in mixers]
        return [part if isinstance(part, AttentionLayer) else None for part in parts]

    @property
    def recurrent_layers(self) -> list[RecurrentLayer | None]:
        """The recurrence of each layer, None where there is none."""
        mixers = [layer.attention for layer in self.layers]
        parts = [mixer.recurrent if isinstance(mixer, Branches) else mixer for mixer in mixers]
        return [None if isinstance(part, AttentionLayer | LatentLayer) else part for part in parts]

    @property
    def latent_layers(self) -> list[LatentLayer]:
        """Layers with latent attention."""
        return [layer.attention for layer in self.layers if isinstance(layer.attention, LatentLayer)]

    def cache(self, dtype: str) -> list[CacheSpec | None]:
        """The cache of a token of the type `dtype`, by layer."""
        mixers = [layer.attention for layer in self.layers]
        latent = [mixer.kept(dtype) if isinstance(mixer, LatentLayer) else None for mixer in mixers]
        own = [None if layer is None else self.of(layer).kept(layer, dtype) for layer in self.attention_layers]
        return [one or other for one, other in zip(latent, own, strict=True)]

    @property
    def attentions(self) -> list[DecoderConfig]:
        """The config as the attention of each layer sees it."""
        return [self.of(layer) for layer in self.attention_layers if layer is not None]

    @property
    def has_even_heads(self) -> bool:
        """True if heads are as many and as wide in all layers."""
        return len({(c.num_heads, c.num_kv_heads, c.head_dim) for c in self.attentions}) <= 1

    def kept(self, layer: AttentionLayer, dtype: str) -> CacheSpec:
        """The cache of a token of the type `dtype` of that layer's attention, which sees this config."""
        width = self.head_dim
        return CacheSpec(self.num_kv_heads, width, width, dtype, layer.sliding_window, self.num_heads, layer.shares)

    @property
    def widest_mlp(self) -> int:
        """Columns of the widest dense MLP: experts have as many rows as a step gives them."""
        mlps = [layer.mlp for layer in self.layers if layer.mlp is not None]
        return max((mlp.width if isinstance(mlp, DenseMlp) else mlp.beside for mlp in mlps), default=0)

    @property
    def mixtures(self) -> list[MixtureMlp]:
        """Mixtures of the layers that have one."""
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, MixtureMlp)]

    @property
    def gate(self) -> Gate:
        """The activation of a gated MLP: families refuse those without a kernel."""
        assert self.activation != "relu"
        assert self.activation != "relu2"
        return self.activation

    @property
    def head_order(self) -> list[int] | None:
        """The stored place of each value of a head: kernels rotate the first half of values with the second. None: they
        are stored so."""
        if not self.interleaved:
            return None
        turned = range(self.interleaved)
        return [*turned[0::2], *turned[1::2], *range(self.interleaved, self.head_dim)]
