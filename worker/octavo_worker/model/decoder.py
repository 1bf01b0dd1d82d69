"""The generic decoder: every family that `config.decoder_config` describes, over the kernels' operations only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from octavo_kernels import ops
from torch import Tensor

from octavo_worker.model.batch import Batch
from octavo_worker.model.config import Activation, DecoderConfig
from octavo_worker.model.weights import DecoderWeights, LayerWeights, Norm


class Workspace:
    """Buffers reused by every layer and step: fresh ones of megabytes would cost page faults each time."""

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        def buffer(*width: int) -> Tensor:
            return torch.empty((rows, *width), dtype=dtype, device=device)

        self.rows = rows
        self.hidden = buffer(config.hidden_size)
        self.normed = buffer(config.hidden_size)
        self.delta = buffer(config.hidden_size)
        self.qkv = buffer(config.q_size + 2 * config.kv_size)
        self.q = buffer(config.num_heads, config.head_dim)
        self.attended = buffer(config.num_heads, config.head_dim)
        self.up = buffer(config.intermediate_size * (2 if config.gated else 1))
        self.activated = buffer(config.intermediate_size)


class Decoder:
    """Runs ragged batches against a paged KV cache.

    `bind` attaches the cache and fixes the longest position; then `forward` turns a batch into the final hidden states
    of the rows asked for, and `logits` those into float32 logits.
    """

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, token_budget: int) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self.vocab_size = config.vocab_size
        self.max_position = config.max_position
        self.num_layers = len(config.layers)
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        # Gemma was trained with the multiplier rounded to the weights' dtype.
        self.embedding_multiplier = torch.tensor(config.embedding_multiplier, dtype=self.dtype).item()
        self.workspace = Workspace(config, token_budget, self.dtype, self.device)
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
        if tokens > self.workspace.rows:
            self.workspace = Workspace(self.config, tokens, self.dtype, self.device)
        hidden = self._embed(batch, self.workspace.hidden[:tokens])
        delta: Tensor | None = None
        post_norm: Norm | None = None
        for i, layer in enumerate(self.weights.layers):
            x = self._advance(hidden, delta, post_norm, layer.attn_norm)
            attended = self._attend(x, i, layer, batch)
            if rows is not None and i == self.num_layers - 1:  # nobody reads the other rows any more
                attended, hidden = attended[rows], hidden[rows]
            delta = ops.linear(attended, layer.out.weight, layer.out.bias, out=self.workspace.delta[: len(hidden)])
            x = self._advance(hidden, delta, layer.post_attn_norm, layer.mlp_norm)
            delta = self._mlp(x, layer)
            post_norm = layer.post_mlp_norm
        return self._advance(hidden, delta, post_norm, self.weights.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[R, vocab]`."""
        logits = ops.linear(hidden, self.weights.head).float()
        if self.config.logits_divisor != 1.0:
            logits.div_(self.config.logits_divisor)
        if self.config.logits_softcap:
            logits.div_(self.config.logits_softcap).tanh_().mul_(self.config.logits_softcap)
        return logits

    def _embed(self, batch: Batch, hidden: Tensor) -> Tensor:
        torch.index_select(self.weights.embed, 0, batch.token_ids, out=hidden)
        if self.embedding_multiplier != 1.0:
            hidden.mul_(self.embedding_multiplier)
        if self.weights.positions is not None and self.config.position_offset is not None:
            hidden.add_(self.weights.positions[batch.positions + self.config.position_offset])
        return hidden

    def _advance(self, hidden: Tensor, delta: Tensor | None, post: Norm | None, pre: Norm | None) -> Tensor:
        """Adds a block's normed output to the residual stream, in place, and returns the next block's normed input."""
        if delta is not None and post is not None:
            delta = self._norm(delta, post, out=delta)
        if delta is not None and self.config.residual_multiplier != 1.0:
            delta = delta.mul_(self.config.residual_multiplier)
        if pre is not None:
            return self._norm(delta if delta is not None else hidden, pre, hidden if delta is not None else None)
        if delta is not None:
            hidden.add_(delta)
        return hidden

    def _norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        out = self.workspace.normed[: len(x)] if out is None else out
        if self.config.norm == "layer":
            return ops.layer_norm(x, norm.weight, norm.bias, self.config.norm_eps, out=out, residual=residual)
        offset = self.config.norm_offset
        return ops.rms_norm(x, norm.weight, self.config.norm_eps, out=out, residual=residual, offset=offset)

    def _attend(self, x: Tensor, index: int, layer: LayerWeights, batch: Batch) -> Tensor:
        """Attention of `x[T, hidden]`, before the output projection: `[T, q_size]`."""
        attention, cache, tokens = self.config.layers[index], self.caches[index], len(x)
        qkv = ops.linear(x, layer.qkv.weight, layer.qkv.bias, out=self.workspace.qkv[:tokens])
        q = self._queries(qkv, index, layer, batch)
        out = self.workspace.attended[:tokens]
        ops.paged_attention(
            q,
            cache,
            batch.block_tables,
            batch.context_lens,
            batch.query_start,
            out,
            attention.scale,
            block_size=self.block_size,
            sliding_window=attention.sliding_window,
            softcap=self.config.softcap,
        )
        return out.view(tokens, self.config.q_size)

    def _queries(self, qkv: Tensor, index: int, layer: LayerWeights, batch: Batch) -> Tensor:
        """Writes this step's keys and values into the cache; returns the queries `[T, heads, head_dim]`."""
        c, rope, tokens = self.config, self.config.layers[index].rope, len(qkv)
        if rope is None:
            q, k, v = qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1)
            heads = (tokens, c.num_kv_heads, c.head_dim)
            ops.write_kv(k.reshape(heads), v.reshape(heads), self.caches[index], batch.slots, self.block_size)
            return q.reshape(tokens, c.num_heads, c.head_dim)
        if c.qk_norm == "whole":
            self._norm_whole(qkv, layer)
        per_head = c.qk_norm == "head"
        q = self.workspace.q[:tokens]
        ops.rope_write_kv(
            qkv,
            q,
            self.caches[index],
            batch.slots,
            batch.positions,
            self.cos_sin[rope],
            q_norm=layer.q_norm if per_head else None,
            k_norm=layer.k_norm if per_head else None,
            eps=c.norm_eps,
            block_size=self.block_size,
            norm_offset=c.norm_offset,
        )
        return q

    def _norm_whole(self, qkv: Tensor, layer: LayerWeights) -> None:
        """OLMo 2 normalises all query heads together, and all key heads together, before the rotation."""
        c = self.config
        q, k, _ = qkv.split((c.q_size, c.kv_size, c.kv_size), dim=1)
        for part, weight in ((q, layer.q_norm), (k, layer.k_norm)):
            part.copy_(ops.rms_norm(part.contiguous(), weight, c.norm_eps, offset=c.norm_offset))

    def _mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        rows = len(x)
        up = ops.linear(x, layer.up.weight, layer.up.bias, out=self.workspace.up[:rows])
        if self.config.gated:
            activated = ops.act_and_mul(up, self.config.activation, out=self.workspace.activated[:rows])
        else:
            activated = _activate(up, self.config.activation)
        return ops.linear(activated, layer.down.weight, layer.down.bias, out=self.workspace.delta[:rows])


def _activate(x: Tensor, kind: Activation) -> Tensor:
    if kind == "relu":
        return x.relu_()
    if kind == "silu":
        return F.silu(x, inplace=True)
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
