"""Shards of a decoder, one a rank, after Megatron-LM (arXiv 1909.08053): heads, columns of the MLP, tokens of the
head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import final

from octavo_worker.contract.options import ExpertsOfRanks
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.config import (
    AttentionLayer,
    Branches,
    DecoderConfig,
    DenseMlp,
    LatentLayer,
    MixerLayer,
    MixtureMlp,
)
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.layers.whole_norm import HeldColumns
from octavo_worker.model.recurrent.layers import ConvLayer, DeltaLayer, RecurrentLayer, Segment, SsmLayer
from octavo_worker.ranks.rank import Rank, vocabulary_of


@final
class Shards:
    """Where the parts of a rank begin and end in the whole matrices of a decoder. Raises `UnsupportedModel` for one
    that cannot be cut so."""

    def __init__(self, config: DecoderConfig, rank: Rank, experts: ExpertsOfRanks = "auto") -> None:
        check_divisible(config, rank.count, experts)
        self.whole, self.rank = config, rank
        self.has_whole_experts = are_whole(config, rank.count, experts)
        self._heads = rank.share(config.num_heads)
        self._kv_heads = _kv_heads(config.num_kv_heads, rank)

    @property
    def config(self) -> DecoderConfig:
        """The decoder as this rank computes it. Hidden states and the vocabulary are whole."""
        layers = tuple(
            replace(layer, attention=self._mixer(layer.attention), mlp=self._mlp(layer.mlp))
            for layer in self.whole.layers
        )
        return replace(self.whole, num_heads=len(self._heads), num_kv_heads=len(self._kv_heads), layers=layers)

    def of(self, layer: AttentionLayer) -> Shards:
        """Shards of that layer's attention."""
        seen = self.whole.of(layer)
        return self if seen is self.whole else Shards(seen, self.rank)

    def _mixer(self, mixer: MixerLayer | None) -> MixerLayer | None:
        if isinstance(mixer, Branches):
            return replace(mixer, attention=self._attention(mixer.attention), recurrent=self.recurrent(mixer.recurrent))
        if mixer is None or isinstance(mixer, AttentionLayer):
            return mixer and self._attention(mixer)
        if isinstance(mixer, LatentLayer):
            return replace(mixer, heads=len(self._heads))
        return self.recurrent(mixer)

    def _attention(self, layer: AttentionLayer) -> AttentionLayer:
        """Heads of a layer that has some of its own."""
        heads = None if layer.heads is None else len(self.rank.share(layer.heads))
        kv_heads = None if layer.kv_heads is None else len(_kv_heads(layer.kv_heads, self.rank))
        return replace(layer, heads=heads, kv_heads=kv_heads)

    def _mlp(self, mlp: DenseMlp | MixtureMlp | None) -> DenseMlp | MixtureMlp | None:
        if mlp is None:
            return None
        if isinstance(mlp, DenseMlp):
            return DenseMlp(len(self.rank.share(mlp.width)))
        width = mlp.width if self.has_whole_experts else len(self.rank.share(mlp.width))
        shared, beside = len(self.rank.share(mlp.shared)), len(self.rank.share(mlp.beside))
        return replace(mlp, width=width, shared=shared, beside=beside)

    @property
    def vocabulary(self) -> range:
        return vocabulary_of(self.whole.vocab_size, self.rank)

    def recurrent(self, layer: RecurrentLayer) -> RecurrentLayer:
        """A recurrent layer as this rank computes it."""
        if isinstance(layer, ConvLayer):
            return replace(layer, channels=len(self.rank.share(layer.channels)))
        heads = len(self.rank.share(layer.heads))
        if isinstance(layer, DeltaLayer):
            return replace(layer, heads=heads, key_heads=len(self.rank.share(layer.key_heads)))
        return replace(layer, heads=heads, groups=len(_kv_heads(layer.groups, self.rank)))

    def units(self, segments: Sequence[Segment]) -> list[range]:
        """Columns of this rank in segments that lie side by side. A unit that there are too few of is in several."""
        starts = accumulate((segment.size for segment in segments), initial=0)
        held = [_scaled(_kv_heads(segment.units, self.rank), segment.wide) for segment in segments]
        return [range(at + some.start, at + some.stop) for at, some in zip(starts, held, strict=False)]

    def qkv(self, projected: int, parts: int) -> Held:
        """Rows of queries and of as many of keys and values as are `projected`, which are stored in so many
        matrices."""
        c = self.whole
        q, kv = _scaled(self._heads, c.head_dim), _scaled(self._kv_heads, c.head_dim)
        rows = _stacked([q, *[kv] * projected], [c.q_size, *[c.kv_size] * projected], parts)
        return Held(rows, range(c.hidden_size))

    def heads_of(self, width: int, depth: int) -> Held:
        """Rows of this rank's heads, so wide, of a matrix of that depth."""
        return Held([[_scaled(self._heads, width)]], range(depth))

    def out_of(self, width: int) -> Held:
        """The depth of this rank's heads, so wide, of attention's last product."""
        return Held([[range(self.whole.hidden_size)]], _scaled(self._heads, width))

    def out(self) -> Held:
        return self.out_of(self.whole.head_dim)

    def output_gate(self) -> Held:
        """Rows of the gate of attention's output."""
        width = self.whole.gate_size // self.whole.num_heads
        return Held([[_scaled(self._heads, width)]], range(self.whole.hidden_size))

    def up(self, width: int, parts: int) -> Held:
        """Rows of the gate, if there is one, and of what it gates, of an MLP of that width, which are stored in so many
        matrices."""
        c, number = self.whole, 2 if self.whole.gated else 1
        rows = _stacked([self.rank.share(width)] * number, [width] * number, parts)
        return Held(rows, range(c.hidden_size))

    def alternating_up(self, width: int) -> Held:
        """Rows of a gate and of what it gates that lie by turns in one matrix."""
        share = self.rank.share(width)
        return Held([[range(2 * share.start, 2 * share.stop)]], range(self.whole.hidden_size))

    def down(self, width: int) -> Held:
        return Held([[range(self.whole.hidden_size)]], self.rank.share(width))

    def experts(self, count: int) -> range:
        """Experts of so many that this rank has: all, unless it has whole ones."""
        if not self.has_whole_experts:
            return range(count)
        index, ranks = self.rank.index, self.rank.count
        return range(count * index // ranks, count * (index + 1) // ranks)

    @property
    def heads(self) -> range:
        """Query heads."""
        return self._heads

    def held_columns(self) -> list[HeldColumns]:
        """Columns of this rank's heads in whole rows of queries, and in those of keys."""
        c = self.whole
        q, kv = _scaled(self._heads, c.head_dim), _scaled(self._kv_heads, c.head_dim)
        return [HeldColumns(q), HeldColumns(kv, max(1, self.rank.count // c.num_kv_heads))]

    def head(self) -> Held:
        return Held([[self.vocabulary]], range(self.whole.hidden_size))


def are_whole(config: DecoderConfig, ranks: int, experts: ExpertsOfRanks) -> bool:
    """True if each of so many ranks has some of the experts, and False if each has a part of all. Ranks that do not
    divide the columns of an expert leave no choice."""
    widths = {layer.mlp.width for layer in config.layers if isinstance(layer.mlp, MixtureMlp)}
    return bool(widths) and (experts == "whole" or (experts == "auto" and any(width % ranks for width in widths)))


def check_divisible(config: DecoderConfig, ranks: int, experts: ExpertsOfRanks = "auto") -> None:
    """Checks that ranks can share the model. Raises `UnsupportedModel` with the reason."""
    seen = [config, *config.attentions]
    problems = [f"{heads} attention heads" for heads in sorted({c.num_heads for c in seen}) if heads % ranks]
    odd = {c.num_kv_heads for c in seen if c.num_kv_heads % ranks and ranks % c.num_kv_heads}
    problems += [f"{kv_heads} heads of keys and values" for kv_heads in sorted(odd)]
    mixtures = [layer.mlp for layer in config.layers if isinstance(layer.mlp, MixtureMlp)]
    widths = {layer.mlp.width for layer in config.layers if isinstance(layer.mlp, DenseMlp)}
    widths |= {width for mlp in mixtures for width in (mlp.shared, mlp.beside)}
    if not are_whole(config, ranks, experts):
        widths |= {mlp.width for mlp in mixtures}
    else:
        few = {mlp.routing.experts for mlp in mixtures if mlp.routing.experts < ranks}
        problems += [f"{count} experts" for count in sorted(few)]
    problems += [f"{width} columns of the MLP" for width in sorted(widths) if width % ranks]
    if not vocabulary_of(config.vocab_size, Rank(ranks - 1, ranks)):
        problems.append(f"a vocabulary of {config.vocab_size} tokens")
    problems += recurrent_problems(config, ranks)
    if problems:
        raise UnsupportedModel(
            f"{' and '.join(problems)} cannot be shared out among {ranks} ranks; give another --tensor-parallel."
        )


def recurrent_problems(config: DecoderConfig, ranks: int) -> list[str]:
    """Parts of recurrent layers that so many ranks cannot share."""
    problems = set[str]()
    for layer in {layer for layer in config.recurrent_layers if layer is not None}:
        units = {"heads of recurrent layers": layer.inner.units} if not isinstance(layer, ConvLayer) else {}
        match layer:
            case ConvLayer():
                units["channels of a convolution"] = layer.channels
            case DeltaLayer():
                units["key heads of recurrent layers"] = layer.key_heads
            case SsmLayer() if layer.norm_groups:
                units["groups of a gated norm"] = layer.norm_groups
            case SsmLayer() if ranks % layer.groups:
                units["groups of recurrent layers"] = layer.groups
        problems |= {f"{count} {what}" for what, count in units.items() if count % ranks}
    return sorted(problems)


def _kv_heads(total: int, rank: Rank) -> range:
    """Where there are fewer than ranks, several ranks have copies of one."""
    if total >= rank.count:
        return rank.share(total)
    head = rank.index * total // rank.count
    return range(head, head + 1)


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _stacked(pieces: Sequence[range], sizes: Sequence[int], parts: int) -> list[list[range]]:
    """Each piece in a matrix of its own, or all in one, where they lie one after the other."""
    if parts == len(pieces):
        return [[piece] for piece in pieces]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [[range(at + piece.start, at + piece.stop) for at, piece in zip(starts, pieces, strict=True)]]
