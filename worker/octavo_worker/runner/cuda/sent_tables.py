"""Block tables of a step's message: what the device does not have of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from octavo_worker.contract.step import SequenceStep, count_host_blocks


class SentTables:
    """Mirror of the block tables that a device keeps, in `rows` rows: how many entries of each it has.

    `first_host_block`: the first id of the host's blocks; None if no table ever has any. With `windows` sequences have
    a second table, of layers with a window. Its ids follow those of the first, for the same entries: both tables grow
    at once, and a block of either is copied before the next token is written. Blocks that a window has left stay in the
    device's table, where nothing reads them.
    """

    def __init__(self, rows: int, block_size: int, first_host_block: int | None, *, windows: bool) -> None:
        self._block_size, self._first_host_block, self._windows = block_size, first_host_block, windows
        self._sent = np.zeros(rows, np.int32)
        self._on_host = np.zeros(rows, np.int32)  # leading ones of those that are host blocks

    def __len__(self) -> int:
        return len(self._sent)

    def forget(self, row: int) -> None:
        """The row is another run's from now on."""
        self._sent[row], self._on_host[row] = 0, 0

    def on_host(self, rows: np.ndarray) -> np.ndarray:
        """Which of these rows have blocks on the host (bool)."""
        return np.asarray(self._on_host[rows] > 0)

    def pack(
        self,
        steps: Sequence[SequenceStep],
        rows: np.ndarray,
        starts: np.ndarray,
        contexts: np.ndarray,
        sequences: np.ndarray,
        message: np.ndarray,
        block_at: int,
    ) -> int:
        """Writes the block ids that the device does not have, and the one that is written next, which may be a new
        copy. Returns the words of the whole message."""
        first = np.minimum(self._sent[rows], starts // self._block_size)
        self._find_host_blocks(steps, rows, first)
        end = -(-contexts // self._block_size)
        self._sent[rows] = end
        counts, groups = end - first, 1 + self._windows
        ends = np.cumsum(counts)
        total = groups * int(ends[-1])
        sequences["first_block"], sequences["blocks"] = first, counts
        sequences["block_at"] = block_at + groups * (ends - counts)
        words = message[block_at : block_at + total]
        if total == groups * len(steps):
            entries = first.tolist()
            words[::groups] = [s.block_table[at] for s, at in zip(steps, entries, strict=True)]
            if self._windows:
                words[1::groups] = [s.window_table[at] for s, at in zip(steps, entries, strict=True)]
            return block_at + total
        ranges = zip(steps, first.tolist(), end.tolist(), strict=True)
        if self._windows:
            fill(words, chain.from_iterable((s.block_table[at:to], s.window_table[at:to]) for s, at, to in ranges))
        else:
            fill(words, [s.block_table[at:to] for s, at, to in ranges])
        return block_at + total

    def _find_host_blocks(self, steps: Sequence[SequenceStep], rows: np.ndarray, first: np.ndarray) -> None:
        """Lowers `first`, the first table entry that each sequence sends, to the first that was swapped to the host
        since."""
        host = self._first_host_block
        if host is None:
            return
        heads = np.fromiter((s.block_table[0] for s in steps), np.int32, len(steps))
        for place in np.flatnonzero(heads >= host).tolist():
            row, count = rows[place], count_host_blocks(steps[place].block_table, host)
            if count > self._on_host[row]:
                first[place] = min(first[place], self._on_host[row])
                self._on_host[row] = count


def fill(words: np.ndarray, parts: Iterable[Sequence[int]]) -> None:
    """Concatenates the parts into `words`: arrays are copied as a whole, not word by word."""
    at = 0
    for part in parts:
        words[at : at + len(part)] = part
        at += len(part)
