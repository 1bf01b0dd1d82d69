"""The state that recurrent layers keep of a sequence, and what a step does with it.

A *state* is what all recurrent layers of a model keep of one sequence after its first tokens. It lies in a *slot*, one
piece of memory with one id. Slots have one id space: those of the device, then from `ModelRunner.first_host_state_slot`
on those in CPU memory. Slot 0 is never handed out: as a source it means zeros, as a target that nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.cache import ELEMENT_BYTES

NO_SLOT = 0
PIECE_ALIGNMENT = 128
"""Bytes to whose multiples the pieces of layers, and slots, begin: a line of a GPU's cache."""
PART_ALIGNMENT = 16
"""Bytes to whose multiples the columns in a piece begin: the widest load of a kernel."""
_MATRIX_BYTES = 4


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state that one recurrent layer keeps of a sequence, as large after any number of tokens.

    `matrix` is the shape of its recurrence in float32 (heads, rows, columns), empty where there is none. `columns` are
    the latest inputs of its convolution as (channels, taps - 1) in `dtype`, the type of the model.
    """

    matrix: tuple[int, ...]
    columns: tuple[int, int]
    dtype: str

    @property
    def matrix_bytes(self) -> int:
        return prod(self.matrix) * _MATRIX_BYTES if self.matrix else 0

    @property
    def column_bytes(self) -> int:
        return prod(self.columns) * ELEMENT_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of both, without what aligns them."""
        return self.matrix_bytes + self.column_bytes


@dataclass(frozen=True, slots=True)
class StatePiece:
    """One layer in a slot: offsets of its matrix and of its columns in bytes. Either may be empty."""

    matrix: int
    columns: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """A slot: the piece of each layer, None where it is not recurrent, and the bytes of all (0: no layer is)."""

    specs: tuple[StateSpec | None, ...]
    pieces: tuple[StatePiece | None, ...]
    slot_bytes: int

    @classmethod
    def of(cls, specs: Sequence[StateSpec | None]) -> Self:
        """Pieces in the order of layers; in each the matrix comes first."""
        pieces = list[StatePiece | None]()
        end = 0
        for spec in specs:
            if spec is None:
                pieces.append(None)
                continue
            columns = _aligned(end + spec.matrix_bytes, PART_ALIGNMENT)
            pieces.append(StatePiece(end, columns))
            end = _aligned(columns + spec.column_bytes, PIECE_ALIGNMENT)
        return cls(tuple(specs), tuple(pieces), end)


class StateMove(msgspec.Struct, frozen=True, gc=False):
    """The part of a step that is about the state of a sequence.

    The step begins with the state in slot `read`; 0: with zeros. That is said and never follows from a position. It
    stores the state after its last token in slot `write`; 0: nowhere. `keeps` are (number of the step's tokens, slot),
    ascending: the state after so many of its tokens is stored in that slot, too. Numbers are from 1 on; a keep behind a
    draft that the runner did not fill in is not stored.

    Sequences of one step may read the same slot. A slot that is written or kept is touched by no other sequence of the
    step, and kept slots are neither read nor written by their own; `read` and `write` may be equal.
    """

    read: int
    write: int
    keeps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StateMoves:
    """The moves of a step as kernels take them, int32: `read[S]` and `write[S]`; the keeps of sequence s are entries
    `keep_start[s]` to `keep_start[s + 1]` (excluded) of `keep_after` and `keep_slot`."""

    read: NDArray[np.int32]
    write: NDArray[np.int32]
    keep_start: NDArray[np.int32]
    keep_after: NDArray[np.int32]
    keep_slot: NDArray[np.int32]

    @classmethod
    def of(cls, moves: Iterable[StateMove | None], rows: int = 0) -> Self:
        """The moves of all sequences of a step, padded to at least `rows`. A row of padding reads zeros and stores
        nothing, and so does a sequence without a move."""
        known = list(moves)
        known += [None] * (rows - len(known))
        keeps = [() if move is None else move.keeps for move in known]
        return cls(
            np.array([NO_SLOT if move is None else move.read for move in known], np.int32),
            np.array([NO_SLOT if move is None else move.write for move in known], np.int32),
            np.cumsum([0, *map(len, keeps)], dtype=np.int32),
            np.array([after for kept in keeps for after, _ in kept], np.int32),
            np.array([slot for kept in keeps for _, slot in kept], np.int32),
        )


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
