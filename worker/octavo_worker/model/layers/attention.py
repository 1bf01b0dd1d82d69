"""The attention of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Attention:
    """`bind` attaches the layer's part of the KV cache; then `attend` writes this step's keys and values into it and
    reads all of a sequence's, and `into_norm` projects what came of that."""

    def __init__(
        self, config: DecoderConfig, layer: AttentionLayer, qkv: Linear, out: Linear, qk_norms: Sequence[Tensor]
    ) -> None:
        """`qkv` has the rows of all query heads, then of all key heads, then of all value heads; `qk_norms` the weights
        of the norms of queries and of keys, if the config has such."""
        self.config, self.layer = config, layer
        self.qkv, self.out = qkv, out
        q_norm, k_norm = qk_norms if config.qk_norm == "head" else (None, None)
        self.norms = HeadNorms(q_norm=q_norm, k_norm=k_norm, eps=config.norm_eps, norm_offset=config.norm_offset)
        whole = qk_norms if config.qk_norm == "whole" else ()  # over all heads together, as in OLMo 2
        self.whole_norms = [RmsNorm(weight, config.norm_eps, config.norm_offset) for weight in whole]
        self.cache = torch.empty(0)
        self.cos_sin: Tensor | None = None
        self.reading = Reading(block_size=0, sliding_window=layer.sliding_window, softcap=config.softcap)

    def kept(self, dtype: torch.dtype) -> CacheSpec:
        """The layer's cache of a token, if keys and values are of the type `dtype`."""
        c = self.config
        return CacheSpec(c.num_kv_heads, c.head_dim, c.head_dim, dtype_name(dtype), self.layer.sliding_window)

    def bind(self, cache: Tensor, block_size: int, cos_sin: dict[str, Tensor]) -> None:
        """`cos_sin`: the rotary tables by the names that the config gives them."""
        self.cache = cache
        self.reading["block_size"] = block_size
        self.cos_sin = None if self.layer.rope is None else cos_sin[self.layer.rope]

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        return {"qkv": self.qkv, "out": self.out}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """Attention into `b.attended`."""
        c, layer = self.config, self.layer
        self.qkv.apply(x, b.qkv)
        if self.whole_norms:
            for part, norm in zip(b.qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1), self.whole_norms, strict=False):
                norm.apply(part, part)
        written = (b.qkv, b.q, self.cache, batch.slots, batch.positions, self.cos_sin)
        queries = (batch.context_lens, batch.query_start, b.attended, layer.scale)
        plan = batch.plans.get(layer.sliding_window)
        if batch.stage is None:
            ops.rope_attention(*written, batch.block_tables, *queries, plan=plan, **self.norms, **self.reading)
        else:
            ops.rope_write_kv(*written, block_size=self.reading["block_size"], **self.norms)
            blocks = batch.stage.gather(self.cache)  # with what was just written
            ops.paged_attention(b.q, blocks, batch.stage.tables, *queries, plan=plan, **self.reading)

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        """The output of `b.attended`, added to the residual stream `b.hidden`, and normalised for what follows."""
        return self.out.into_norm(b.attended.flatten(1), b, add_norm)
