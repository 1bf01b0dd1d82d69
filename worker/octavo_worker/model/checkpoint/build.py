"""A decoder's layers from its config and a source of tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.formats import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.checkpoint.latent import LatentReader
from octavo_worker.model.checkpoint.mixtures import MixtureReader, without_bias
from octavo_worker.model.checkpoint.recurrent import RecurrentReader
from octavo_worker.model.checkpoint.source import Cut
from octavo_worker.model.config import (
    AttentionLayer,
    Branches,
    DecoderConfig,
    DenseMlp,
    LatentLayer,
    Layer,
    LayerInputs,
    MixerLayer,
    MixtureMlp,
)
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.layers.attention import Attention, HeadWeights
from octavo_worker.model.layers.beside import BesideMlp
from octavo_worker.model.layers.block import Block, ParallelBlock
from octavo_worker.model.layers.layer_inputs import AddingBlock, InputAdder, InputTable
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.mixer import Mixer
from octavo_worker.model.layers.mixture import ExpertMlp
from octavo_worker.model.layers.mlp import GatedMlp, Mlp, PlainMlp
from octavo_worker.model.layers.norm import AddNorm, LayerNorm, Norm, RmsNorm
from octavo_worker.model.layers.output_gate import AttentionGate
from octavo_worker.model.layers.recurrent.branches import BranchMixer
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.layers.sole import Absent, SoleMixer, SoleMlp
from octavo_worker.model.layers.summed import Summed
from octavo_worker.model.layers.whole_norm import WholeNorms
from octavo_worker.model.recurrent.layers import RecurrentLayer
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
        self.names = names = config.names
        marker = names.final_norm if "weight" in config.norm_tensors else names.embed
        self.root = reader.source.prefix(names.prefixes, f"{marker}.weight")
        self.head = next((name for name in names.heads if reader.source.under(name)), names.heads[0])

    def layers(self) -> DecoderLayers:
        c, names = self.config, self.names
        embed = self._table(self._embedding(), c.vocab_size)
        learned = c.position_offset is not None
        positions = c.max_position + (c.position_offset or 0)
        learned_table = self._table(f"{self.root}{names.positions}", positions) if learned else None
        places = [f"{self.root}{names.layer.format(index)}" for index in range(len(c.layers))]
        starts = zip(places, c.layers, strict=True)
        norms = [None if layer.norms == "after" else self._norm(at + names.attn_norm) for at, layer in starts]
        norms.append(self._norm(f"{self.root}{names.final_norm}"))
        blocks = [self._block(*each) for each in zip(range(len(places)), places, c.layers, norms[1:], strict=True)]
        head = self._head()
        inputs = None if c.layer_inputs is None else self._inputs(c.layer_inputs)
        extra = tuple(f"{self.root}{names.layer.format(len(places) + index)}" for index in range(c.extra_layers))
        extra += tuple(at + name for at, layer in zip(places, c.layers, strict=True) for name in self._unused(layer))
        self.reader.source.finish(lambda name: names.has_no_use(name) or name.startswith(extra))  # waits for all reads
        table = embed if self.shards is None else embed[self.shards.vocabulary.start : self.shards.vocabulary.stop]
        if head is None or (c.tied and isinstance(head, Dense) and torch.equal(head.weight, table)):
            head = Dense(table, products=self.reader.products)
        return DecoderLayers(embed, learned_table, AddNorm(norms[0]), blocks, head, inputs)

    def _embedding(self) -> str:
        """The table's name, which is the head's where that is the only one of two tied ones that is stored."""
        own, head, source = f"{self.root}{self.names.embed}", self.head, self.reader.source
        return head if self.config.tied and not source.under(own) and source.under(head) else own

    def _head(self) -> Linear | None:
        """None: it is the embedding. Some checkpoints say so and have a head all the same, mostly a copy; one that
        differs counts."""
        name = self.head
        if self.config.tied and (self._embedding() == name or not self.reader.source.under(name)):
            return None
        held = self.shards and self.shards.head()
        matrix = Matrix([name], [self.config.vocab_size], self.config.hidden_size, held=held)
        return self.form.linear(matrix, self.reader)

    def _unused(self, layer: Layer) -> tuple[str, ...]:
        """Tensors that some files have of a layer that does without them."""
        shares = isinstance(layer.attention, AttentionLayer) and layer.attention.shares is not None
        return (*self.names.qkv[1:], self.names.k_norm) if shares else ()

    def _inputs(self, inputs: LayerInputs) -> InputTable:
        """The inputs of all layers, whole on every rank."""
        c, names, columns = self.config, self.names.layer_inputs, len(self.config.layers) * inputs.width
        table = self.reader.read(f"{self.root}{names.table}.weight", inputs.vocab_size, columns)
        product = self._linear([f"{self.root}{names.product}"], (columns,), c.hidden_size, False, None)
        norm = RmsNorm(self._vector(f"{self.root}{names.norm}", inputs.width), c.norm_eps, c.norm_offset)
        return InputTable(table, product, norm, inputs.width)

    def _adder(self, number: int, at: str, inputs: LayerInputs) -> InputAdder:
        c, names, width = self.config, self.names.layer_inputs, inputs.width
        gate = self._linear([at + names.gate], (width,), c.hidden_size, False, None)
        out = self._linear([at + names.out], (c.hidden_size,), width, False, None)
        return InputAdder(gate, out, c.gate, slice(number * width, (number + 1) * width))

    def _block(self, number: int, at: str, layer: Layer, next_norm: Norm | None) -> Block:
        c, names = self.config, self.names
        if layer.mlp is None:
            end = AddNorm(next_norm, multiplier=c.residual_multiplier)
            return SoleMixer(self._mixer(at, layer.attention), end, Absent(), AddNorm(None))
        if layer.attention is None:
            return SoleMlp(Absent(), AddNorm(None), self._any_mlp(at, layer.mlp), self._mlp_end(next_norm))
        kind = ParallelBlock if layer.norms == "parallel" else Block
        ends = (names.post_attn_norm, names.post_mlp_norm) if layer.norms in ("after", "both") else (None, None)
        after_attention, after_mlp = [None if name is None else self._post_norm(at + name) for name in ends]
        mlp_norm = self._norm(at + names.mlp_norm) if layer.norms in ("before", "both") else None
        mixer, mlp = self._mixer(at, layer.attention), self._any_mlp(at, layer.mlp)
        mixer_end = AddNorm(mlp_norm, after_attention, c.residual_multiplier)
        scalar = self._scalar(at + names.layer_scalar) if c.layer_scalars else None
        if c.layer_inputs is None:
            return kind(mixer, mixer_end, mlp, self._mlp_end(next_norm, after_mlp, scalar))
        end = AddNorm(next_norm, self._post_norm(at + names.layer_inputs.post_norm), scalar=scalar)
        adder = self._adder(number, at, c.layer_inputs)
        return AddingBlock(mixer, mixer_end, mlp, AddNorm(None, after_mlp), adder, end)

    def _mlp_end(
        self, next_norm: Norm | None, post_norm: RmsNorm | None = None, scalar: Tensor | None = None
    ) -> AddNorm:
        return AddNorm(next_norm, post_norm, self.config.residual_multiplier * self.config.mlp_multiplier, scalar)

    def _scalar(self, name: str) -> Tensor:
        scalar = self.reader.empty(1)
        self.reader.source.read(name, scalar)
        return scalar

    def _mixer(self, at: str, layer: MixerLayer | None) -> Mixer:
        assert layer is not None
        if isinstance(layer, Branches):
            return BranchMixer(layer, self._attention(at, layer.attention), self._recurrent(at, layer.recurrent))
        if isinstance(layer, LatentLayer):
            out = self._last(
                at + self.names.out, layer.heads * layer.value_dim, layer.biased,
                self.shards and self.shards.out_of(layer.value_dim),
            )  # fmt: skip
            return LatentReader(self.config, self.reader, self.form, self.shards).read(at, layer, out)
        return self._attention(at, layer) if isinstance(layer, AttentionLayer) else self._recurrent(at, layer)

    def _recurrent(self, at: str, layer: RecurrentLayer) -> RecurrentMixer:
        group = None if self.split is None else self.split.group
        return RecurrentReader(self.config, self.reader, self.form, self.shards, group).read(at, layer)

    def _attention(self, at: str, layer: AttentionLayer) -> Attention:
        c, names = self.config.of(layer), self.names
        shards = self.shards and self.shards.of(layer)
        q, kv, projected = c.q_size, c.kv_size, layer.projected
        stored = names.qkv if len(names.qkv) == 1 else names.qkv[: 1 + projected]
        rows = (q, *[kv] * projected) if len(names.qkv) == 3 else (q + projected * kv,)
        held = shards and shards.qkv(projected, len(stored))
        order = c.head_order if layer.rope is not None else None
        matrix = Matrix([at + name for name in stored], rows, c.hidden_size, c.qkv_bias, names.transposed, held)
        if order is not None:
            matrix = replace(matrix, orders=(order, order, None))
        gate_matrix = None if c.output_gate is None else self._gate_matrix(at + names.output_gate, c, shards)
        if c.output_gate is not None and c.output_gate.in_queries:
            matrix, gate_matrix = _apart(matrix, range(c.num_heads) if shards is None else shards.heads, c.head_dim)
        if gate_matrix is not None and c.gate_behind:
            matrix, gate_matrix = _stacked(matrix, gate_matrix), None
        qkv = self.form.linear(matrix, self.reader)
        sizes = {"whole": (q, kv), "none": ()}.get(c.qk_norm, (c.head_dim, c.head_dim))
        normed = (names.q_norm, names.k_norm)[: 2 if projected else 1]
        norms = [self._vector(at + name, size) for name, size in zip(normed, sizes, strict=False)]
        even = RmsNorm(self.reader.empty(c.head_dim).fill_(1.0), c.norm_eps, 0.0) if c.v_norm else None
        out = self._last(at + names.out, q, c.out_bias, shards and shards.out())
        product = None if gate_matrix is None else self.form.linear(gate_matrix, self.reader)
        gate = None if c.output_gate is None else AttentionGate(c.output_gate.activation, product)
        whole = self._whole_norms(norms, c, shards) if c.qk_norm == "whole" else None
        weights = HeadWeights(norms, whole, even, self._sinks(at + names.sinks, c, shards) if c.sinks else None, gate)
        return Attention(c if shards is None else shards.config, layer, qkv, out, weights)

    def _whole_norms(self, weights: list[Tensor], c: DecoderConfig, shards: Shards | None) -> WholeNorms:
        norms = [RmsNorm(weight, c.norm_eps, c.norm_offset) for weight in weights]
        if self.split is None or shards is None:
            return WholeNorms(norms)
        return WholeNorms(norms, self.split.group, shards.held_columns()[: len(norms)])

    @staticmethod
    def _gate_matrix(name: str, c: DecoderConfig, shards: Shards | None) -> Matrix:
        return Matrix([name], [c.gate_size], c.hidden_size, held=shards and shards.output_gate())

    def _sinks(self, name: str, c: DecoderConfig, shards: Shards | None) -> Tensor:
        """Sinks of this rank's heads, in the type in which scores are computed."""
        heads = c.num_heads
        held = range(heads) if shards is None else shards.heads
        sinks = torch.empty(len(held), dtype=torch.float32, device=self.reader.device)
        self.reader.source.read(name, sinks, cut=Cut((heads,), [held]))
        return sinks

    def _any_mlp(self, at: str, mlp: DenseMlp | MixtureMlp) -> Mlp:
        return self._mlp(at, mlp) if isinstance(mlp, DenseMlp) else self._mixture(at, mlp)

    def _mlp(self, at: str, mlp: DenseMlp) -> Mlp:
        c, names, width = self.config, self.names, mlp.width
        rows = (width,) * len(names.up) if len(names.up) == 2 or not c.gated else (2 * width,)
        held = self.shards and self.shards.up(width, len(names.up))
        up = self._linear([at + name for name in names.up], rows, c.hidden_size, c.mlp_bias, held)
        down = self._last(at + names.down, width, c.mlp_bias, self.shards and self.shards.down(width))
        if self.split is not None:
            width = len(self.split.shards.rank.share(width))
        if not c.gated:
            squared = c.activation == "relu2"
            return PlainMlp(up, down, width, "relu" if c.activation == "relu2" else c.activation, squared)
        return GatedMlp(up, down, width, c.gate, c.gate_multiplier)

    def _mixture(self, at: str, mlp: MixtureMlp) -> Mlp:
        reader = MixtureReader(self.config, self.reader, self.form, self.shards)
        mixture = reader.read(at, mlp)
        whole = mixture if self.split is None else Summed(mixture, self.config.hidden_size, self.split.group)
        if not mlp.beside:
            return ExpertMlp(mixture, whole)
        dense, names = self._mlp(at, DenseMlp(mlp.beside)), reader.names
        assert isinstance(dense, GatedMlp)
        return BesideMlp(
            mixture, whole, dense, self._post_norm(at + names.post_dense_norm), self._post_norm(at + names.post_norm)
        )

    def _linear(self, names: list[str], rows: tuple[int, ...], depth: int, biased: bool, held: Held | None) -> Linear:
        return self.form.linear(Matrix(names, rows, depth, biased, self.names.transposed, held), self.reader)

    def _last(self, name: str, depth: int, biased: bool, held: Held | None) -> Linear:
        """The last product of a sublayer, which is split by its depth. The bias is added once."""
        hidden = self.config.hidden_size
        linear = self._linear([name], (hidden,), depth, biased, held)
        if self.split is None:
            return linear
        if biased and self.split.shards.rank.index > 0:
            linear = without_bias(linear)
        return Summed(linear, hidden, self.split.group)

    def _table(self, name: str, rows: int) -> Tensor:
        return self.reader.read(f"{name}.weight", rows, self.config.hidden_size)

    def _vector(self, name: str, size: int) -> Tensor:
        return self.reader.read(f"{name}.weight", size)

    def _post_norm(self, name: str) -> RmsNorm:
        norm = self._norm(name)
        assert isinstance(norm, RmsNorm), "no family has layer norms behind its sublayers"
        return norm

    def _norm(self, name: str) -> Norm:
        """A norm whose tensors change nothing where none are stored."""
        c, parts = self.config, {}
        if not self.reader.source.under(name):
            module = name.rpartition(".")[2]
            name = name.removesuffix(module) + dict(self.names.renamed).get(module, module)
        for part, neutral in (("weight", 1.0 - self.config.norm_offset), ("bias", 0.0)):
            stored = part in c.norm_tensors
            parts[part] = self.reader.read(f"{name}.{part}", c.hidden_size) if stored else self._filled(neutral)
        if c.norm == "layer":
            return LayerNorm(self._scale(parts["weight"]), parts["bias"], c.norm_eps)
        return RmsNorm(parts["weight"], c.norm_eps, c.norm_offset)

    def _filled(self, value: float) -> Tensor:
        return self.reader.empty(self.config.hidden_size).fill_(value)

    def _scale(self, weight: Tensor) -> Tensor:
        """The weight of a layer norm, whose operation takes no offset."""
        if not self.config.norm_offset:
            return weight
        self.reader.source.wait()
        return weight + self.config.norm_offset


def _apart(matrix: Matrix, heads: range, head_dim: int) -> tuple[Matrix, Matrix]:
    """Queries, keys and values, and the gates that lie between the queries of a matrix: in its first part rows of each
    of `heads` are those of its query, then those of its gate."""
    depth, rows = range(matrix.depth), (2 * matrix.rows[0], *matrix.rows[1:])
    queries, gates = (
        [range(start, start + head_dim) for start in ((2 * head + half) * head_dim for head in heads)]
        for half in range(2)
    )
    others = [[range(size)] for size in matrix.rows[1:]] if matrix.held is None else matrix.held.rows[1:]
    gate = Matrix(matrix.names[:1], rows[:1], matrix.depth, matrix.biased, held=Held([gates], depth))
    return replace(matrix, rows=rows, held=Held([queries, *others], depth)), gate


def _stacked(matrix: Matrix, last: Matrix) -> Matrix:
    """One matrix of both, which have the same depth."""
    held = None
    if matrix.held is not None or last.held is not None:
        rows = [each for m in (matrix, last) for each in (m.held.rows if m.held else [[range(n)] for n in m.rows])]
        held = Held(rows, range(matrix.depth))
    orders = [*matrix.orders, *[None] * len(last.names)] if matrix.orders else ()
    return replace(
        matrix, names=[*matrix.names, *last.names], rows=[*matrix.rows, *last.rows], held=held, orders=orders
    )
