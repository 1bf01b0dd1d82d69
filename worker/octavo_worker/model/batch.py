"""The ragged batch of one step, as the kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.attention.wide import Plan
from octavo_kernels.ops import Moves
from octavo_worker.contract.cache import AttentionShape
from octavo_worker.contract.step import SequenceStep, StepError
from octavo_worker.model.recurrent.slots import moves_of
from octavo_worker.model.stage import Stage


@dataclass(slots=True)
class Batch:
    """T tokens of S sequences. int64: `token_ids[T]`, `positions[T]`, `slots[T]` (where K and V go); int32:
    `block_tables[S, blocks]`, `context_lens[S]` (with this step's tokens), `query_start[S + 1]`, `row_context[T]` (the
    `SequenceStep`'s; None in batches of drafts). On CUDA: `plans` are
    what the layers of each shape of attention share, `groups[S]` and `prefix_lens[S]` (int32) say which sequences have
    equal leading blocks, and with a `stage` attention reads each layer there instead of in the cache. `moves` are what
    the step does with recurrent states."""

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
    block_tables = np.zeros((len(sequences), -(-int(context_lens.max()) // block_size)), np.int32)
    for row, sequence, length in zip(block_tables, sequences, context_lens, strict=True):
        blocks = -(-int(length) // block_size)
        row[:blocks] = sequence.block_table[:blocks]

    owner = np.repeat(np.arange(len(sequences)), counts)
    positions = np.arange(len(token_ids)) + (starts - query_start[:-1])[owner]
    slots = block_tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    starts_of_rows = torch.from_numpy(query_start)
    return Batch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        block_tables=torch.from_numpy(block_tables),
        context_lens=torch.from_numpy(context_lens.astype(np.int32)),
        query_start=starts_of_rows,
        moves=moves_of([s.state for s in sequences], starts_of_rows),
        row_context=torch.from_numpy(np.array([s.row_context for s in sequences], np.int32)[owner]),
    )


def _blame(sequences: Sequence[SequenceStep], vocab_size: int) -> None:
    for i, sequence in enumerate(sequences):
        for token in sequence.tokens:
            if not 0 <= token < vocab_size:
                raise StepError(i, f"token id {token} is outside the model's vocabulary of {vocab_size}")
