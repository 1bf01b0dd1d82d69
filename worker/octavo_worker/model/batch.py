"""The ragged batch of one step, as the kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.attention.wide import Plan
from octavo_kernels.ops import Moves
from octavo_worker.contract.cache import AttentionShape
from octavo_worker.contract.step import SequenceStep, StepError
from octavo_worker.model.expansion import Expansion
from octavo_worker.model.recurrent.slots import moves_of
from octavo_worker.model.stage import Stage


class Paging(NamedTuple):
    """Blocks of one group in a batch: `block_tables[S, blocks]` (int32), and `slots[T]` (int64), where K and V go. With
    a `stage` attention reads each layer there instead of in the cache."""

    block_tables: Tensor
    slots: Tensor
    stage: Stage | None = None


@dataclass(slots=True)
class Batch:
    """T tokens of S sequences. int64: `token_ids[T]`, `positions[T]`, `slots[T]` (where K and V go); int32:
    `block_tables[S, blocks]`, `context_lens[S]` (with this step's tokens), `query_start[S + 1]`, `row_context[T]` (the
    `SequenceStep`'s; None in batches of drafts). On CUDA: `plans` are
    what the layers of each shape of attention share, `groups[S]` and `prefix_lens[S]` (int32) say which sequences have
    equal leading blocks, and `stage` is that of their blocks. `moves` are what the step does with recurrent states;
    without `prompts` no sequence is one. `windows` are the blocks of layers with a window, where these are a group of
    their own: those are never staged."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start: Tensor
    row_context: Tensor | None = None
    plans: dict[AttentionShape, Plan] = field(default_factory=dict)
    groups: Tensor | None = None
    prefix_lens: Tensor | None = None
    stage: Stage | None = None
    moves: Moves | None = None
    prompts: bool = True
    windows: Paging | None = None
    expansion: Expansion | None = None

    @property
    def absorbed(self) -> Batch:
        """The sequences whose latent attention is absorbed, with the tokens of all: the first ones."""
        if self.expansion is None:
            return self
        count = self.expansion.sequences
        return replace(
            self,
            block_tables=self.block_tables[:count],
            context_lens=self.context_lens[:count],
            query_start=self.query_start[: count + 1],
            groups=None if self.groups is None else self.groups[:count],
            prefix_lens=None if self.prefix_lens is None else self.prefix_lens[:count],
        )

    def paging(self, window: int) -> Paging:
        """Blocks of a layer with this `window` (0: none)."""
        if window and self.windows is not None:
            return self.windows
        return Paging(self.block_tables, self.slots, self.stage)


def ragged_batch(sequences: Sequence[SequenceStep], block_size: int, vocab_size: int) -> Batch:
    """Raises `StepError` for a sequence with a token id outside the vocabulary."""
    counts = np.array([len(s.tokens) for s in sequences])
    starts = np.array([s.start for s in sequences])
    query_start = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    token_ids = np.fromiter((t for s in sequences for t in s.tokens), np.int64, query_start[-1])
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        _blame(sequences, vocab_size)

    context_lens = starts + counts
    owner = np.repeat(np.arange(len(sequences)), counts)
    positions = np.arange(len(token_ids)) + (starts - query_start[:-1])[owner]
    place = partial(_paging, blocks=-(-context_lens // block_size), owner=owner, positions=positions, size=block_size)
    paging = place([s.block_table for s in sequences])
    windows = [s.window_table for s in sequences]
    starts_of_rows = torch.from_numpy(query_start)
    return Batch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=paging.slots,
        block_tables=paging.block_tables,
        context_lens=torch.from_numpy(context_lens.astype(np.int32)),
        query_start=starts_of_rows,
        moves=moves_of([s.state for s in sequences], starts_of_rows),
        row_context=torch.from_numpy(np.array([s.row_context for s in sequences], np.int32)[owner]),
        windows=place(windows) if windows[0] else None,
    )


def _paging(
    tables: Sequence[Sequence[int]], blocks: NDArray[Any], owner: NDArray[Any], positions: NDArray[Any], size: int
) -> Paging:
    """The entries of `tables` that the sequences have, `blocks[S]` of each, and the slots of the batch's tokens: those
    at `positions[T]` of the sequences `owner[T]`."""
    entries = np.zeros((len(tables), int(blocks.max())), np.int32)
    for row, table, count in zip(entries, tables, blocks.tolist(), strict=True):
        row[:count] = table[:count]
    slots = entries[owner, positions // size].astype(np.int64) * size + positions % size
    return Paging(torch.from_numpy(entries), torch.from_numpy(slots))


def _blame(sequences: Sequence[SequenceStep], vocab_size: int) -> None:
    for i, sequence in enumerate(sequences):
        for token in sequence.tokens:
            if not 0 <= token < vocab_size:
                raise StepError(i, f"token id {token} is outside the model's vocabulary of {vocab_size}")
