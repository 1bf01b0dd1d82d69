"""Packed steps as messages to the ranks: of those on GPUs only the first packs."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import msgspec
import numpy as np

from octavo_worker.contract.windows import BlockMoves
from octavo_worker.runner.base import PromptScores
from octavo_worker.runner.cuda.packer import PackedStep, SpecialRow
from octavo_worker.runner.cuda.shapes import DecodeShape, PromptShape, RaggedShape, Shape, StepSizes
from octavo_worker.runner.parallel.steps import ENCODER

_SHAPES: tuple[type[Shape], ...] = (DecodeShape, PromptShape, RaggedShape)


class PackedMessage(msgspec.Struct, array_like=True):
    """A `PackedStep`. Arrays are bytes; a shape is the number of its type and its fields."""

    words: bytes
    shape: tuple[int, list[Any]] | None
    counts: tuple[int, int, int, int]  # of sequences, decodes, tokens and samples
    queries: bytes
    contexts: bytes
    is_shared: bool
    is_scored: bool
    on_host: bytes
    samples: list[int]
    masked: bytes
    special: list[SpecialRow]
    scores: list[PromptScores]
    copies: list[tuple[int, int]]
    swap_out: list[tuple[int, int]]
    swap_in: list[tuple[int, int]]
    uses_swapped_in: bool
    state_out: list[tuple[int, int]]
    state_in: list[tuple[int, int]]
    windows: BlockMoves


_DECODER = msgspec.msgpack.Decoder(PackedMessage)


def encode_packed(step: PackedStep) -> bytes:
    sizes, shape = step.sizes, step.shape
    return ENCODER.encode(
        PackedMessage(
            step.words.tobytes(),
            None if shape is None else (_SHAPES.index(type(shape)), list(astuple(shape))),
            (sizes.sequences, sizes.decodes, sizes.tokens, sizes.samples),
            sizes.queries.tobytes(),
            sizes.contexts.tobytes(),
            sizes.is_shared,
            sizes.is_scored,
            sizes.on_host.tobytes(),
            step.samples,
            step.masked.tobytes(),
            step.special,
            step.scores,
            list(step.copies),
            list(step.swap_out),
            list(step.swap_in),
            step.uses_swapped_in,
            list(step.state_out),
            list(step.state_in),
            step.windows,
        )
    )


def decode_packed(message: bytes) -> PackedStep:
    m = _DECODER.decode(message)
    queries, contexts = np.frombuffer(m.queries, np.int32), np.frombuffer(m.contexts, np.int32)
    on_host = np.frombuffer(m.on_host, np.bool_)
    return PackedStep(
        words=np.frombuffer(m.words, np.int32),
        sizes=StepSizes(*m.counts, queries, contexts, m.is_shared, m.is_scored, on_host),
        shape=None if m.shape is None else _SHAPES[m.shape[0]](*m.shape[1]),
        samples=m.samples,
        masked=np.frombuffer(m.masked, np.int64),
        special=m.special,
        scores=m.scores,
        copies=m.copies,
        swap_out=m.swap_out,
        swap_in=m.swap_in,
        uses_swapped_in=m.uses_swapped_in,
        state_out=m.state_out,
        state_in=m.state_in,
        windows=m.windows,
    )
