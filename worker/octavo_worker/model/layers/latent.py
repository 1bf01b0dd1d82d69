"""Multi-head latent attention of a block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Product
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear, Products
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm
from octavo_worker.model.layers.tables import Tables
from octavo_worker.model.transfer import dtype_name


@dataclass(frozen=True, slots=True, eq=False)
class LowRank(Linear):
    """The product `up` of the norm of the product `down`."""

    down: Linear
    norm: RmsNorm
    up: Linear

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        return {"queries: down": self.down, "queries: up": self.up}

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        made = self.down.apply(x)
        return self.up.apply(Input(self.norm.apply(made, made), context=x.context), out, residual)


@dataclass(frozen=True, slots=True, eq=False)
class LatentWeights:
    """Parts of latent attention beside its last product: the queries' and the kept row's product, the norm of its
    latent, and the product that makes keys and values of a latent, for each head the rows of its key, then those of its
    value."""

    queries: Linear
    kept: Linear
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
        self.queries, self.latent, self.norm = weights.queries, weights.kept, weights.norm
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
        own = self.queries.products() if isinstance(self.queries, LowRank) else {"queries": self.queries}
        expanding = {} if self.expanding is None else {"keys, values": self.expanding}
        return {**own, "latent": self.latent, **expanding, "out": self.out}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """Attention into `b.attended[T, heads, value_dim]`."""
        c, expansion = self.layer, batch.expansion
        q, met = self._keep(Input(x.materialise(), context=x.context), batch)
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
        self._by_head(read, self.to_values, out)

    def _keep(self, x: Input, batch: Batch) -> tuple[Tensor, Tensor]:
        """Queries before their rotation, `[T, heads, plain + rotated]`, and, `[T, heads, width]`, as they meet what is
        kept, of which those that are expanded have the rotated part alone; what is kept of the step's tokens is
        written."""
        c = self.layer
        kept = self.latent.apply(x)
        q = self.queries.apply(x).view(len(kept), c.heads, c.plain + c.rotated)
        if self.temperature is not None:  # a rotation is linear: before it is as good as after it
            q.mul_(self.temperature[batch.positions][:, None])
        out = kept.new_empty(len(kept), c.heads, c.width)
        place = (self.cache, batch.slots, batch.positions, self.cos_sin, self.block_size)
        if kept.is_cpu:
            return q, ops.write_latent(self._packed(q, kept).flatten(1), out, *place)
        rows = len(q) if batch.expansion is None else batch.expansion.row
        if rows:
            self._by_head(q[:rows, :, : c.plain], self.to_latent, out[:rows, :, : c.rank])
        ops.keep_latent(q[..., c.plain :], kept, self.norm.operand, out, *place)
        return q, out

    def _packed(self, q: Tensor, kept: Tensor) -> Tensor:
        """Queries, then what is kept, before the rotation: `[T, heads + 1, width]`."""
        c = self.layer
        packed = kept.new_empty(len(kept), c.heads + 1, c.width)
        queries, key = packed[:, : c.heads], packed[:, c.heads]
        self._by_head(q[..., : c.plain], self.to_latent, queries[..., : c.rank])
        queries[..., c.rank :] = q[..., c.plain :]
        self.norm.apply(kept[:, : c.rank], key[:, : c.rank])
        key[:, c.rank :] = kept[:, c.rank :]
        return packed

    def _by_head(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """`x[T, heads, depth]` of each head times its part of `weight[heads * columns, depth]`, into
        `out[T, heads, columns]`."""
        rows, heads, depth = x.shape
        if x.is_cpu:
            starts = torch.arange(heads + 1, dtype=torch.int32) * rows
            made = ops.grouped_linear(x.transpose(0, 1).reshape(-1, depth), weight, starts)
            out.copy_(made.view(heads, rows, -1).transpose(0, 1))
            return
        matrices = weight.view(heads, -1, depth)
        if not self.by_products.uniform:
            torch.bmm(x.transpose(0, 1), matrices.transpose(1, 2), out=out.transpose(0, 1))
            return
        for head, matrix in enumerate(matrices):  # cuBLAS may compute a row otherwise in another batch
            ops.linear(Product(x[:, head], matrix, out=out[:, head], uniform=True, counter=self.by_products.counter))

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        """The output of `b.attended`, added to the residual stream `b.hidden`, and normalised for what follows."""
        return self.out.into_norm(Input(b.attended.flatten(1), context=b.row_context), b, add_norm)
