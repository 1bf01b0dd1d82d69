"""The blocks of one sequence, in the order of its tokens."""

from __future__ import annotations

from array import array

from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool


class BlockTable:
    """Maps token positions to blocks: position p lives in `blocks[p // block_size]`.

    The table has a reference to the blocks from entry `start` on. The entries before it are the null block where
    nothing reads them any more, or blocks of another pool that hold their content.

    The array `blocks` only ever grows. Any other change makes a new one, so that a step that was planned with the array
    keeps what it saw. Its entries have 32 bits as attention reads them: parts of it are cut, compared and sent without
    a look at each block.
    """

    __slots__ = ("_pool", "block_size", "blocks", "start")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self.block_size = block_size
        self.blocks = array("i")
        self.start = 0

    @property
    def held(self) -> array[int]:
        """The blocks that this table has a reference to."""
        return self.blocks[self.start :]

    def missing(self, num_tokens: int) -> int:
        """Blocks to allocate before `num_tokens` tokens fit."""
        return max(0, -(-num_tokens // self.block_size) - len(self.blocks))

    def storing(self, num_tokens: int) -> array[int]:
        """The blocks among them that store something of the first `num_tokens` tokens."""
        return self.blocks[self.start : -(-num_tokens // self.block_size)]

    def adopt(self, blocks: array[int]) -> None:
        """Share full blocks found in the prefix cache."""
        self._pool.acquire(blocks)
        self.blocks += blocks

    def begin(self, entries: array[int]) -> None:
        """Begin anew, without any block of its own, with `entries` that it does not hold."""
        self.blocks = entries[:]
        self.start = len(entries)

    def give_up(self, end: int) -> None:
        """Drop the references to the blocks before entry `end`: nothing reads them any more."""
        self.replace(null_blocks(min(end, len(self.blocks)) - self.start))

    def replace(self, entries: array[int]) -> None:
        """Put `entries` in the place of the oldest blocks, and drop the references to those, the oldest first: that is
        how they are evicted."""
        end = self.start + len(entries)
        if end > self.start:
            self._pool.release(self.blocks[self.start : end])
            self.blocks = self.blocks[: self.start] + entries + self.blocks[end:]
            self.start = end

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in all. `OutOfBlocks` changes nothing."""
        self.blocks.extend(self._pool.allocate(self.missing(num_tokens)))

    def shrink(self, num_tokens: int) -> None:
        """Give back the blocks past the first `num_tokens` tokens, the last first. Raises ValueError where these end
        before the table's first block."""
        end = -(-num_tokens // self.block_size)
        if end < self.start:
            raise ValueError(f"{num_tokens} tokens end before the blocks that this table holds")
        if end < len(self.blocks):
            self._pool.release(reversed(self.blocks[end:]))
            self.blocks = self.blocks[:end]

    def fork(self) -> BlockTable:
        """A table that shares every block, the partly filled last one included."""
        child = BlockTable(self._pool, self.block_size)
        child.begin(self.blocks[: self.start])
        child.adopt(self.held)
        return child

    def is_shared(self, position: int) -> bool:
        """True if another sequence would see what is written at `position`."""
        return self._pool.refs[self.blocks[position // self.block_size]] > 1

    def unshare(self, position: int) -> tuple[int, int]:
        """Give this table its own block at `position`: the (source, target) of the copy to make. May `OutOfBlocks`."""
        slot = position // self.block_size
        source = self.blocks[slot]
        (target,) = self._pool.allocate(1)
        self.blocks = self.blocks[:]
        self.blocks[slot] = target
        self._pool.release((source,))
        return source, target

    def free(self) -> None:
        """Give all blocks back, the last first."""
        self._pool.release(reversed(self.held))
        self.begin(array("i"))


def null_blocks(count: int) -> array[int]:
    """Entries that hold nothing."""
    return array("i", (NULL_BLOCK,)) * count
