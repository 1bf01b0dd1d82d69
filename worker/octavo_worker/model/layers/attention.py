"""The attention of a block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import AttentionLayer, DecoderConfig
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm
from octavo_worker.model.layers.output_gate import AttentionGate
from octavo_worker.model.layers.tables import Tables
from octavo_worker.model.layers.whole_norm import WholeNorms
from octavo_worker.model.transfer import dtype_name


class HeadNorms(TypedDict):
    """Arguments of `ops.rope_write_kv`: norms of each head before the rotation."""

    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    norm_offset: float


class Reading(TypedDict):
    """Arguments of `ops.paged_attention`: how a layer reads its cache."""

    block_size: int
    sliding_window: int
    softcap: float


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Weights that attention has beside its two products: of the norms of queries' and of keys' heads, norms of all
    heads together, a norm of values, a score for each head that no token has, and a gate of its output."""

    norms: Sequence[Tensor] = ()
    whole: WholeNorms | None = None
    values: RmsNorm | None = None
    sinks: Tensor | None = None
    gate: AttentionGate | None = None


class Attention:
    """`bind` attaches the layer's part of the KV cache; then `attend` writes this step's keys and values into it and
    reads all of a sequence's, and `into_norm` projects what came of that."""

    def __init__(
        self, config: DecoderConfig, layer: AttentionLayer, qkv: Linear, out: Linear, weights: HeadWeights | None = None
    ) -> None:
        """`qkv` has the rows of all query heads, then of all key heads, then of all value heads, as far as there are
        such, then of a gate without a product of its own; `config` is as this layer sees it."""
        weights = weights or HeadWeights()
        self.config, self.layer = config, layer
        self.qkv, self.out, self.sinks, self.gate = qkv, out, weights.sinks, weights.gate
        q_norm, k_norm, self.rotated_weight = _head_norms(config, weights.norms)
        self.norms = HeadNorms(q_norm=q_norm, k_norm=k_norm, eps=config.norm_eps, norm_offset=config.norm_offset)
        self.whole_norms, self.value_norm = weights.whole, weights.values
        self.columns = config.q_size + layer.projected * config.kv_size  # of its product, without the gate's
        self.cache = torch.empty(0)
        self.cos_sin: Tensor | None = None
        self.temperature: Tensor | None = None
        self.shape = self.kept(torch.float32).shape
        self.reading = Reading(block_size=0, sliding_window=layer.sliding_window, softcap=config.softcap)

    def kept(self, dtype: torch.dtype) -> CacheSpec:
        """The layer's cache of a token, if keys and values are of the type `dtype`."""
        return self.config.kept(self.layer, dtype_name(dtype))

    @property
    def kind(self) -> Hashable:
        """Equal to that of a layer whose steps take the same kernels."""
        return *self.reading.values(), self.layer.rope, self.shape, self.layer.projected

    def bind(self, cache: Tensor | None, block_size: int, tables: Tables) -> None:
        assert cache is not None
        self.cache = cache
        self.reading["block_size"] = block_size
        self.cos_sin = None if self.layer.rope is None else tables.cos_sin[self.layer.rope]
        self.temperature = tables.temperature

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        gate = {} if self.gate is None or self.gate.product is None else {"gate": self.gate.product}
        return {"qkv": self.qkv, **gate, "out": self.out}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """Attention into `b.attended`, gated where there is a gate."""
        qkv, logits = self._first(x, b)
        self._read(qkv, b, batch)
        if self.gate is not None:
            self.gate.apply(logits, b.attended)

    def _first(self, x: Input, b: Buffers) -> tuple[Tensor, Tensor]:
        """Queries, keys and values, and the gate's logits, which without a gate have no columns."""
        c = self.config
        made = b.narrowed(b.qkv, c.qkv_size + c.gate_behind)
        qkv, logits = made.split((c.qkv_size, c.gate_behind), dim=1)
        if self.gate is not None and self.gate.product is not None:
            x = Input(x.materialise(), context=x.context)
            logits = self.gate.product.apply(x)
        self.qkv.apply(x, made if self.layer.projected == 2 else qkv[:, : self.columns])
        return qkv, logits

    def _read(self, qkv: Tensor, b: Buffers, batch: Batch) -> None:
        c, rows = self.config, len(qkv)
        q, room = b.narrowed(b.q, c.q_size), b.narrowed(b.room, c.q_size)
        q, b.attended = (each.view(rows, c.num_heads, c.head_dim) for each in (q, room))
        self._adjust(qkv, batch)
        tables, slots, stage = batch.paging(self.layer.sliding_window)
        if self.layer.shares is not None:
            slots = torch.full_like(slots, -1)  # nothing is written
        written = (qkv, q, self.cache, slots, batch.positions, self.cos_sin)
        queries = (batch.context_lens, batch.query_start, b.attended, self.layer.scale)
        plan = batch.plans.get(self.shape)
        if stage is None and self.rotated_weight is None and self.layer.shares is None:
            ops.rope_attention(*written, tables, *queries, sinks=self.sinks, plan=plan, **self.norms, **self.reading)
            return
        ops.rope_write_kv(*written, block_size=self.reading["block_size"], **self.norms)
        if self.rotated_weight is not None:
            q.mul_(self.rotated_weight)
        cache = self.cache
        if stage is not None:
            cache, tables = stage.gather(self.cache), stage.tables  # with what was just written
        ops.paged_attention(q, cache, tables, *queries, sinks=self.sinks, plan=plan, **self.reading)

    def _adjust(self, qkv: Tensor, batch: Batch) -> None:
        """Changes of queries, keys and values before the rotation, each by itself or by its row."""
        c = self.config
        if c.qkv_clip is not None:
            qkv.clamp_(-c.qkv_clip, c.qkv_clip)
        if self.whole_norms is not None:
            self.whole_norms.apply(qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1))
        if self.temperature is not None:  # a rotation is linear: before it is as good as after it
            qkv[:, : c.q_size].mul_(self.temperature[batch.positions])
        if self.value_norm is not None and self.layer.projected:
            *_, keys, values = qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1)
            of = keys if self.layer.values_are_keys else values
            heads, out = (each.unflatten(1, (-1, c.head_dim)) for each in (of, values))
            ops.norm_heads(heads, self.value_norm.operand, out)

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        """The output of `b.attended`, added to the residual stream `b.hidden`, and normalised for what follows."""
        return self.out.into_norm(Input(b.attended.flatten(1), context=b.row_context), b, add_norm)


def _head_norms(config: DecoderConfig, weights: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Weights of the norms of queries and keys before the rotation, and what queries are multiplied by after it.

    A rotation keeps a head's length, so that a norm after it may stand before it, but for its weights. Those of the
    keys go to the queries, too: a score is the sum of products of both.
    """
    if config.qk_norm == "head":
        return weights[0], weights[1] if len(weights) > 1 else None, None
    if config.qk_norm == "rotated head":
        even = torch.ones_like(weights[0])
        return even, even, weights[0].float() * weights[1].float()
    return None, None, None
