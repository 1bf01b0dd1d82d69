"""Latent attention from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from octavo_worker.model.checkpoint.formats import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.config import DecoderConfig, LatentLayer
from octavo_worker.model.layers.latent import Entrance, LatentAttention, LatentWeights, LowRankQueries, WholeQueries
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import RmsNorm
from octavo_worker.model.shards import Shards


class LatentReader:
    """Reads the latent attention of a model. Raises `CheckpointError` or `UnsupportedModel`, naming a tensor."""

    def __init__(self, config: DecoderConfig, reader: Reader, form: Format, shards: Shards | None) -> None:
        """`config` is that of the whole model."""
        self.config, self.reader, self.form, self.shards = config, reader, form, shards
        self.names = config.names.latent

    def read(self, at: str, whole: LatentLayer, out: Linear) -> LatentAttention:
        """The attention of the layer whose names begin with `at`, or this rank's heads of it: each rank keeps the whole
        latent."""
        layer = whole if self.shards is None else replace(whole, heads=len(self.shards.heads))
        norm = self._norm(at + self.names.kv_norm, whole.rank, whole)
        weights = LatentWeights(self._entrance(at, whole), norm, self._expanding(at, whole))
        return LatentAttention(layer, weights, out, self.reader.products)

    def _entrance(self, at: str, layer: LatentLayer) -> Entrance:
        hidden, names, rank = self.config.hidden_size, self.names, layer.query_rank
        kept, order = at + names.kv_down, _order(layer, layer.rank)
        if rank is None:
            queries = self._all_queries(at + names.q, layer, hidden)
            first = Matrix([kept], [layer.width], hidden, layer.biased, orders=[order])
            return WholeQueries(queries, self.form.linear(first, self.reader))
        first = Matrix([at + names.q_down, kept], [rank, layer.width], hidden, layer.biased, orders=[None, order])
        down = self.form.linear(first, self.reader)
        norm = self._norm(at + names.q_norm, rank, layer)
        return LowRankQueries(down, norm, self._all_queries(at + names.q_up, layer, rank))

    def _all_queries(self, name: str, layer: LatentLayer, depth: int) -> Linear:
        width = layer.plain + layer.rotated
        held, order = self._held(width, depth), _order(layer, layer.plain)
        matrix = Matrix([name], [layer.heads * width], depth, held=held, orders=[order])
        return self.form.linear(matrix, self.reader)

    def _expanding(self, at: str, layer: LatentLayer) -> Linear:
        width = layer.plain + layer.value_dim
        held = self._held(width, layer.rank)
        return self.form.linear(
            Matrix([at + self.names.kv_up], [layer.heads * width], layer.rank, held=held), self.reader
        )

    def _held(self, width: int, depth: int) -> Held | None:
        return None if self.shards is None else self.shards.heads_of(width, depth)

    def _norm(self, name: str, size: int, layer: LatentLayer) -> RmsNorm:
        return RmsNorm(self.reader.read(f"{name}.weight", size), layer.norm_eps, 0.0)


def _order(layer: LatentLayer, plain: int) -> list[int] | None:
    """The stored place of each value behind `plain` ones: kernels rotate the first half of values with the second."""
    if not layer.interleaved:
        return None
    end = plain + layer.rotated
    return [*range(plain), *range(plain, end, 2), *range(plain + 1, end, 2)]
