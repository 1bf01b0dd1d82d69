"""Moves of states as words of a step's message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo_kernels.step import KEEP, MOVE
from octavo_worker.contract.state import StateMove
from octavo_worker.contract.step import SequenceStep

MOVE_WORDS, KEEP_WORDS = (int(dtype.itemsize) // 4 for dtype in (MOVE, KEEP))
NOWHERE = StateMove(0, 0)


def most_words(sequences: int, tokens: int) -> int:
    """Words of the moves of a step at most: a sequence keeps a state behind each of its tokens, or behind fewer."""
    return sequences * MOVE_WORDS + tokens * KEEP_WORDS


def pack_moves(steps: Sequence[SequenceStep], words: np.ndarray) -> int:
    """Writes records of all sequences, then their keeps, to the head of `words` (int32). Returns how many words these
    are."""
    moves = [step.state or NOWHERE for step in steps]
    keep_at = len(moves) * MOVE_WORDS
    records = words[:keep_at].view(MOVE)
    records["read"] = [move.read for move in moves]
    records["write"] = [move.write for move in moves]
    keeps = [keep for move in moves for keep in move.keeps]
    if not keeps:
        records["first_keep"], records["keeps"] = 0, 0
        return keep_at
    counts = np.array([len(move.keeps) for move in moves], np.int32)
    records["first_keep"], records["keeps"] = np.cumsum(counts) - counts, counts
    end = keep_at + len(keeps) * KEEP_WORDS
    words[keep_at:end].reshape(-1, KEEP_WORDS)[:] = keeps
    return end
