"""Prompts of latent attention in the expanded form: keys and values of every head, made of what is kept.

DeepSeek-V2 (arXiv 2405.04434, section 2.1.2) before its absorption: products of a query and a key are as wide as the
head's, not as the latent. Keys are made anew in each step and layer, in a room that all layers share.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import cuda, ops
from octavo_kernels.attention.plan import AttentionPlan
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.stage import Stage

HEAD_DIMS = (64, 96, 128, 256)
"""Widths that the kernels for prompts take."""
ROOM_BYTES = 1 << 30
"""The most that keys and values of one layer take."""
PIECE_BYTES, PIECE_TOKENS = 128 << 20, 8192
"""The most that one product makes of latents, and of how many."""

TILE_ROWS, MULTIPROCESSORS = 128, 132
"""Queries of a tile of the kernels for prompts; tiles that a GPU computes at once."""
ABSORBED_RATE, EXPANDED_RATE, PRODUCT_RATE, BYTE_RATE = 450, 710, 400, 3
"""Operations and bytes in a picosecond of an H200: of attention in both forms, of products, and of its memory."""


def expanded_layer(
    layers: Collection[LatentLayer], dtype: torch.dtype, device: torch.device, *, uniform: bool
) -> LatentLayer | None:
    """The layers' common shape, where their prompts may be computed in the expanded form: on Hopper, with data in 16
    bits. Never with `uniform` rows: in last bits, the two forms differ."""
    kinds = set(layers)
    if uniform or len(kinds) != 1 or device.type != "cuda" or dtype not in cuda.HALF:
        return None
    (layer,) = kinds
    return layer if head_dim(layer) is not None and cuda.runs_hopper_code(device) else None


def head_dim(layer: LatentLayer) -> int | None:
    """The width that a head's keys and values are padded to; None: no kernel takes them."""
    needed = max(layer.plain + layer.rotated, layer.value_dim)
    return min((width for width in HEAD_DIMS if width >= needed), default=None)


@dataclass(frozen=True, slots=True)
class Prices:
    """Picoseconds of a head: what a pair of a query and a key takes in either form, what a query's products with both
    matrices take in the absorbed form alone, and what a key takes to be made."""

    absorbed_pair: float
    expanded_pair: float
    query: float
    key: float

    @classmethod
    def of(cls, layer: LatentLayer, width: int) -> Prices:
        return cls(
            absorbed_pair=2 * (layer.width + layer.rank) / ABSORBED_RATE,
            expanded_pair=4 * width / EXPANDED_RATE,
            query=2 * layer.rank * (layer.plain + layer.value_dim) / PRODUCT_RATE,
            key=2 * layer.width * 2 * width / PRODUCT_RATE + 3 * 2 * width * 2 / BYTE_RATE,  # written, moved into place
        )

    def saved(self, queries: np.ndarray, contexts: np.ndarray, heads: int, at_once: int) -> float:
        """Picoseconds of a head that the expanded form saves for sequences of `contexts[S]` tokens that end with
        `queries[S]`, of `heads` of which so many are computed `at_once`: few tiles leave multiprocessors idle."""
        tiles = int((-(-queries // TILE_ROWS)).sum())
        rounds = heads // at_once * -(-tiles * at_once // MULTIPROCESSORS)
        idle = rounds * MULTIPROCESSORS / (tiles * heads)
        pairs = float((queries * (contexts - (queries - 1) / 2)).sum())
        each = self.absorbed_pair - self.expanded_pair * idle
        return pairs * each + float(queries.sum()) * self.query - float(contexts.sum()) * self.key


class ExpansionRoom:
    """Memory for the keys and values of one layer, shared by all, allocated once. Where all heads of a step's keys have
    no room, some are computed after the others: a head's rows need no other head."""

    @classmethod
    def of(
        cls, layer: LatentLayer | None, dtype: torch.dtype, device: torch.device, block_size: int, most_keys: int
    ) -> ExpansionRoom | None:
        """None without a layer."""
        return None if layer is None else cls(layer, dtype, device, block_size, most_keys)

    def __init__(
        self, layer: LatentLayer, dtype: torch.dtype, device: torch.device, block_size: int, most_keys: int
    ) -> None:
        """For steps whose prompts have up to `most_keys` tokens together, or as many as have room one head after the
        other."""
        width = head_dim(layer)
        assert width is not None
        self.layer, self.head_dim, self.block_size, self.device = layer, width, block_size, device
        elements, piece = self._sizes(layer, width, dtype, most_keys)
        self.prices = Prices.of(layer, width)
        self._piece = max(piece // block_size, 1)  # blocks
        tokens = self._piece * block_size
        self._room = torch.empty(elements, dtype=dtype, device=device)
        self._rows = torch.empty((tokens, layer.width), dtype=dtype, device=device)
        self._made = torch.empty(tokens * layer.heads * 2 * width, dtype=dtype, device=device)
        self._slots = torch.arange(tokens, device=device)
        # Rows of the rotated key pass the product as they are; columns up to the width of a head are zeros.
        self._matrix = torch.zeros((2, layer.heads, width, layer.width), dtype=dtype, device=device)
        keys = self._matrix[0, :, layer.plain : layer.plain + layer.rotated, layer.rank :]
        keys.copy_(torch.eye(layer.rotated, dtype=dtype, device=device))

    @classmethod
    def step_bytes(cls, layer: LatentLayer, dtype: torch.dtype, most_keys: int) -> int:
        """Bytes that it takes."""
        width = head_dim(layer)
        assert width is not None
        elements, piece = cls._sizes(layer, width, dtype, most_keys)
        each = layer.width + layer.heads * 2 * width
        return (elements + piece * each + layer.heads * 2 * width * layer.width) * dtype.itemsize + 8 * piece

    @staticmethod
    def _sizes(layer: LatentLayer, width: int, dtype: torch.dtype, most_keys: int) -> tuple[int, int]:
        """Elements of the room, and tokens of a piece."""
        key = layer.heads * 2 * width
        tokens = min(PIECE_TOKENS, most_keys, PIECE_BYTES // (key * dtype.itemsize))
        return min(ROOM_BYTES // dtype.itemsize, key * most_keys), tokens

    def heads_at_once(self, contexts: np.ndarray) -> int:
        """Heads whose keys and values of sequences with `contexts[S]` tokens have room together, a divisor of all; 0:
        not even one."""
        blocks = int((-(-contexts // self.block_size)).sum())
        most = len(self._room) // max(1, blocks * self.block_size * 2 * self.head_dim)
        heads = self.layer.heads
        return max((count for count in range(1, min(heads, most) + 1) if heads % count == 0), default=0)

    def first_expanded(self, queries: np.ndarray, contexts: np.ndarray, decodes: int) -> tuple[int, int]:
        """The sequence of a step from which on all are expanded, so that most time is saved, and the heads at once: all
        behind some place, because a step's rows stay as they lie. The number of sequences, and 0, where nothing is
        saved."""
        best, first, heads = 0.0, len(queries), 0
        for place in range(len(queries) - 1, decodes - 1, -1):
            at_once = self.heads_at_once(contexts[place:])
            if not at_once:
                break
            saved = self.prices.saved(queries[place:], contexts[place:], self.layer.heads, at_once)
            if saved > best:
                best, first, heads = saved, place, at_once
        return first, heads

    def make(self, cache: Tensor, blocks: Tensor, to_latent: Tensor, to_values: Tensor, heads: slice) -> Tensor:
        """Keys and values of some heads for the tokens of `blocks[n]` (int32) of a layer's cache, as a cache of `n`
        blocks. `to_latent[heads * rank, plain]` and `to_values[heads * value_dim, rank]` are the layer's."""
        c, width = self.layer, self.head_dim
        count = heads.stop - heads.start
        matrix = self._matrix[:, heads]
        matrix[0, :, : c.plain, : c.rank] = to_latent.view(c.heads, c.rank, c.plain)[heads].transpose(1, 2)
        matrix[1, :, : c.value_dim, : c.rank] = to_values.view(c.heads, c.value_dim, c.rank)[heads]
        shape = (len(blocks), 2, count, self.block_size * width)
        room = self._room[: len(blocks) * 2 * count * self.block_size * width].view(shape)
        for part, into in zip(blocks.split(self._piece), room.split(self._piece), strict=True):
            tokens = len(part) * self.block_size
            rows = ops.read_latent(cache, part, self._rows[:tokens], c.rank, self.block_size)
            made = self._made[: 2 * tokens * count * width].view(2, tokens, count * width)
            for kind, weight in zip(made, matrix, strict=True):
                torch.mm(rows, weight.reshape(-1, c.width).T, out=kind)
            keys, values = made.view(2, tokens, count, width)
            ops.write_kv(keys, values, into, self._slots[:tokens], self.block_size)
        return room


@dataclass(frozen=True, slots=True)
class Expansion:
    """The part of a step that is computed in the expanded form: its sequences from the number `sequences` on, whose
    tokens are those from `row` on. Theirs are `stage`, `context_lens[S]` and `query_start[S + 1]` (int32). So many
    `heads` have room at once; `plan` is that of these, on a GPU."""

    room: ExpansionRoom
    sequences: int
    row: int
    heads: int
    stage: Stage
    context_lens: Tensor
    query_start: Tensor
    plan: AttentionPlan | None

    @classmethod
    def of(
        cls,
        room: ExpansionRoom,
        sequences: tuple[Tensor, Tensor, Tensor],
        queries: np.ndarray,
        contexts: np.ndarray,
        decodes: int,
    ) -> Expansion | None:
        """None where a step gains nothing. `sequences` are its block tables, context lengths and starts of queries on
        the device; the first `decodes` of them are never expanded."""
        first, heads = room.first_expanded(queries, contexts, decodes)
        if first == len(queries):
            return None
        tables, context_lens, query_start = sequences
        row = int(queries[:first].sum())
        stage = Stage.of(tables[first:], contexts[first:], room.block_size)
        lengths, starts = context_lens[first:], query_start[first:] - row
        plan = None
        if room.device.type == "cuda":
            count, tokens = len(queries) - first, int(queries[first:].sum())
            plan = AttentionPlan(
                sequences=count, tokens=tokens, chunks=0, heads=heads, kv_heads=heads, head_dim=room.head_dim,
                max_queries=tokens, uniform=True, device=room.device,
            )  # fmt: skip
            plan.update(lengths, starts)
        return cls(room, first, row, heads, stage, lengths, starts, plan)

    def attend(self, cache: Tensor, matrices: tuple[Tensor, Tensor], q: Tensor, rotated: Tensor, out: Tensor) -> None:
        """Attention of its queries over a layer's `cache`, into `out[T, heads, value_dim]`. `q[T, heads, plain + ...]`
        begins with the plain part of each, `rotated[T, heads, rotated]` is the other one as it was rotated. `matrices`:
        `to_latent` and `to_values` of the layer."""
        room = self.room
        c, width = room.layer, room.head_dim
        queries = q.new_zeros(len(q), c.heads, width)
        queries[..., : c.plain], queries[..., c.plain : c.plain + c.rotated] = q[..., : c.plain], rotated
        found = out if c.value_dim == width else torch.empty_like(queries)
        for first in range(0, c.heads, self.heads):
            part = slice(first, first + self.heads)
            made = room.make(cache, self.stage.blocks, *matrices, part)
            sequences = (self.stage.tables, self.context_lens, self.query_start)
            ops.paged_attention(
                queries[:, part], made, *sequences, found[:, part], c.scale, room.block_size, plan=self.plan
            )
        if found is not out:
            out.copy_(found[..., : c.value_dim])
