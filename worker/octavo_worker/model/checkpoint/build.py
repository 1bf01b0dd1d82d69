"""A decoder's layers from its config and a source of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.formats import Format, Matrix, Reader
from octavo_worker.model.checkpoint.names import NAMES
from octavo_worker.model.config import AttentionLayer, DecoderConfig
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.layers.attention import Attention
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.mlp import GatedMlp, Mlp, PlainMlp
from octavo_worker.model.layers.norm import AddNorm, LayerNorm, Norm, RmsNorm


def build_layers(config: DecoderConfig, reader: Reader, form: Format) -> DecoderLayers:
    """All layers with their weights. Raises `CheckpointError`, naming the tensor."""
    return _Builder(config, reader, form).layers()


class _Builder:
    def __init__(self, config: DecoderConfig, reader: Reader, form: Format) -> None:
        self.config, self.reader, self.form = config, reader, form
        self.names = names = NAMES[config.family]
        self.root = reader.source.prefix(names.prefixes, f"{names.embed}.weight")

    def layers(self) -> DecoderLayers:
        c, names = self.config, self.names
        embed = self._table(f"{self.root}{names.embed}", c.vocab_size)
        learned = c.position_offset is not None
        positions = c.max_position + (c.position_offset or 0)
        table = self._table(f"{self.root}{names.positions}", positions) if learned else None
        places = [f"{self.root}{names.layer.format(index)}" for index in range(len(c.layers))]
        norms = [self._norm(at + names.attn_norm) if c.pre_norm else None for at in places]
        norms.append(self._norm(f"{self.root}{names.final_norm}"))
        blocks = [self._block(*each) for each in zip(places, c.layers, norms[1:], strict=True)]
        head = self._head()
        self.reader.source.finish(names.ignored)  # reads may have been under way until now
        if head is None or (c.tied and isinstance(head, Dense) and torch.equal(head.weight, embed)):
            head = Dense(embed, products=self.reader.products)
        return DecoderLayers(embed, table, AddNorm(norms[0]), blocks, head)

    def _head(self) -> Linear | None:
        """None: it is the embedding. Some checkpoints say so and have a head all the same, mostly a copy; one that
        differs counts."""
        name = self.names.head
        if self.config.tied and not self.reader.source.under(name):
            return None
        return self.form.linear(Matrix([name], [self.config.vocab_size], self.config.hidden_size), self.reader)

    def _block(self, at: str, layer: AttentionLayer, next_norm: Norm | None) -> Block:
        c, names = self.config, self.names
        mlp_norm = self._norm(at + names.mlp_norm) if c.pre_norm else None
        return Block(
            attention=self._attention(at, layer),
            attention_end=AddNorm(mlp_norm, self._post_norm(at + names.post_attn_norm), c.residual_multiplier),
            mlp=self._mlp(at),
            mlp_end=AddNorm(next_norm, self._post_norm(at + names.post_mlp_norm), c.residual_multiplier),
        )

    def _attention(self, at: str, layer: AttentionLayer) -> Attention:
        c, names = self.config, self.names
        q, kv = c.q_size, c.kv_size
        rows = (q, kv, kv) if len(names.qkv) == 3 else (q + 2 * kv,)
        sizes = {"none": (), "head": (c.head_dim, c.head_dim), "whole": (q, kv)}[c.qk_norm]
        qkv = self._linear([at + name for name in names.qkv], rows, c.hidden_size, c.qkv_bias)
        norms = [self._vector(at + name, size) for name, size in zip((names.q_norm, names.k_norm), sizes, strict=False)]
        out = self._linear([at + names.out], (c.hidden_size,), q, c.out_bias)
        return Attention(c, layer, qkv, out, norms)

    def _mlp(self, at: str) -> Mlp:
        c, names = self.config, self.names
        width = c.intermediate_size
        rows = (width,) * len(names.up) if len(names.up) == 2 or not c.gated else (2 * width,)
        up = self._linear([at + name for name in names.up], rows, c.hidden_size, c.mlp_bias)
        down = self._linear([at + names.down], (c.hidden_size,), width, c.mlp_bias)
        if not c.gated:
            return PlainMlp(up, down, c.activation)
        assert c.activation != "relu"  # config refuses it
        return GatedMlp(up, down, c.activation)

    def _linear(self, names: list[str], rows: tuple[int, ...], depth: int, biased: bool) -> Linear:
        return self.form.linear(Matrix(names, rows, depth, biased, self.names.transposed), self.reader)

    def _table(self, name: str, rows: int) -> Tensor:
        return self.reader.read(f"{name}.weight", rows, self.config.hidden_size)

    def _vector(self, name: str, size: int) -> Tensor:
        return self.reader.read(f"{name}.weight", size)

    def _post_norm(self, name: str) -> Norm | None:
        return self._norm(name) if self.config.post_norm else None

    def _norm(self, name: str) -> Norm:
        c = self.config
        weight = self._vector(name, c.hidden_size)
        if c.norm == "layer":
            return LayerNorm(weight, self.reader.read(f"{name}.bias", c.hidden_size), c.norm_eps)
        return RmsNorm(weight, c.norm_eps, c.norm_offset)
