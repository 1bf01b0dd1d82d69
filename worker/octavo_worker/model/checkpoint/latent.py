"""Latent attention from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from octavo_worker.model.checkpoint.formats import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.config import DecoderConfig, LatentLayer
from octavo_worker.model.layers.latent import LatentAttention, LatentWeights, LowRank
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
        queries = self._queries(at, whole)
        rows, biased = self.config.hidden_size, whole.biased
        kept = Matrix([at + self.names.kv_down], [whole.width], rows, biased, orders=_orders(whole, whole.rank))
        norm = self._norm(at + self.names.kv_norm, whole.rank, whole)
        weights = LatentWeights(queries, self.form.linear(kept, self.reader), norm, self._expanding(at, whole))
        return LatentAttention(layer, weights, out, self.reader.products)

    def _queries(self, at: str, layer: LatentLayer) -> Linear:
        hidden, names, rank = self.config.hidden_size, self.names, layer.query_rank
        width, depth = layer.plain + layer.rotated, rank or hidden
        orders, held = _orders(layer, layer.plain), self._held(width, depth)
        name = at + (names.q if rank is None else names.q_up)
        last = self.form.linear(Matrix([name], [layer.heads * width], depth, held=held, orders=orders), self.reader)
        if rank is None:
            return last
        first = self.form.linear(Matrix([at + names.q_down], [rank], hidden, layer.biased), self.reader)
        return LowRank(first, self._norm(at + names.q_norm, rank, layer), last)

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


def _orders(layer: LatentLayer, plain: int) -> list[list[int]]:
    """The stored place of each value behind `plain` ones: kernels rotate the first half of values with the second."""
    if not layer.interleaved:
        return []
    end = plain + layer.rotated
    return [[*range(plain), *range(plain, end, 2), *range(plain + 1, end, 2)]]
