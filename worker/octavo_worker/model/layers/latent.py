"""Multi-head latent attention of a block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import HeadProduct
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear, Products
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm
from octavo_worker.model.layers.tables import Tables
from octavo_worker.model.transfer import dtype_name


class Entrance(Protocol):
    """The products that a layer begins with."""

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        ...

    def apply(self, x: Input) -> tuple[Tensor, Tensor]:
        """Queries of all heads, `[T, heads * (plain + rotated)]`, and what is to be kept, `[T, width]`, before norm and
        rotation."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WholeQueries:
    """Queries, and what is kept, are products of their own."""

    queries: Linear
    kept: Linear

    def products(self) -> Mapping[str, Linear]:
        return {"queries": self.queries, "latent": self.kept}

    def apply(self, x: Input) -> tuple[Tensor, Tensor]:
        x = Input(x.materialise(), context=x.context)
        return self.queries.apply(x), self.kept.apply(x)


@dataclass(frozen=True, slots=True, eq=False)
class LowRankQueries:
    """Queries are the product `up` of the norm of a product with few columns, the first of `down`; the others are what
    is kept."""

    down: Linear
    norm: RmsNorm
    up: Linear

    def products(self) -> Mapping[str, Linear]:
        return {"queries: down, latent": self.down, "queries: up": self.up}

    def apply(self, x: Input) -> tuple[Tensor, Tensor]:
        made = self.down.apply(x)
        rank = len(self.norm.operand.weight)
        few = made[:, :rank]
        return self.up.apply(self.norm.defer(few, few, x.context)), made[:, rank:]


@dataclass(frozen=True, slots=True, eq=False)
class LatentWeights:
    """Parts of latent attention beside its last product: its first ones, the norm of the latent, and the product that
    makes keys and values of a latent, for each head the rows of its key, then those of its value."""

    entrance: Entrance
    norm: RmsNorm
    expanding: Linear


class LatentAttention:
    """All heads read one row of a token. A score is the product of a query and a key that is made of the latent; here
    the query is multiplied instead, and values are made of the sum of latents: prompts and decodes take this same form,
    so that no bit depends on how a prompt is cut. Where nothing of the kind is promised, a step may have an `Expansion`
    for its prompts."""

    def __init__(self, layer: LatentLayer, weights: LatentWeights, out: Linear, products: Products) -> None:
        """`layer` has the heads of this rank."""
        self.layer, self.out, self.by_products = layer, out, products
        self.entrance, self.norm = weights.entrance, weights.norm
        self.expanding: Linear | None = weights.expanding
        self.to_latent, self.to_values = torch.empty(0), torch.empty(0)
        self.cache, self.cos_sin = torch.empty(0), torch.empty(0)
        self.temperature: Tensor | None = None
        self.block_size = 0
        self.shape = self.kept(torch.float32).shape

    def kept(self, dtype: torch.dtype) -> CacheSpec:
        """The layer's cache of a token in the type `dtype`."""
        return self.layer.kept(dtype_name(dtype))

    @property
    def kind(self) -> Hashable:
        """Equal to that of a layer whose steps take the same kernels."""
        return self.layer, self.block_size

    def bind(self, cache: Tensor | None, block_size: int, tables: Tables) -> None:
        assert cache is not None
        self.cache, self.block_size = cache, block_size
        self.cos_sin, self.temperature = tables.cos_sin[self.layer.rope], tables.temperature
        if self.expanding is not None:
            self.to_latent, self.to_values = self._absorbed(self.expanding, self.norm.operand.weight.dtype)
            self.expanding = None

    def _absorbed(self, expanding: Linear, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For each head the matrix that turns a query to meet latents, `[heads * rank, plain]`, and the one that makes
        values of what was read of them, `[heads * value_dim, rank]`, in the model's type: of quantised weights the
        values that products with them take."""
        c = self.layer
        made = expanding.apply(Input(torch.eye(c.rank, dtype=dtype, device=self.cache.device)))
        keys, values = made.T.reshape(-1, c.plain + c.value_dim, c.rank).split([c.plain, c.value_dim], dim=1)
        to_latent, to_values = keys.transpose(1, 2).reshape(-1, c.plain), values.reshape(-1, c.rank)
        return to_latent.contiguous(), to_values.contiguous()

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        expanding = {} if self.expanding is None else {"keys, values": self.expanding}
        return {**self.entrance.products(), **expanding, "out": self.out}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """Attention into `b.attended[T, heads, value_dim]`."""
        c, expansion = self.layer, batch.expansion
        q, met = self._keep(x, batch)
        rows = len(q) if expansion is None else expansion.row
        b.attended = q.new_empty(len(q), c.heads, c.value_dim)
        if rows:
            self._attend_absorbed(met[:rows], batch, b.attended[:rows])
        if expansion is not None:
            matrices = self.to_latent, self.to_values
            expansion.attend(self.cache, matrices, q[rows:], met[rows:, :, c.rank :], b.attended[rows:])

    def _attend_absorbed(self, q: Tensor, batch: Batch, out: Tensor) -> None:
        """Attention of queries that meet what is kept, into `out[T, heads, value_dim]`."""
        c, own = self.layer, batch.absorbed
        read = q.new_empty(len(q), c.heads, c.rank)
        cache, tables = self.cache, own.block_tables
        if batch.stage is not None:
            cache, tables = batch.stage.gather(cache), batch.stage.tables[: len(tables)]  # with what was just written
        sequences = (tables, own.context_lens, own.query_start)
        ops.latent_attention(q, cache, *sequences, read, c.scale, self.block_size, batch.plans.get(self.shape))
        ops.by_head(self._by_head(read, self.to_values, out))

    def _keep(self, x: Input, batch: Batch) -> tuple[Tensor, Tensor]:
        """Queries before their rotation, `[T, heads, plain + rotated]`, and, `[T, heads, width]`, as they meet what is
        kept, of which those that are expanded have the rotated part alone; what is kept of the step's tokens is
        written."""
        c = self.layer
        q, kept = self.entrance.apply(x)
        q = q.view(len(kept), c.heads, c.plain + c.rotated)
        if self.temperature is not None:  # a rotation is linear: before it is as good as after it
            q.mul_(self.temperature[batch.positions][:, None])
        out = kept.new_empty(len(kept), c.heads, c.width)
        place = (self.cache, batch.slots, batch.positions, self.cos_sin, self.block_size)
        if kept.is_cpu:
            return q, ops.write_latent(self._packed(q, kept).flatten(1), out, *place)
        rows = len(q) if batch.expansion is None else batch.expansion.row
        queries = self._by_head(q[:rows, :, : c.plain], self.to_latent, out[:rows, :, : c.rank])
        ops.keep_latent(q[..., c.plain :], kept, self.norm.operand, out, *place, beside=queries)
        return q, out

    def _packed(self, q: Tensor, kept: Tensor) -> Tensor:
        """Queries, then what is kept, before the rotation: `[T, heads + 1, width]`."""
        c = self.layer
        packed = kept.new_empty(len(kept), c.heads + 1, c.width)
        queries, key = packed[:, : c.heads], packed[:, c.heads]
        ops.by_head(self._by_head(q[..., : c.plain], self.to_latent, queries[..., : c.rank]))
        queries[..., c.rank :] = q[..., c.plain :]
        self.norm.apply(kept[:, : c.rank], key[:, : c.rank])
        key[:, c.rank :] = kept[:, c.rank :]
        return packed

    def _by_head(self, x: Tensor, weight: Tensor, out: Tensor) -> HeadProduct:
        return HeadProduct(x, weight, out, uniform=self.by_products.uniform)

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        """The output of `b.attended`, added to the residual stream `b.hidden`, and normalised for what follows."""
        return self.out.into_norm(Input(b.attended.flatten(1), context=b.row_context), b, add_norm)
