"""A decoder's layers from its config and a source of tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.formats import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.checkpoint.names import NAMES
from octavo_worker.model.config import AttentionLayer, DecoderConfig
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.layers.attention import Attention
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.mlp import GatedMlp, Mlp, PlainMlp
from octavo_worker.model.layers.norm import AddNorm, LayerNorm, Norm, RmsNorm
from octavo_worker.model.layers.quantised import Quantised
from octavo_worker.model.layers.summed import Summed
from octavo_worker.model.shards import Shards
from octavo_worker.ranks.group import Group


def build_layers(config: DecoderConfig, reader: Reader, form: Format, split: Split | None = None) -> DecoderLayers:
    """All layers with their weights, or of a model that is split those that this rank holds. Raises `CheckpointError`,
    naming the tensor."""
    return _Builder(config, reader, form, split).layers()


@dataclass(frozen=True, slots=True)
class Split:
    """Which part of a model this rank holds, and where its ranks meet."""

    shards: Shards
    group: Group


class _Builder:
    def __init__(self, config: DecoderConfig, reader: Reader, form: Format, split: Split | None) -> None:
        """`config` is that of the whole model."""
        self.config, self.reader, self.form, self.split = config, reader, form, split
        self.shards = None if split is None else split.shards
        self.names = names = NAMES[config.family]
        self.root = reader.source.prefix(names.prefixes, f"{names.final_norm}.weight")

    def layers(self) -> DecoderLayers:
        c, names = self.config, self.names
        embed = self._table(self._embedding(), c.vocab_size)
        learned = c.position_offset is not None
        positions = c.max_position + (c.position_offset or 0)
        learned_table = self._table(f"{self.root}{names.positions}", positions) if learned else None
        places = [f"{self.root}{names.layer.format(index)}" for index in range(len(c.layers))]
        norms = [self._norm(at + names.attn_norm) if c.pre_norm else None for at in places]
        norms.append(self._norm(f"{self.root}{names.final_norm}"))
        blocks = [self._block(*each) for each in zip(places, c.layers, norms[1:], strict=True)]
        head = self._head()
        self.reader.source.finish(names.ignored)  # reads may have been under way until now
        table = embed if self.shards is None else embed[self.shards.vocabulary.start : self.shards.vocabulary.stop]
        if head is None or (c.tied and isinstance(head, Dense) and torch.equal(head.weight, table)):
            head = Dense(table, products=self.reader.products)
        return DecoderLayers(embed, learned_table, AddNorm(norms[0]), blocks, head)

    def _embedding(self) -> str:
        """The table's name, which is the head's where that is the only one of two tied ones that is stored."""
        own, head, source = f"{self.root}{self.names.embed}", self.names.head, self.reader.source
        return head if self.config.tied and not source.under(own) and source.under(head) else own

    def _head(self) -> Linear | None:
        """None: it is the embedding. Some checkpoints say so and have a head all the same, mostly a copy; one that
        differs counts."""
        name = self.names.head
        if self.config.tied and (self._embedding() == name or not self.reader.source.under(name)):
            return None
        held = self.shards and self.shards.head()
        matrix = Matrix([name], [self.config.vocab_size], self.config.hidden_size, held=held)
        return self.form.linear(matrix, self.reader)

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
        held = self.shards and self.shards.qkv(len(names.qkv))
        qkv = self._linear([at + name for name in names.qkv], rows, c.hidden_size, c.qkv_bias, held)
        norms = [self._vector(at + name, size) for name, size in zip((names.q_norm, names.k_norm), sizes, strict=False)]
        out = self._last(at + names.out, q, c.out_bias, self.shards and self.shards.out())
        return Attention(c if self.shards is None else self.shards.config, layer, qkv, out, norms)

    def _mlp(self, at: str) -> Mlp:
        c, names = self.config, self.names
        width = c.intermediate_size
        rows = (width,) * len(names.up) if len(names.up) == 2 or not c.gated else (2 * width,)
        held = self.shards and self.shards.up(len(names.up))
        up = self._linear([at + name for name in names.up], rows, c.hidden_size, c.mlp_bias, held)
        down = self._last(at + names.down, width, c.mlp_bias, self.shards and self.shards.down())
        if not c.gated:
            return PlainMlp(up, down, c.activation)
        assert c.activation != "relu"  # config refuses it
        return GatedMlp(up, down, c.activation)

    def _linear(self, names: list[str], rows: tuple[int, ...], depth: int, biased: bool, held: Held | None) -> Linear:
        return self.form.linear(Matrix(names, rows, depth, biased, self.names.transposed, held), self.reader)

    def _last(self, name: str, depth: int, biased: bool, held: Held | None) -> Linear:
        """The last product of a sublayer, which is split by its depth. The bias is added once."""
        hidden = self.config.hidden_size
        linear = self._linear([name], (hidden,), depth, biased, held)
        if self.split is None:
            return linear
        if biased and self.split.shards.rank.index > 0:
            assert isinstance(linear, Dense | Quantised)  # one part is in one form
            linear = replace(linear, bias=None)
        return Summed(linear, hidden, self.split.group)

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
