"""The pool of KV blocks: references to them, and which block is reused next."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat, takewhile

NULL_BLOCK = 0


class OutOfBlocks(Exception):
    """More blocks were asked for than are free. Nothing was taken."""


class BlockPool:
    """Reference-counted blocks with ids from `first` + 1 to `first` + `num_blocks` - 1.

    Block 0 is the null block. Another pool's ids may come before those of this one: its block `first` is as little
    handed out as the null block is.

    A block is *used* (references > 0), *cached* (no reference, but its content is published under a hash and may be
    revived), *free*, or *quarantined* (no reference, but a copy in flight still reads or writes it). Cached and free
    blocks share one intrusive doubly linked list, so taking any of them out costs O(1). Reuse goes from the head:
    blocks without a hash are pushed to the head (the last freed is the warmest), blocks with a hash to the tail, which
    makes eviction least recently used. Free a sequence's blocks last first, and the ends of prefixes are evicted before
    their beginnings.
    """

    def __init__(self, num_blocks: int, first: int = 0) -> None:
        """Raises ValueError for fewer than two blocks."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}: at least 2 are needed, block 0 is never used")
        self.num_blocks = num_blocks
        self.first = first
        end = first + num_blocks
        self.refs = [0] * end
        self._hash: list[bytes | None] = [None] * end
        self._by_hash: dict[bytes, int] = {}
        self.contents = bytearray(end)  # 1 where a block's content can be found: copied whole for a map
        # The null block doubles as the list's sentinel: its successor is the head, its predecessor the tail.
        self._next = [*range(1, end), NULL_BLOCK]
        self._prev = [end - 1, *range(end - 1)]
        self._next[NULL_BLOCK], self._prev[first + 1] = first + 1, NULL_BLOCK
        self._available = num_blocks - 1
        self._cached = 0
        self._shared = 0
        self._guarded: dict[int, int] = {}  # block -> the last step that copies from or to it
        self._quarantine: dict[int, None] = {}  # in the order of release

    @property
    def total(self) -> int:
        """Blocks that can ever be handed out."""
        return self.num_blocks - 1

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached."""
        return self._available

    @property
    def cached(self) -> int:
        return self._cached

    @property
    def shared(self) -> int:
        """Used blocks with more than one reference."""
        return self._shared

    @property
    def free(self) -> int:
        return self._available - self._cached

    @property
    def quarantined(self) -> int:
        return len(self._quarantine)

    @property
    def used(self) -> int:
        return self.total - self._available - len(self._quarantine)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each, evicting cached ones if need be. `OutOfBlocks` takes none."""
        if count > self._available:
            raise OutOfBlocks(f"{count} blocks wanted, {self._available} available")
        blocks = []
        for _ in range(count):
            block = self._next[NULL_BLOCK]
            self._unlink(block)
            if self._hash[block] is not None:
                self._cached -= 1
                self._forget(block)
            self.refs[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; cached ones come back into use."""
        refs = self.refs
        for block in blocks:
            before = refs[block]
            if before == 1:
                self._shared += 1
            elif before == 0:
                self._revive(block)
            refs[block] = before + 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference of each block, in the given order; pass a table reversed. Raises ValueError for a block
        without references."""
        refs = self.refs
        for block in blocks:
            left = refs[block] - 1
            if left < 0 or block == NULL_BLOCK:
                raise ValueError(f"block {block} is released more often than it was taken")
            refs[block] = left
            if left == 0:
                self._put_back(block)
            elif left == 1:
                self._shared -= 1

    def publish(self, block: int, digest: bytes) -> bool:
        """Make a used block findable. False, and no change, if another block already holds this content. Raises
        ValueError for a block that is not used, or published already."""
        if self.refs[block] == 0 or self._hash[block] is not None:
            raise ValueError(f"block {block} is not in use or already published")
        if digest in self._by_hash:
            return False
        self._hash[block] = digest
        self._by_hash[digest] = block
        self.contents[block] = 1
        return True

    def unpublish(self, block: int) -> None:
        """Forget a block's content; an unreferenced one moves to the head of the free list."""
        if self._hash[block] is None:
            return
        is_cached = self.refs[block] == 0 and block not in self._guarded
        if is_cached:
            self._cached -= 1
            self._unlink(block)
        self._forget(block)
        if is_cached:
            self._put_back(block)

    def guard(self, blocks: Iterable[int], step: int) -> None:
        """`step` copies from or to these used blocks: released from now on, they are quarantined until it settles.

        Steps are numbered in their order. The content of a quarantined block stays findable, and reading it is safe.
        Raises ValueError for a block that is not used.
        """
        for block in blocks:
            if self.refs[block] == 0:
                raise ValueError(f"block {block} is not in use: nothing protects it from being overwritten already")
            self._guarded[block] = step

    def settle(self, step: int) -> None:
        """All copies of `step` and those before it are done: what only they quarantined can be handed out again."""
        if not self._guarded:
            return
        self._guarded = {block: last for block, last in self._guarded.items() if last > step}
        released = [block for block in self._quarantine if block not in self._guarded]
        for block in released:
            del self._quarantine[block]
            self._put_back(block)

    @property
    def quarantine(self) -> list[int]:
        """The quarantined blocks."""
        return list(self._quarantine)

    def has_content(self, first: int, end: int) -> bool:
        """True if a block from `first` to `end` (excluded) can be found by its content."""
        return any(self._hash[first:end])

    def find(self, digest: bytes) -> int | None:
        """The block that holds this content, used or cached."""
        return self._by_hash.get(digest)

    def find_run(self, digests: Iterable[bytes]) -> array[int]:
        """The blocks that hold these contents, up to the first that no block holds."""
        return array("i", takewhile(bool, map(self._by_hash.get, digests, repeat(NULL_BLOCK))))

    def hash_of(self, block: int) -> bytes | None:
        return self._hash[block]

    @property
    def blocks_elsewhere(self) -> Iterable[int]:
        """Blocks whose memory is with another pool."""
        return ()

    def free_order(self) -> list[int]:
        """Blocks in the order in which they will be reused. O(pool): for tests and inspection."""
        order, block = [], self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            order.append(block)
            block = self._next[block]
        return order

    def check_integrity(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Verify every account, against all block tables in existence if they are given. `AssertionError` if wrong."""
        order = self.free_order()
        if len(order) != len(set(order)) or len(order) != self._available:
            raise AssertionError(f"free list holds {len(order)} entries, {self._available} were counted")
        if any(self._prev[self._next[block]] != block for block in [NULL_BLOCK, *order]):
            raise AssertionError("free list is not linked both ways")
        idle = {block for block in range(self.first + 1, self.first + self.num_blocks) if self.refs[block] == 0}
        idle = idle.difference(self.blocks_elsewhere)
        if idle & self._guarded.keys() != set(self._quarantine):
            raise AssertionError("quarantine and reference counts disagree")
        if idle - self._guarded.keys() != set(order) or self.refs[NULL_BLOCK] != 0:
            raise AssertionError("free list and reference counts disagree")
        if sum(self._hash[block] is not None for block in order) != self._cached:
            raise AssertionError("count of cached blocks is wrong")
        if sum(count > 1 for count in self.refs) != self._shared:
            raise AssertionError("count of shared blocks is wrong")
        published = {digest: block for block, digest in enumerate(self._hash) if digest is not None}
        if published != self._by_hash or [bool(digest) for digest in self._hash] != [*map(bool, self.contents)]:
            raise AssertionError("hash index and blocks disagree")
        if tables is not None:
            self._check_references(tables)

    def _check_references(self, tables: Iterable[Sequence[int]]) -> None:
        counted = [0] * len(self.refs)
        for table in tables:
            for block in table:
                counted[block] += block != NULL_BLOCK
        for block, (expected, actual) in enumerate(zip(counted, self.refs, strict=True)):
            if expected != actual:
                raise AssertionError(f"block {block} has {actual} references, tables hold {expected}")

    def _put_back(self, block: int) -> None:
        if block in self._guarded:
            self._quarantine[block] = None
        elif self._hash[block] is None:
            self._link(block, NULL_BLOCK, self._next[NULL_BLOCK])
        else:
            self._cached += 1
            self._link(block, self._prev[NULL_BLOCK], NULL_BLOCK)

    def _revive(self, block: int) -> None:
        if self._hash[block] is None:
            raise ValueError(f"block {block} is free: only used and cached blocks can be shared")
        if block in self._guarded:
            del self._quarantine[block]
        else:
            self._unlink(block)
            self._cached -= 1

    def _keep(self, blocks: range) -> None:
        """Unlink all others of a pool that has handed out none."""
        first, last = (blocks[0], blocks[-1]) if blocks else (NULL_BLOCK, NULL_BLOCK)
        self._next[NULL_BLOCK], self._prev[first] = first, NULL_BLOCK
        self._prev[NULL_BLOCK], self._next[last] = last, NULL_BLOCK
        self._available = len(blocks)

    def _link(self, block: int, before: int, after: int) -> None:
        self._prev[block], self._next[block] = before, after
        self._next[before] = self._prev[after] = block
        self._available += 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._available -= 1

    def _forget(self, block: int) -> None:
        digest = self._hash[block]
        assert digest is not None
        del self._by_hash[digest]
        self._hash[block] = None
        self.contents[block] = 0
