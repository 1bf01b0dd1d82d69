"""A step's inputs: packed by the host into one message of 32-bit words, unpacked on the device in one launch.

A message is a `HEADER`, then a `SEQUENCE` record for each sequence, the token ids, a `SAMPLE` record for each sample,
and block ids; the places in header and records count words from the header on. A token id below zero is `~i`: the token
that sample i of the previous step chose, which the host need not know. That of a model that keeps states has a `MOVE`
record for each sequence and a `KEEP` record for each keep behind those of the samples.

Block tables stay on the device in one row a sequence, whatever its place in the batch, so a step sends only new blocks.
Where layers with a window have blocks of their own, their ids follow those of the sequence's other table, as many of
them. Messages of other models do not have them.
`group` is the number of the group of sequences with equal leading blocks that a sequence is in (-1: none), below the
number of sequences; `prefix` of record g is what the sequences of group g share, in tokens. Each row of a sequence has
the sequence's `row_context`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import _cpu, cuda
from octavo_kernels.operands import rows_at
from octavo_kernels.recurrent.operands import Moves
from octavo_kernels.sampling.sample import SAMPLE, SAMPLE_WORDS

HEADER, SEQUENCE = _cpu.STEP_HEADER, _cpu.STEP_SEQUENCE
"""numpy types of `StepHeader` and `StepSequence` in csrc/messages.h."""
MOVE, KEEP = _cpu.STEP_MOVE, _cpu.STEP_KEEP
"""And of `StepMove` and `StepKeep`."""


@dataclass(slots=True)
class MoveInputs:
    """Where the moves of a step lie, at fixed addresses: int32 `read[S]`, `write[S]`, `keep_start[S + 1]`,
    `keep_after[K]` and `keep_slot[K]` of `Moves`."""

    read: Tensor
    write: Tensor
    keep_start: Tensor
    keep_after: Tensor
    keep_slot: Tensor

    @classmethod
    def allocate(cls, sequences: int, keeps: int, device: torch.device) -> MoveInputs:
        """For at most `sequences` sequences with `keeps` keeps in all."""
        sizes = sequences, sequences, sequences + 1, keeps, keeps
        return cls(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))

    def of(self, query_start: Tensor) -> Moves:
        """The moves of the sequences that begin at `query_start[S + 1]`."""
        count = len(query_start) - 1
        starts = self.keep_start[: count + 1]
        return Moves(query_start, self.read[:count], self.write[:count], starts, self.keep_after, self.keep_slot)

    def addresses(self) -> tuple[int, ...]:
        """In the order of `StepMoves` in csrc/cuda/device/step.h."""
        return tuple(getattr(self, field.name).data_ptr() for field in fields(self))


NO_MOVES = (0,) * len(fields(MoveInputs))


@dataclass(slots=True)
class WindowInputs:
    """Where blocks of layers with a window lie, at fixed addresses, in a model that keeps them apart: the `tables[rows,
    blocks]` (int32) that stay on the device, and of a step `block_tables[S, blocks]` (int32) and `slots[T]` (int64). As
    wide as the tables of the other layers."""

    tables: Tensor
    block_tables: Tensor
    slots: Tensor

    @classmethod
    def allocate(cls, rows: int, sequences: int, tokens: int, blocks: int, device: torch.device) -> WindowInputs:
        """For steps of at most `sequences` sequences and `tokens` tokens, of `rows` that run."""
        tables, placed = (torch.zeros((n, blocks), dtype=torch.int32, device=device) for n in (rows, sequences))
        return cls(tables, placed, torch.zeros(tokens, dtype=torch.int64, device=device))

    def addresses(self) -> tuple[int, ...]:
        """In the order of `StepWindows` in csrc/cuda/device/step.h."""
        return tuple(getattr(self, field.name).data_ptr() for field in fields(self))


NO_WINDOWS = (0,) * len(fields(WindowInputs))


@dataclass(slots=True)
class StepInputs:
    """Where a step's inputs lie, at fixed addresses. int64: `token_ids[T]`, `positions[T]`, `slots[T]`,
    `sample_rows[R]`; int32: `block_tables[S, blocks]`, `context_lens[S]`, `query_start[S + 1]`, `groups[S]`,
    `prefix_lens[S]`, `row_context[T]`, `samples[R, SAMPLE_WORDS]`, which `ops.sample` takes."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start: Tensor
    groups: Tensor
    prefix_lens: Tensor
    row_context: Tensor
    sample_rows: Tensor
    samples: Tensor
    moves: MoveInputs | None = None
    windows: WindowInputs | None = None

    @classmethod
    def allocate(
        cls,
        sequences: int,
        tokens: int,
        blocks: int,
        device: torch.device,
        *,
        states: bool = False,
        windows: WindowInputs | None = None,
    ) -> StepInputs:
        """For at most `sequences` sequences, and as many samples, of `blocks` blocks each, and `tokens` tokens. With
        `states` messages have moves, and keeps behind any of the tokens; with `windows` they have a second table."""

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        i64, i32 = torch.int64, torch.int32
        return cls(
            zeros(i64, tokens), zeros(i64, tokens), zeros(i64, tokens),
            zeros(i32, sequences, blocks), zeros(i32, sequences), zeros(i32, sequences + 1),
            zeros(i32, sequences), zeros(i32, sequences), zeros(i32, tokens),
            zeros(i64, sequences), zeros(i32, sequences, SAMPLE_WORDS),
            MoveInputs.allocate(sequences, tokens, device) if states else None, windows,
        )  # fmt: skip

    def addresses(self) -> tuple[int, ...]:
        """In the order of `StepPlaces` in csrc/cuda/module.cpp, which has neither moves nor windows."""
        return tuple(getattr(self, field.name).data_ptr() for field in fields(self)[:-2])

    def move_addresses(self) -> tuple[int, ...]:
        """As `MoveInputs.addresses`; all null without moves."""
        return NO_MOVES if self.moves is None else self.moves.addresses()

    def window_addresses(self) -> tuple[int, ...]:
        """As `WindowInputs.addresses`; all null where all layers have one table."""
        return NO_WINDOWS if self.windows is None else self.windows.addresses()


def unpack_step(
    message: Tensor, tables: Tensor, previous: Tensor, inputs: StepInputs, sequences: int, block_size: int
) -> None:
    """Fills `inputs` from `message` (int32) and the `tables[rows, blocks]` (int32), which take up the new blocks.

    `sequences` at least those of the message: further ones become padding, one token each, which is written to slot -1,
    has a context of 0, moves no state and samples greedily. `previous` (int64): the tokens of the last step's samples;
    -1, where `sample` found none, becomes token 0. Message and inputs must be on one device; nothing in the message is
    checked.
    """
    if not message.is_cuda:
        _unpack(message.numpy(), tables, previous, inputs, sequences, block_size)
        return
    cuda.run(
        "unpack_step", message.device,
        message.data_ptr(), rows_at(tables), previous.data_ptr(), sequences, block_size, inputs.addresses(),
        inputs.move_addresses(), inputs.window_addresses(),
    )  # fmt: skip


def carry(source: Tensor, target: Tensor) -> None:
    """Copies `source` to `target`, of one contiguous layout, one on a GPU and the other in pinned memory of the host,
    on the current stream. A kernel does it: for some kilobytes it is done before a copy engine would have begun. Raises
    ValueError for layouts that differ."""
    if source.nbytes != target.nbytes or not source.is_contiguous() or not target.is_contiguous():
        raise ValueError(f"source and target must be contiguous and of one size, not {source.shape} and {target.shape}")
    device = source.device if source.is_cuda else target.device
    cuda.run("carry", device, source.data_ptr(), target.data_ptr(), source.nbytes // 4)


def _unpack(
    message: np.ndarray, tables: Tensor, previous: Tensor, inputs: StepInputs, sequences: int, block_size: int
) -> None:
    header = message[: HEADER.itemsize // 4].view(HEADER)[0]
    records = _records(message, header["sequence_at"], header["sequences"], SEQUENCE)
    samples = _records(message, header["sample_at"], header["samples"], SAMPLE)
    token_ids = message[header["token_at"] :][: header["tokens"]].astype(np.int64)
    chosen = token_ids < 0
    token_ids[chosen] = np.maximum(previous.numpy()[~token_ids[chosen]], 0)

    padding = sequences - len(records)
    total = len(token_ids) + padding
    inputs.token_ids[:total] = torch.from_numpy(np.append(token_ids, np.zeros(padding, np.int64)))
    inputs.positions[:total], inputs.slots[:total], inputs.row_context[:total] = 0, -1, 0
    if inputs.windows is not None:
        inputs.windows.slots[:total] = -1
    inputs.query_start[0] = 0
    inputs.groups[:sequences], inputs.prefix_lens[:sequences] = -1, 0
    inputs.groups[: len(records)] = torch.from_numpy(records["group"].copy())
    inputs.prefix_lens[: len(records)] = torch.from_numpy(records["prefix"].copy())
    for place, q in enumerate(records):
        start, end = q["query_start"], q["query_start"] + q["queries"]
        inputs.context_lens[place], inputs.query_start[place + 1] = int(q["context"]), int(end)
        positions = torch.arange(q["context"] - q["queries"], q["context"])
        inputs.positions[start:end], inputs.row_context[start:end] = positions, int(q["row_context"])
        sent = message[q["block_at"] :]
        inputs.slots[start:end] = _take_blocks(q, sent, tables, inputs.block_tables[place], positions, block_size)
        if (w := inputs.windows) is not None:
            more = sent[q["blocks"] :]
            w.slots[start:end] = _take_blocks(q, more, w.tables, w.block_tables[place], positions, block_size)
    inputs.context_lens[len(records) : sequences] = 0
    inputs.query_start[len(records) + 1 : sequences + 1] = torch.arange(len(token_ids) + 1, total + 1)
    _fill_samples(inputs, samples, sequences)
    if inputs.moves is not None:
        _fill_moves(inputs.moves, message[header["sample_at"] + len(samples) * SAMPLE_WORDS :], len(records), sequences)


def _take_blocks(
    record: np.void, sent: np.ndarray, tables: Tensor, place: Tensor, positions: Tensor, block_size: int
) -> Tensor:
    """Takes up what was `sent` of one group's blocks, copies the sequence's table to its `place`, and gives the slots
    of `positions`."""
    row, first, count = record["row"], record["first_block"], record["blocks"]
    tables[row, first : first + count] = torch.from_numpy(sent[:count])
    place.copy_(tables[row])
    return place[positions // block_size].long() * block_size + positions % block_size


def _fill_moves(moves: MoveInputs, words: np.ndarray, count: int, sequences: int) -> None:
    """From `words`, which begin with the records of `count` sequences."""
    sent = _records(words, 0, count, MOVE)
    ends = sent["first_keep"] + sent["keeps"]
    total = int(ends[-1]) if count else 0
    keeps = _records(words, count * MOVE.itemsize // 4, total, KEEP)
    padding = np.zeros(sequences - count, np.int32)
    moves.read[:sequences] = torch.from_numpy(np.append(sent["read"], padding))
    moves.write[:sequences] = torch.from_numpy(np.append(sent["write"], padding))
    moves.keep_start[0] = 0
    moves.keep_start[1 : sequences + 1] = torch.from_numpy(np.append(ends, padding + total))
    moves.keep_after[:total] = torch.from_numpy(keeps["after"].copy())
    moves.keep_slot[:total] = torch.from_numpy(keeps["slot"].copy())


def _fill_samples(inputs: StepInputs, samples: np.ndarray, sequences: int) -> None:
    records = np.zeros(max(len(samples), sequences), SAMPLE)
    records["top_p"], records["row"] = 1.0, np.arange(len(records))
    records[: len(samples)] = samples
    inputs.samples[: len(records)] = torch.from_numpy(records.view(np.int32).reshape(-1, SAMPLE_WORDS))
    inputs.sample_rows[: len(records)] = torch.from_numpy(records["row"].copy())


def _records(message: np.ndarray, at: int, count: int, dtype: np.dtype) -> np.ndarray:
    return message[at : at + count * dtype.itemsize // 4].view(dtype)
