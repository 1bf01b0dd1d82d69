"""Recurrent layers from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from octavo_kernels.ops import Convolution, GatedNorm, takes_chunks, takes_head
from octavo_worker.model.checkpoint.formats import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.checkpoint.mixtures import without_bias
from octavo_worker.model.checkpoint.names import RecurrentNames
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.recurrent.delta import DeltaMixer, DeltaWeights
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.layers.recurrent.short_conv import ConvMixer
from octavo_worker.model.layers.recurrent.ssm import SsmMixer, SsmWeights
from octavo_worker.model.layers.summed import Summed
from octavo_worker.model.recurrent.layers import ConvLayer, DeltaLayer, RecurrentLayer, Segment, SsmLayer, state_of
from octavo_worker.model.shards import Shards
from octavo_worker.model.transfer import dtype_name
from octavo_worker.ranks.group import Group


class RecurrentReader:
    """Reads the recurrent layers of a model. Raises `CheckpointError` or `UnsupportedModel`, naming a tensor."""

    def __init__(
        self, config: DecoderConfig, reader: Reader, form: Format, shards: Shards | None, group: Group | None
    ) -> None:
        """`config` is that of the whole model."""
        assert config.names.recurrent is not None
        self.config, self.reader, self.form, self.shards, self.group = config, reader, form, shards, group
        self.names: RecurrentNames = config.names.recurrent

    def read(self, at: str, whole: RecurrentLayer) -> RecurrentMixer:
        """The mixer of the layer whose names begin with `at`, or this rank's part of it."""
        layer = whole if self.shards is None else self.shards.recurrent(whole)
        state = state_of(layer, dtype_name(self.reader.dtype))
        inputs, out = self._inputs(at, whole, layer), self._out(at, whole)
        convolution = self._convolution(at, whole)
        if isinstance(layer, ConvLayer):
            return ConvMixer(layer, state, inputs, out, convolution)
        chunked = takes_chunks(self.reader.device, self.reader.dtype) and not self.reader.products.uniform
        heads = Segment(whole.inner.units, 1)
        rates = self._vector(at + self.names.rates, heads).exp().neg()
        dt_bias = self._vector(at + self.names.dt_bias, heads)
        if isinstance(layer, DeltaLayer):
            norm = GatedNorm(self._head_norm(at, layer), layer.value_dim, layer.norm_eps)
            chunked = chunked and takes_head(layer.key_dim, layer.value_dim)
            return DeltaMixer(layer, state, inputs, out, DeltaWeights(convolution, norm, rates, dt_bias), chunked)
        assert isinstance(whole, SsmLayer)
        skip = self._vector(at + self.names.skip, heads)
        norm = self._group_norm(at, whole, layer)
        weights = SsmWeights(convolution, norm, rates, dt_bias, skip, self._factors(layer))
        return SsmMixer(layer, state, inputs, out, weights, chunked)

    def _inputs(self, at: str, whole: RecurrentLayer, layer: RecurrentLayer) -> Linear:
        names, segments, parts, orders = self.names.inputs, whole.segments, [], []
        starts = accumulate((count for _, count in names), initial=0)
        for (_, count), start in zip(names, starts, strict=False):
            parts.append(segments[start : start + count])
            orders.append(by_key_head(layer, layer.segments[start : start + count]) if self.names.by_key_head else None)
        rows = [sum(segment.size for segment in part) for part in parts]
        matrix = Matrix(
            [at + name for name, _ in names], rows, self.config.hidden_size, self._is_biased(at + names[0][0]),
            held=self._held(whole, parts), orders=orders if self.names.by_key_head else (),
        )  # fmt: skip
        return self.form.linear(matrix, self.reader)

    def _is_biased(self, name: str) -> bool:
        return "bias" in self.reader.source.under(name)

    def _held(self, whole: RecurrentLayer, parts: Sequence[Sequence[Segment]]) -> Held | None:
        """Rows of this rank in each part of the first product."""
        if self.shards is None:
            return None
        if self.names.by_key_head:
            assert isinstance(whole, DeltaLayer)
            unit = [Segment(whole.key_heads, sum(each.size for each in part) // whole.key_heads) for part in parts]
            return Held([self.shards.units([each]) for each in unit], range(self.config.hidden_size))
        return Held([self.shards.units(part) for part in parts], range(self.config.hidden_size))

    def _out(self, at: str, whole: RecurrentLayer) -> Linear:
        name, hidden = at + self.names.out, self.config.hidden_size
        is_biased = self._is_biased(name)
        held = None
        if self.shards is not None:
            (depth,) = self.shards.units([whole.inner])
            held = Held([[range(hidden)]], depth)
        linear = self.form.linear(Matrix([name], [hidden], whole.inner.size, is_biased, held=held), self.reader)
        if self.shards is None or self.group is None:
            return linear
        if is_biased and self.shards.rank.index > 0:
            linear = without_bias(linear)
        return Summed(linear, hidden, self.group)

    def _convolution(self, at: str, whole: RecurrentLayer) -> Convolution:
        channels, name = sum(segment.size for segment in whole.convolved), at + self.names.convolution
        weight = self.reader.empty(channels, 1, whole.taps)
        if self.names.pieces and not self.reader.source.under(name):
            pieces = weight.split([segment.size for segment in whole.convolved])
            for piece, part in zip(self.names.pieces, pieces, strict=True):
                self.reader.source.read(f"{at}{piece}.weight", part)
        else:
            self.reader.source.read(f"{name}.weight", weight)
        is_biased = not isinstance(whole, DeltaLayer) and whole.biased
        bias = self.reader.read(f"{name}.bias", channels) if is_biased else None
        self.reader.source.wait()
        held = self._cut(weight[:, 0], whole.convolved).T.contiguous()
        return Convolution(held, None if bias is None else self._cut(bias, whole.convolved))

    def _cut(self, rows: Tensor, segments: Sequence[Segment]) -> Tensor:
        """This rank's rows."""
        if self.shards is None:
            return rows
        return torch.cat([rows[some.start : some.stop] for some in self.shards.units(segments)])

    def _vector(self, name: str, segment: Segment) -> Tensor:
        """This rank's share of a vector, in float32."""
        vector = torch.empty(segment.size, dtype=torch.float32, device=self.reader.device)
        self.reader.source.read(name, vector)
        self.reader.source.wait()
        return self._cut(vector, [segment]).contiguous()

    def _head_norm(self, at: str, layer: DeltaLayer) -> Tensor:
        """The weight of one head, for each of them."""
        weight = torch.empty(layer.value_dim, dtype=torch.float32, device=self.reader.device)
        self.reader.source.read(f"{at}{self.names.norm}.weight", weight)
        self.reader.source.wait()
        return weight.repeat(layer.heads)

    def _group_norm(self, at: str, whole: SsmLayer, layer: SsmLayer) -> GatedNorm:
        if not whole.norm_groups:
            return GatedNorm(None, layer.inner.size)
        weight = self._vector(f"{at}{self.names.norm}.weight", whole.inner)
        return GatedNorm(weight, whole.inner.size // whole.norm_groups, whole.norm_eps, not whole.gate_last)

    def _factors(self, layer: SsmLayer) -> Tensor | None:
        """A factor of each column of the first product."""
        if layer.factors is None:
            return None
        sizes = torch.tensor([segment.size for segment in layer.segments])
        made = torch.tensor(layer.factors).repeat_interleave(sizes)
        return made.to(self.reader.device, self.reader.dtype)


def by_key_head(layer: RecurrentLayer, segments: Sequence[Segment]) -> list[int]:
    """The stored place of each row of `segments`, of which those of a key head lie together, one segment after the
    other."""
    assert isinstance(layer, DeltaLayer)
    widths = [segment.size // layer.key_heads for segment in segments]
    starts = list(accumulate(widths, initial=0))
    return [
        head * starts[-1] + start + row
        for start, width in zip(starts, widths, strict=False)
        for head in range(layer.key_heads)
        for row in range(width)
    ]
