"""Memory of the engine as claims count it: what a job takes of it, and how many more find theirs in what is free."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from octavo.terms.stats import EngineStats
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.contract.messages import Ready

GROWTH_BLOCKS = 4
"""Blocks that a running sequence is expected to need before another one ends and frees its own."""


class Need(NamedTuple):
    """Blocks, and blocks of windows where layers with a window are a group of their own."""

    blocks: int = 0
    windows: int = 0

    def plus(self, other: Need) -> Need:
        return Need(self.blocks + other.blocks, self.windows + other.windows)

    def minus(self, other: Need) -> Need:
        return Need(self.blocks - other.blocks, self.windows - other.windows)

    def share(self, part: int, of: int) -> Need:
        return Need(self.blocks * part // of, self.windows * part // of)


NOTHING = Need()


def total(needs: Iterable[Need]) -> Need:
    return reduce(Need.plus, needs, NOTHING)


class Memory:
    """The blocks of an engine with these limits, of one group or of two.

    No single number tells the room for both groups: a short job takes equally many blocks of either, a long one a
    window of the second. Where both share their memory, a block of windows counts as the blocks that it displaces.
    """

    def __init__(self, limits: Ready) -> None:
        self._limits, self._windows = limits, limits.windows
        self.all = Need(limits.num_blocks, 0 if self._windows is None else self._windows.number)

    def of(self, job: ActiveJob) -> Need:
        """Blocks that a job takes with all that it has."""
        windows, size = self._windows, self._limits.block_size
        blocks = job.blocks(size, self._limits.enough_blocks)
        return Need(blocks, 0 if windows is None else job.blocks(size, windows.live))

    def growth(self, job: ActiveJob) -> Need:
        """Blocks that it takes soon: of windows no more than each of its sequences has at last, and one that a window
        does without as long as it begins where a block does."""
        windows, rows = self._windows, job.open_sequences
        if windows is None:
            return Need(rows * GROWTH_BLOCKS)
        left = rows * (windows.live + 1) - job.blocks(self._limits.block_size, windows.live)
        return Need(rows * GROWTH_BLOCKS, max(0, min(rows * GROWTH_BLOCKS, left)))

    def covers(self, free: Need, needed: Need) -> bool:
        """True if so much finds room in what is free."""
        left, windows = free.minus(needed), self._windows
        if windows is not None and windows.weight:
            return self._together(left) >= 0
        return min(left) >= 0

    def jobs(self, free: Need) -> int:
        """The shortest jobs that find room."""
        windows, blocks = self._windows, GROWTH_BLOCKS + 1
        if windows is None:
            return free.blocks // blocks
        least = Need(blocks, min(blocks, windows.live))
        if windows.weight:
            return self._times(free, least)
        return min(free.blocks // least.blocks, free.windows // least.windows)

    def prompts(self, free: Need, *, any_first: bool = False) -> tuple[int, int]:
        """Prompts that find room, and their tokens. With `any_first` the first one is taken whatever its length.

        Of windows short prompts take as many blocks as of the others, and long ones some each, and a chunk. The next
        prompt is not known. So where short ones of as many tokens as may come have no room, there is room for as many
        as may all be long.
        """
        windows, limits = self._windows, self._limits
        if windows is None:
            return limits.max_running, self._tokens(free.blocks)
        beside = windows.live + windows.chunk
        if windows.weight:
            short = self._times(free, Need(1, 1))
            long = free.blocks + int(windows.weight * (free.windows - beside) // 1)  # as `covers`, to the last bit
        else:
            short, long = min(free), free.blocks if free.windows >= beside else 0
        longest = -(-limits.max_model_len // limits.block_size)
        wanted = longest if long >= limits.enough_blocks else min(long, longest)
        if any_first or short >= wanted:
            return limits.max_running, max(0, short) * limits.block_size
        left: float = free.windows
        if windows.weight:
            left = (self._together(free) - min(wanted, limits.enough_blocks)) / windows.weight
        return max(1, int((left - windows.chunk) // windows.live)), wanted * limits.block_size

    def _tokens(self, blocks: int) -> int:
        tokens = max(0, blocks) * self._limits.block_size
        return max(tokens, self._limits.max_model_len) if blocks >= self._limits.enough_blocks else tokens

    def _times(self, free: Need, each: Need) -> int:
        """How often `each` finds room where both groups share their memory; a quotient of floats may be one too few."""
        more = int(self._together(free) // self._together(each)) + 1
        return more - (not self.covers(free, Need(each.blocks * more, each.windows * more)))

    def _together(self, need: Need) -> float:
        """Blocks that would fill the same memory."""
        return need.blocks + (0.0 if self._windows is None else self._windows.weight * need.windows)


def reusable(stats: EngineStats, giving: Need = NOTHING) -> Need:
    """Blocks that are free by now, or would be if jobs that have `giving` gave way."""
    blocks = stats.free_blocks + stats.cached_blocks + stats.quarantined_blocks
    blocks += min(stats.used_blocks - stats.pinned_blocks, giving.blocks)
    windows = stats.free_windows + stats.cached_windows + stats.quarantined_windows
    windows += min(stats.used_windows - stats.pinned_windows, giving.windows)
    return Need(blocks, windows)
