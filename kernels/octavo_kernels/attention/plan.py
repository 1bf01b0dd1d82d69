"""Attention plan on CUDA: lists of a step's work, made on the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from octavo_kernels import cuda

PlanUse = tuple[Any, tuple[int, bool, bool, bool, bool]]
"""A plan and what a layer asks of it, as `paged_attention` of the module takes them."""


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
        if not cuda.available():
            raise RuntimeError(f"this build of octavo-kernels has no kernels for GPUs: {cuda.BUILD_STEP}")
        self.heads, self.kv_heads, self.head_dim, self.window = heads, kv_heads, head_dim, sliding_window
        self.sequences = sequences
        self._lists = cuda.compiled.AttentionPlan(
            sequences=sequences, tokens=tokens, chunks=chunks, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            max_queries=max_queries, window=sliding_window, shared_prefixes=shared_prefixes, uniform=uniform,
            few_rows=self.few_rows,
        )  # fmt: skip
        self._memory = torch.zeros(self._lists.list_bytes // 4, dtype=torch.int32, device=device)
        self._partial = torch.empty(self._lists.partial_bytes // 4, dtype=torch.float32, device=device)
        self._lists.place(self._memory.data_ptr(), self._partial.data_ptr())
        self.decodes: bool = self._lists.decodes
        self.extends: bool = self._lists.extends
        self.shared_prefixes: bool = self._lists.groups
        self._has_decodes = self._has_prompts = True

    @classmethod
    def partial_bytes(
        cls, *, chunks: int, heads: int, kv_heads: int, head_dim: int, max_queries: int, uniform: bool = False
    ) -> int:
        """Bytes of a plan's partial results, nearly all of its memory."""
        return int(
            cuda.compiled.AttentionPlan(
                sequences=1, tokens=1, chunks=chunks, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                max_queries=max_queries, window=0, shared_prefixes=False, uniform=uniform, few_rows=cls.few_rows,
            ).partial_bytes
        )  # fmt: skip

    @classmethod
    def for_call(cls, q: Tensor, kv_heads: int, tables: Tensor, block_size: int, window: int) -> AttentionPlan:
        """A plan for one call of which only the shapes are known."""
        tokens, heads, head_dim = q.shape
        sequences, blocks = tables.shape
        group = heads // kv_heads
        parts = sequences + (
            0 if window else min(tokens, sequences * split_queries(group)) // cuda.compiled.part_queries(group)
        )
        chunks = parts * max(1, -(-blocks * block_size // chunk_tokens()))
        return cls(
            sequences=sequences, tokens=tokens, chunks=chunks, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            max_queries=max(1, tokens), sliding_window=window, device=q.device,
        )  # fmt: skip

    @property
    def one_query_each(self) -> bool:
        """True if no sequence has more queries: then none reads what another writes in the same call."""
        return self.decodes and not self.extends and bool(self._lists.rows == self._lists.group)

    @property
    def steps_alone(self) -> bool:
        """True if all sequences have one query each and are in no group: `decode_step` may take them."""
        return self.one_query_each and not self.shared_prefixes

    @property
    def header(self) -> Tensor:
        """The counts that the device made, as `PlanHeader` in csrc/cuda/attention/args.h."""
        return self._memory[: cuda.compiled.header_words]

    def update(
        self,
        context_lens: Tensor,
        query_start: Tensor,
        groups: Tensor | None = None,
        prefix_lens: Tensor | None = None,
        *,
        decodes: bool = True,
        prompts: bool = True,
    ) -> None:
        """Makes the lists for a step. `context_lens[S]` and `query_start[S + 1]` are int32, S at most `sequences`.

        Without `decodes` the caller knows that no sequence is computed as decodes are (`only_prompts`), without
        `prompts` that all are (`few_queries`) and in no groups. Then layers are spared the launches for others; with a
        sequence that needs those, the device traps. A graph that is replayed for other batches must not be told.

        With `shared_prefixes`, `groups[S]` and `prefix_lens[S]` (int32) may tell which sequences have equal leading
        blocks: sequence s is in group `groups[s]` (below S; -1: in none), and the first `prefix_lens[g]` tokens of the
        sequences of group g lie in the same blocks. The whole chunks of those are read once a group. A sequence with
        fewer tokens before its queries, or with more than `split_queries` of them, is computed alone. A plan with a
        sliding window, and one of heads that the decode kernel does not take, ignores groups. Raises ValueError for
        more sequences than the plan was made for.
        """
        count = context_lens.shape[0]
        if count > self.sequences:
            raise ValueError(f"context_lens has {count} sequences, but the plan was made for {self.sequences}")
        self._check("context_lens", context_lens, count)
        self._check("query_start", query_start, count + 1)
        shared: tuple[int, ...] = (0, 0)
        if groups is not None and prefix_lens is not None and self.shared_prefixes and prompts:
            self._check("groups", groups, count)
            self._check("prefix_lens", prefix_lens, count)
            shared = (groups.data_ptr(), prefix_lens.data_ptr())
        cuda.run(
            "plan_attention", self._memory.device, self._lists, context_lens.data_ptr(), query_start.data_ptr(), count,
            *shared, decodes, prompts,
        )  # fmt: skip
        self._has_decodes, self._has_prompts = decodes, prompts

    def _check(self, name: str, tensor: Tensor, size: int) -> None:
        if tensor.shape != (size,) or tensor.dtype != torch.int32:
            raise ValueError(f"{name} must be int32 of shape [{size}], not {tensor.dtype} of {list(tensor.shape)}")
        if tensor.device != self._memory.device:
            raise ValueError(f"{name} is on {tensor.device}, but the plan is on {self._memory.device}")

    def use(
        self, sequences: int, heads: int, kv_heads: int, head_dim: int, window: int, history_ready: bool
    ) -> PlanUse:
        """For a call with the `sequences` of the last `update`; `history_ready` as `paged_attention` has it. Raises
        ValueError for other heads or another window than the plan's."""
        own = (self.heads, self.kv_heads, self.head_dim, self.window)
        if own != (heads, kv_heads, head_dim, window):
            raise ValueError(
                "plan was made for (heads, kv_heads, head_dim, sliding_window) = "
                f"{own}, not {(heads, kv_heads, head_dim, window)}"
            )
        decodes, extends = self.decodes and self._has_decodes, self.extends and self._has_prompts
        groups = self.shared_prefixes and sequences > self._lists.spared and self._has_decodes and self._has_prompts
        return self._lists, (sequences, groups, decodes, extends, history_ready)


def chunk_tokens() -> int:
    """Keys of one chunk: how long sequences are split among the multiprocessors."""
    return int(cuda.compiled.chunk_tokens)


def few_queries(group: int, *, windowed: bool) -> int:
    """The most query tokens of a sequence that is always computed as decodes are, of `group` query heads to a KV head,
    unless the plan is `uniform`; `windowed`: in a layer with a sliding window. After a long context more are."""
    return int(cuda.compiled.few_queries(group, windowed))


def split_queries(group: int) -> int:
    """The most query tokens that are split into parts, of `group` query heads to a KV head."""
    return int(cuda.compiled.split_queries(group))


def chunk_count(contexts: ArrayLike, queries: ArrayLike, group: int) -> int:
    """Chunks that a plan needs room for, of sequences of `contexts[S]` tokens that end with `queries[S]` queries: for
    each one per `chunk_tokens` keys, and where its queries are split (few, after a long context) as many for each
    part."""
    return int(cuda.compiled.chunk_count(contexts, queries, group))


def only_prompts(contexts: ArrayLike, queries: ArrayLike, group: int) -> bool:
    """True if none of these sequences is computed as decodes are, because of few queries, or split."""
    return bool(cuda.compiled.only_prompts(contexts, queries, group))
