"""A step's inputs: packed by the host into one message of 32-bit words, unpacked on the device in one launch.

A message is a `HEADER`, then a `SEQUENCE` record for each sequence, the token ids, a `SAMPLE` record for each sample,
and block ids; the places in header and records count words from the header on. A token id below zero is `~i`: the token
that sample i of the previous step chose, which the host need not know.

Block tables stay on the device in one row a sequence, whatever its place in the batch, so a step sends only new blocks.
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
from octavo_kernels.sampling.sample import SAMPLE, SAMPLE_WORDS

HEADER, SEQUENCE = _cpu.STEP_HEADER, _cpu.STEP_SEQUENCE
"""numpy types of `StepHeader` and `StepSequence` in csrc/messages.h."""


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

    @classmethod
    def allocate(cls, sequences: int, tokens: int, blocks: int, device: torch.device) -> StepInputs:
        """For at most `sequences` sequences, and as many samples, of `blocks` blocks each, and `tokens` tokens."""

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        i64, i32 = torch.int64, torch.int32
        return cls(
            zeros(i64, tokens), zeros(i64, tokens), zeros(i64, tokens),
            zeros(i32, sequences, blocks), zeros(i32, sequences), zeros(i32, sequences + 1),
            zeros(i32, sequences), zeros(i32, sequences), zeros(i32, tokens),
            zeros(i64, sequences), zeros(i32, sequences, SAMPLE_WORDS),
        )  # fmt: skip

    def addresses(self) -> tuple[int, ...]:
        """In the order of `StepPlaces` in csrc/cuda/module.cpp."""
        return tuple(getattr(self, field.name).data_ptr() for field in fields(self))


def unpack_step(
    message: Tensor, tables: Tensor, previous: Tensor, inputs: StepInputs, sequences: int, block_size: int
) -> None:
    """Fills `inputs` from `message` (int32) and the `tables[rows, blocks]` (int32), which take up the new blocks.

    `sequences` at least those of the message: further ones become padding, one token each, which is written to slot -1,
    has a context of 0 and samples greedily. `previous` (int64): the tokens of the last step's samples; -1, where
    `sample` found none, becomes token 0. Message and inputs must be on one device; nothing in the message is checked.
    """
    if not message.is_cuda:
        _unpack(message.numpy(), tables, previous, inputs, sequences, block_size)
        return
    cuda.run(
        "unpack_step", message.device,
        message.data_ptr(), rows_at(tables), previous.data_ptr(), sequences, block_size, inputs.addresses(),
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
    inputs.query_start[0] = 0
    inputs.groups[:sequences], inputs.prefix_lens[:sequences] = -1, 0
    inputs.groups[: len(records)] = torch.from_numpy(records["group"].copy())
    inputs.prefix_lens[: len(records)] = torch.from_numpy(records["prefix"].copy())
    for place, q in enumerate(records):
        row, first, start, end = q["row"], q["first_block"], q["query_start"], q["query_start"] + q["queries"]
        blocks = message[q["block_at"] :][: q["blocks"]]
        tables[row, first : first + len(blocks)] = torch.from_numpy(blocks)
        inputs.block_tables[place] = tables[row]
        inputs.context_lens[place], inputs.query_start[place + 1] = int(q["context"]), int(end)
        positions = torch.arange(q["context"] - q["queries"], q["context"])
        inputs.positions[start:end], inputs.row_context[start:end] = positions, int(q["row_context"])
        inputs.slots[start:end] = tables[row][positions // block_size].long() * block_size + positions % block_size
    inputs.context_lens[len(records) : sequences] = 0
    inputs.query_start[len(records) + 1 : sequences + 1] = torch.arange(len(token_ids) + 1, total + 1)
    _fill_samples(inputs, samples, sequences)


def _fill_samples(inputs: StepInputs, samples: np.ndarray, sequences: int) -> None:
    records = np.zeros(max(len(samples), sequences), SAMPLE)
    records["top_p"], records["row"] = 1.0, np.arange(len(records))
    records[: len(samples)] = samples
    inputs.samples[: len(records)] = torch.from_numpy(records.view(np.int32).reshape(-1, SAMPLE_WORDS))
    inputs.sample_rows[: len(records)] = torch.from_numpy(records["row"].copy())


def _records(message: np.ndarray, at: int, count: int, dtype: np.dtype) -> np.ndarray:
    return message[at : at + count * dtype.itemsize // 4].view(dtype)
