"""The attention of a block, up to its output projection."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import AttentionLayer, DecoderConfig
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input, RmsNorm


class Attention:
    """`bind` attaches the layer's part of the KV cache; then `attend` writes this step's keys and values into it and
    reads all of a sequence's."""

    def __init__(
        self,
        config: DecoderConfig,
        layer: AttentionLayer,
        qkv: Linear,
        out: Linear,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> None:
        """`qkv` has the rows of all query heads, then of all key heads, then of all value heads."""
        self.config, self.layer = config, layer
        self.qkv, self.out = qkv, out
        self.q_norm, self.k_norm = (q_norm, k_norm) if config.qk_norm == "head" else (None, None)
        self.whole_norms: list[RmsNorm] = []
        """Of all query heads together and of all key heads together, as in OLMo 2."""
        if config.qk_norm == "whole" and q_norm is not None and k_norm is not None:
            self.whole_norms = [RmsNorm(weight, config.norm_eps, config.norm_offset) for weight in (q_norm, k_norm)]
        self.cache = torch.empty(0)
        self.cos_sin: Tensor | None = None
        self.block_size = 0

    def bind(self, cache: Tensor, block_size: int, cos_sin: dict[str, Tensor]) -> None:
        """`cos_sin`: the rotary tables by the names that the config gives them."""
        self.cache, self.block_size = cache, block_size
        self.cos_sin = None if self.layer.rope is None else cos_sin[self.layer.rope]

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """Attention into `b.attended`."""
        c, layer = self.config, self.layer
        self.qkv.apply(x, b.qkv)
        if self.whole_norms:
            for part, norm in zip(b.qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1), self.whole_norms, strict=False):
                norm.apply(part, part)
        plan = batch.plans.get(layer.sliding_window)
        if batch.stage is None:
            ops.rope_attention(
                b.qkv,
                b.q,
                self.cache,
                batch.slots,
                batch.positions,
                self.cos_sin,
                batch.block_tables,
                batch.context_lens,
                batch.query_start,
                b.attended,
                layer.scale,
                q_norm=self.q_norm,
                k_norm=self.k_norm,
                eps=c.norm_eps,
                norm_offset=c.norm_offset,
                block_size=self.block_size,
                sliding_window=layer.sliding_window,
                softcap=c.softcap,
                plan=plan,
            )
            return
        ops.rope_write_kv(
            b.qkv,
            b.q,
            self.cache,
            batch.slots,
            batch.positions,
            self.cos_sin,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=c.norm_eps,
            norm_offset=c.norm_offset,
            block_size=self.block_size,
        )
        ops.paged_attention(
            b.q,
            batch.stage.gather(self.cache),  # with what was just written
            batch.stage.tables,
            batch.context_lens,
            batch.query_start,
            b.attended,
            layer.scale,
            block_size=self.block_size,
            sliding_window=layer.sliding_window,
            softcap=c.softcap,
            plan=plan,
        )
