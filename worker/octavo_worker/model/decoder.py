"""The generic decoder: every family that `config.decoder_config` describes, over the kernels' operations only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.operands import RmsNorm
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import DecoderConfig, common_window
from octavo_worker.model.weights import DecoderWeights, LayerWeights, Linear, Norm


@dataclass(slots=True)
class Buffers:
    """Scratch of one step, a row a token; every layer overwrites it."""

    hidden: Tensor  # the residual stream
    normed: Tensor
    delta: Tensor  # what a block adds to the residual stream
    qkv: Tensor
    q: Tensor  # [T, heads, head_dim]
    attended: Tensor  # [T, heads, head_dim]
    up: Tensor
    activated: Tensor

    @classmethod
    def allocate(cls, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> Buffers:
        def buffer(*width: int) -> Tensor:
            return torch.empty((rows, *width), dtype=dtype, device=device)

        return cls(
            hidden=buffer(config.hidden_size),
            normed=buffer(config.hidden_size),
            delta=buffer(config.hidden_size),
            qkv=buffer(config.q_size + 2 * config.kv_size),
            q=buffer(config.num_heads, config.head_dim),
            attended=buffer(config.num_heads, config.head_dim),
            up=buffer(config.intermediate_size * (2 if config.gated else 1)),
            activated=buffer(config.intermediate_size),
        )

    def first(self, rows: int) -> Buffers:
        return Buffers(*(getattr(self, field.name)[:rows] for field in fields(self)))

    def select(self, rows: Tensor) -> Buffers:
        """Buffers of `rows` only, with their hidden states and attention outputs."""
        chosen = self.first(len(rows))
        chosen.hidden, chosen.attended = self.hidden[rows], self.attended[rows]
        return chosen


@dataclass(frozen=True, slots=True)
class Input:
    """What a block begins with: `rows[T, hidden]`, which its first product has still to normalise if there is a `norm`,
    through `normed` if it cannot do that on the way."""

    rows: Tensor
    norm: RmsNorm | None = None
    normed: Tensor | None = None


class Decoder:
    """Runs ragged batches against a paged KV cache.

    `bind` attaches the cache and fixes the longest position; then `forward` turns a batch into the final hidden states
    of the rows asked for, and `logits` those into logits. A `uniform` one takes products and attention on a GPU whose
    rows do not depend on what else is in the batch.
    """

    is_capturable = True

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, token_budget: int, *, uniform: bool = False
    ) -> None:
        self.config = config
        self.weights = weights
        self.uniform = uniform
        # Whether a block's last product may come in parts, which the next norm adds.
        self.sums_parts = config.norm == "rms" and config.pre_norm and not uniform
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self.vocab_size = config.vocab_size
        self.num_layers = len(config.layers)
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.windows = sorted({layer.sliding_window for layer in config.layers})
        self.head_dim = config.head_dim
        self.window = common_window(layer.sliding_window for layer in config.layers)
        # Gemma was trained with the multiplier rounded to the weights' dtype.
        self.embedding_multiplier = torch.tensor(config.embedding_multiplier, dtype=self.dtype).item()
        self.buffers = Buffers.allocate(config, token_budget, self.dtype, self.device)
        self.counter = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.caches: list[Tensor] = []
        self.cos_sin: dict[str, Tensor] = {}
        self.block_size = 0

    def bind(self, kv_cache: Tensor, block_size: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.caches = [kv_cache[:, layer] for layer in range(self.num_layers)]
        self.cos_sin = {k: rope.cos_sin(max_model_len).to(self.device) for k, rope in self.config.ropes.items()}

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor:
        """Hidden states `[R, hidden]`, after the final norm, of `rows[R]` (int64); None means of all tokens."""
        tokens = len(batch.token_ids)
        needed = max(tokens, 0 if rows is None else len(rows))
        if needed > len(self.buffers.hidden):
            self.buffers = Buffers.allocate(self.config, needed, self.dtype, self.device)
        b = self.buffers.first(tokens)
        self._embed(batch, b.hidden)
        delta: Tensor | None = None
        for i, layer in enumerate(self.weights.layers):
            self._attend(b, self._input(b, delta, layer.attn_norm), i, layer, batch)
            if rows is not None and i == self.num_layers - 1:  # nobody reads the other rows any more
                b = self.buffers.select(rows)  # which may be more than there are tokens: samples share them
            delta = self._project(b, b.attended.flatten(1), layer.out, layer.post_attn_norm)
            self._activate(b, self._input(b, delta, layer.mlp_norm), layer)
            delta = self._project(b, b.activated, layer.down, layer.post_mlp_norm)
        return self._advance(b, delta, self.weights.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[R, vocab]`, in the weights' dtype unless something is done to them: kernels read that, and a float32 copy
        of a large batch takes longer than sampling from it."""
        logits = ops.linear(hidden, self.weights.head, uniform=self.uniform, counter=self.counter)
        if self.config.logits_divisor != 1.0:
            logits = logits.float().div_(self.config.logits_divisor)
        if self.config.logits_softcap:
            logits = logits.float().div_(self.config.logits_softcap).tanh_().mul_(self.config.logits_softcap)
        return logits

    def _embed(self, batch: Batch, hidden: Tensor) -> None:
        torch.index_select(self.weights.embed, 0, batch.token_ids, out=hidden)
        if self.embedding_multiplier != 1.0:
            hidden.mul_(self.embedding_multiplier)
        if self.weights.positions is not None and self.config.position_offset is not None:
            hidden.add_(self.weights.positions[batch.positions + self.config.position_offset])

    def _project(self, b: Buffers, x: Tensor, linear: Linear, post: Norm | None) -> Tensor | None:
        """Adds a block's last product to the residual stream, or returns what is still to be added: that product, or
        float32 parts of it for the next norm."""
        multiplier = self.config.residual_multiplier
        if post is None and multiplier == 1.0:
            if self.sums_parts and linear.bias is None and (parts := ops.linear_parts(x, linear.weight)) is not None:
                return parts
            self._linear(Input(x), linear, b.hidden, residual=b.hidden)
            return None
        delta = self._linear(Input(x), linear, b.delta)
        if post is not None:
            self._norm(delta, post, delta)
        return delta if multiplier == 1.0 else delta.mul_(multiplier)

    def _input(self, b: Buffers, delta: Tensor | None, pre: Norm | None) -> Input:
        """Adds `delta` to the residual stream, in place. Returns the next block's input."""
        if delta is None and pre is not None and self.config.norm == "rms":
            return Input(b.hidden, RmsNorm(pre.weight, self.config.norm_eps, self.config.norm_offset), b.normed)
        return Input(self._advance(b, delta, pre))

    def _advance(self, b: Buffers, delta: Tensor | None, pre: Norm | None) -> Tensor:
        """Adds `delta` to the residual stream, in place, and returns that, normed."""
        if pre is None:
            return b.hidden if delta is None else b.hidden.add_(delta)
        if delta is None:
            return self._norm(b.hidden, pre, b.normed)
        if delta.dim() > b.hidden.dim():
            c = self.config
            return ops.rms_norm_of_sum(delta, b.hidden, pre.weight, c.norm_eps, out=b.normed, offset=c.norm_offset)
        return self._norm(delta, pre, b.normed, residual=b.hidden)

    def _norm(self, x: Tensor, norm: Norm, out: Tensor, residual: Tensor | None = None) -> Tensor:
        c = self.config
        if c.norm == "layer":
            return ops.layer_norm(x, norm.weight, norm.bias, c.norm_eps, out=out, residual=residual)
        return ops.rms_norm(x, norm.weight, c.norm_eps, out=out, residual=residual, offset=c.norm_offset)

    def _attend(self, b: Buffers, x: Input, index: int, layer: LayerWeights, batch: Batch) -> None:
        """Attention into `b.attended`, before the output projection; this step's keys and values go into the cache."""
        c, attention = self.config, self.config.layers[index]
        self._linear(x, layer.qkv, b.qkv)
        if c.qk_norm == "whole":
            self._norm_whole(b.qkv, layer)
        cache, rope = self.caches[index], attention.rope
        q_norm, k_norm = (layer.q_norm, layer.k_norm) if c.qk_norm == "head" else (None, None)
        written = (b.qkv, b.q, cache, batch.slots, batch.positions, None if rope is None else self.cos_sin[rope])
        norms: dict[str, Any] = {"q_norm": q_norm, "k_norm": k_norm, "eps": c.norm_eps, "norm_offset": c.norm_offset}
        queries = (batch.context_lens, batch.query_start, b.attended, attention.scale)
        read: dict[str, Any] = {
            "block_size": self.block_size,
            "sliding_window": attention.sliding_window,
            "softcap": c.softcap,
            "plan": batch.plans.get(attention.sliding_window),
        }
        if batch.stage is None:
            ops.rope_attention(*written, batch.block_tables, *queries, **norms, **read)
        else:  # attention reads what the stage has gathered from the cache by then
            ops.rope_write_kv(*written, block_size=self.block_size, **norms)
            ops.paged_attention(b.q, batch.stage.gather(cache), batch.stage.tables, *queries, **read)

    def _norm_whole(self, qkv: Tensor, layer: LayerWeights) -> None:
        """OLMo 2 normalises all query heads together, and all key heads together, before the rotation."""
        c = self.config
        q, k, _ = qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1)
        for part, weight in ((q, layer.q_norm), (k, layer.k_norm)):
            ops.rms_norm(part, weight, c.norm_eps, out=part, offset=c.norm_offset)

    def _activate(self, b: Buffers, x: Input, layer: LayerWeights) -> None:
        """The MLP into `b.activated`, before its last product."""
        up, kind = layer.up, self.config.activation
        if self.config.gated:
            ops.gated_linear(
                x.rows,
                up.weight,
                kind,
                up.bias,
                out=b.activated,
                scratch=b.up,
                norm=x.norm,
                normed=x.normed,
                uniform=self.uniform,
                counter=self.counter,
            )
        else:
            ops.act(self._linear(x, up, b.up), kind, out=b.activated)

    def _linear(self, x: Input, linear: Linear, out: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops.linear(
            x.rows,
            linear.weight,
            linear.bias,
            out=out,
            residual=residual,
            norm=x.norm,
            normed=x.normed,
            uniform=self.uniform,
            counter=self.counter,
        )
