"""What attention on CUDA works from: lists of a step's work, made on the device."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from octavo_kernels.cuda import _cuda, run


class AttentionPlan:
    """Work lists of one step's attention, made on the device, and the scratch memory that its layers share.

    Made once for the largest batch; `update` before a step, or inside a graph before the first layer. It fits layers of
    one number of heads and one sliding window. One stream at a time may use it.

    `sequences`, `tokens`: the most in a batch. `chunks`: the most that `chunk_count` gives for a batch
    together; a batch with more makes the device trap rather than answer from part of its keys.
    `max_queries`: the most query tokens of one sequence, 1 for a batch that only decodes.
    `uniform`: every query is computed as those of prompts are, so that a row's bits do not depend on how many queries
    its sequence has in the batch; decodes are slower that way. It reads no prefix once for a group.
    `shared_prefixes`: whether `update` may be told of groups of sequences that share their leading blocks, which are
    then read once a group; only for caches that `reads_prefixes_once` tells of, `paged_attention` raises ValueError for
    others. It adds a launch; it changes no bit of any result.
    """

    # Groups of so few query rows are computed as decodes are, others in tiles of their own kind, which suit many rows.
    few_rows = 16

    def __init__(
        self,
        *,
        sequences: int,
        tokens: int,
        chunks: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        max_queries: int,
        sliding_window: int = 0,
        shared_prefixes: bool = False,
        uniform: bool = False,
        device: torch.device | str = "cuda",
    ) -> None:
        if _cuda is None:
            raise RuntimeError("this build of octavo-kernels has no CUDA kernels: install it where nvcc is on the PATH")
        self.sequences, self.kv_heads, self.head_dim = sequences, kv_heads, head_dim
        self.group, self.window = heads // kv_heads, sliding_window
        rows, few = self.group * max_queries, 0 if uniform else _cuda.decode_rows
        self.decodes = self.group <= few
        self.extends = rows > few
        self.rows = min(rows, few)
        self.chunks = chunks if self.decodes else 0
        self.shared_prefixes = shared_prefixes and self.decodes and not sliding_window
        self.tiles = sequences + tokens * self.group // _cuda.extend_rows(head_dim) if self.extends else 0
        self._prompts_only = False

        def ints(byte_count: int) -> Tensor:
            return torch.zeros(max(byte_count // 4, 1), dtype=torch.int32, device=device)

        self._header = ints(_cuda.header_bytes)
        self._decode = ints(self.chunks * _cuda.decode_item_bytes)
        self._extend = ints(self.tiles * _cuda.extend_item_bytes)
        self._folds = ints(sequences * _cuda.fold_item_bytes)
        if self.shared_prefixes:
            self._prefix = ints(self.chunks * _cuda.prefix_item_bytes)
            self._groups = ints(sequences * _cuda.group_state_bytes)
            rows = min(tokens * self.group, sequences * max(self.rows, _cuda.split_rows))
            self._rows = ints(rows * _cuda.group_row_bytes)
        members = range(1, 0 if self.extends else sequences + 1)
        self._never_tiles = len(list(takewhile(self._have_few, members)))  # sequences in a batch
        self._arrivals = ints(sequences * kv_heads * 4)
        slots = self.chunks * kv_heads * self.rows
        self._partial = torch.empty(slots * head_dim, dtype=torch.float32, device=device)
        self._sums = torch.empty(slots * 2, dtype=torch.float32, device=device)

    @staticmethod
    def partial_bytes(
        *, chunks: int, heads: int, kv_heads: int, head_dim: int, max_queries: int, uniform: bool = False
    ) -> int:
        """What a plan takes for partial results, nearly all of its memory."""
        group, few = heads // kv_heads, 0 if uniform else _cuda.decode_rows
        return chunks * kv_heads * min(group * max_queries, few) * (head_dim + 2) * 4 if group <= few else 0

    @classmethod
    def for_call(cls, q: Tensor, kv_heads: int, tables: Tensor, block_size: int, window: int) -> AttentionPlan:
        """A plan for one call of which only the shapes are known."""
        tokens, heads, head_dim = q.shape
        sequences, blocks = tables.shape
        group = heads // kv_heads
        parts = sequences + (0 if window else min(tokens, sequences * split_queries(group)) // part_queries(group))
        chunks = parts * max(1, -(-blocks * block_size // chunk_tokens()))
        return cls(
            sequences=sequences, tokens=tokens, chunks=chunks, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            max_queries=max(1, tokens), sliding_window=window, device=q.device,
        )  # fmt: skip

    @property
    def one_query_each(self) -> bool:
        """Whether no sequence has more queries: then none reads what another writes in the same call."""
        return self.decodes and not self.extends and self.rows == self.group

    @property
    def steps_alone(self) -> bool:
        """Whether it has nothing but sequences with one query each, in no groups: `decode_step` may take them."""
        return self.one_query_each and not self.shared_prefixes

    def arrivals(self) -> int:
        """Counters of `decode_step`, a sequence and KV head each, zero between launches."""
        return self._arrivals.data_ptr()

    def update(
        self,
        context_lens: Tensor,
        query_start: Tensor,
        groups: Tensor | None = None,
        prefix_lens: Tensor | None = None,
        prompts_only: bool = False,
    ) -> None:
        """Makes the lists for a step. `context_lens[S]` and `query_start[S + 1]` are int32, S at most `sequences`.

        `prompts_only`: the caller knows that no sequence is computed as decodes are (`only_prompts`). Then layers are
        spared the launches for those; with a sequence that is, the device traps. A graph that is replayed for other
        batches must not be told.

        With `shared_prefixes`, `groups[S]` and `prefix_lens[S]` (int32) may tell which sequences have equal leading
        blocks: sequence s is in group `groups[s]` (below S; -1: in none), and the first `prefix_lens[g]` tokens of the
        sequences of group g lie in the same blocks. The whole chunks of those are read once a group. A sequence with
        fewer tokens before its queries, or with more than `split_queries` of them, is computed alone. A plan with a
        sliding window, and one of heads that the decode kernel does not take, ignores groups.
        """
        count = context_lens.shape[0]
        if count > self.sequences:
            raise ValueError(f"context_lens has {count} sequences, but the plan was made for {self.sequences}")
        self._check("context_lens", context_lens, count)
        self._check("query_start", query_start, count + 1)
        shared: tuple[int, ...] = (0, 0)
        if groups is not None and prefix_lens is not None and self.shared_prefixes:
            self._check("groups", groups, count)
            self._check("prefix_lens", prefix_lens, count)
            shared = (groups.data_ptr(), prefix_lens.data_ptr())
        run(
            "plan_attention", self._header.device, context_lens.data_ptr(), query_start.data_ptr(), count, self.group,
            self.window, self.rows, *shared, self._header.data_ptr(), self._decode.data_ptr(), self._folds.data_ptr(),
            self._extend.data_ptr(), *self._prefix_lists(), self.few_rows, self.kv_heads, self.head_dim,
            0 if prompts_only else self.chunks, self.tiles, self.sequences,
        )  # fmt: skip
        self._prompts_only = prompts_only

    def _check(self, name: str, tensor: Tensor, size: int) -> None:
        if tensor.shape != (size,) or tensor.dtype != torch.int32:
            raise ValueError(f"{name} must be int32 of shape [{size}], not {tensor.dtype} of {list(tensor.shape)}")
        if tensor.device != self._header.device:
            raise ValueError(f"{name} is on {tensor.device}, but the plan is on {self._header.device}")

    def _have_few(self, sequences: int) -> bool:
        """Whether no group of such a batch is ever given tiles: the most chunks that its members share are known."""

        def has_few(members: int) -> bool:
            rows = members * self.rows
            items = -(-rows // _cuda.decode_rows) * (self.chunks // members)
            return rows <= self.few_rows or (rows <= _cuda.few_times * self.few_rows and items <= _cuda.few_items)

        return all(map(has_few, range(1, sequences + 1)))

    def _prefix_lists(self) -> tuple[int, int, int]:
        if not self.shared_prefixes:
            return 0, 0, 0
        return self._prefix.data_ptr(), self._groups.data_ptr(), self._rows.data_ptr()

    def arguments(
        self, sequences: int, heads: int, kv_heads: int, head_dim: int, window: int, settled: bool
    ) -> tuple[int | bool, ...]:
        """Of a call with the `sequences` that the last `update` was given; `settled` as `paged_attention` has it."""
        mine = (self.group * self.kv_heads, self.kv_heads, self.head_dim, self.window)
        if mine != (heads, kv_heads, head_dim, window):
            raise ValueError(
                "plan was made for (heads, kv_heads, head_dim, sliding_window) = "
                f"{mine}, not {(heads, kv_heads, head_dim, window)}"
            )
        prefix, _, rows = self._prefix_lists()
        if sequences <= self._never_tiles or self._prompts_only:
            prefix = 0  # the launch is spared
        return (
            self._header.data_ptr(), self._decode.data_ptr(), self._folds.data_ptr(), sequences,
            self._extend.data_ptr(), prefix, rows, self._partial.data_ptr(),
            self._sums.data_ptr(), self.rows, self.decodes and not self._prompts_only, self.extends, settled,
        )  # fmt: skip


def chunk_tokens() -> int:
    """Keys of one chunk: how long sequences are split among the multiprocessors."""
    return int(_cuda.chunk)


def part_queries(group: int) -> int:
    """Query tokens of one part of a split query, of `group` query heads to a KV head."""
    return max(1, _cuda.decode_rows // group)


def split_queries(group: int) -> int:
    """The most query tokens that are split into parts."""
    return int(_cuda.split_rows) // group


def chunk_count(contexts: ArrayLike, queries: ArrayLike, group: int) -> int:
    """Chunks that a plan needs room for, of sequences of `contexts[S]` tokens that end with `queries[S]` queries: for
    each one per `chunk_tokens` keys, and where its queries are split (few, after a long context) as many for each
    part."""
    contexts, queries = np.asarray(contexts), np.asarray(queries)
    parts = np.where(_are_split(contexts, queries, group), -(-queries // part_queries(group)), 1)
    return int((parts * np.maximum(1, -(-contexts // chunk_tokens()))).sum())


def only_prompts(contexts: ArrayLike, queries: ArrayLike, group: int) -> bool:
    """Whether none of these sequences is computed as decodes are, because of few queries, or split."""
    contexts, queries = np.asarray(contexts), np.asarray(queries)
    return bool(((queries * group > _cuda.decode_rows) & ~_are_split(contexts, queries, group)).all())


def _are_split(contexts: np.ndarray, queries: np.ndarray, group: int) -> np.ndarray:
    return (queries <= split_queries(group)) & (contexts - queries >= _cuda.split_context)
