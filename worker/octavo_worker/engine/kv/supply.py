"""Where the blocks of one group come from for sequences that are admitted together."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.memory.block_pool import NULL_BLOCK


class Supply:
    """Entries of tables of one group: a block of the device or the host, the null block, or -n for the n-th new block.
    Nothing is taken before `take`.

    `tables` are the entries of each member, in their order. `computing` are new blocks by the digest of what a member
    is to compute in them. `loads` are host blocks by the new block that they are copied to, with `restored` tokens.
    """

    def __init__(self, group: BlockGroup) -> None:
        self.group, self.pool, self.capacity = group, group.pool, group.capacity
        self.tables: list[array[int]] = []
        self.computing: dict[bytes, int] = {}
        self.loads: dict[int, int] = {}
        self.restored = 0
        self.new = 0
        self._loading: dict[bytes | int, int] = {}  # digest, or host block of a partly filled one
        self._idle: dict[int, None] = {}  # found, without a reference: those of beginnings first
        self._partial: dict[int, int] = {}  # new block -> partly filled block that it is a copy of
        self._size = group.capacity.block_size

    @property
    def needed(self) -> int:
        """Available blocks that `take` uses up."""
        return self.new + len(self._idle)

    def there(self, digest: bytes) -> int:
        """A block with this content that exists, or is about to be loaded or computed; the null block if none is."""
        return self.pool.find(digest) or self._loading.get(digest) or self.computing.get(digest, NULL_BLOCK)

    def add(self) -> int:
        """A new block."""
        self.new += 1
        return -self.new

    def add_up_to(self, entries: array[int], end: int) -> array[int]:
        """`entries` with new blocks up to entry `end`."""
        entries.extend(self.add() for _ in range(end - len(entries)))
        return entries

    def add_rest(self, entries: array[int], shareable: list[bytes], end: int) -> array[int]:
        """The same, and later members share them as far as they are to hold the same."""
        for digest in shareable[len(entries) : end]:
            entries.append(self.add())
            self.computing.setdefault(digest, entries[-1])
        return self.add_up_to(entries, end)

    def add_copy(self, entries: array[int], digest: bytes) -> None:
        """Append a copy of the partly filled block of this content."""
        source = self.pool.find(digest)
        assert source is not None, "a snapshot ends in a block that is not there"
        self.note_idle((source,))
        entries.append(self.add())
        self._partial[entries[-1]] = source

    def note_idle(self, entries: Iterable[int]) -> None:
        """These are to be taken."""
        refs = self.pool.refs
        self._idle.update((entry, None) for entry in entries if entry > NULL_BLOCK and refs[entry] == 0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile no block that was found is evicted."""
        self.pool.acquire(self._idle)
        try:
            yield
        finally:
            self.pool.release(reversed(self._idle))

    def first_held(self, entries: array[int]) -> int:
        """The first entry that is neither the null block nor the host's."""
        end = self.pool.num_blocks
        return next((at for at, entry in enumerate(entries) if entry != NULL_BLOCK and entry < end), len(entries))

    def load(self, member: Sequence, cold: int = 0) -> array[int]:
        """The blocks of a swapped member: found in the cache, or loaded, but for the first `cold`, which stay."""
        size, hosts = self._size, self.group.table_of(member).blocks
        full = member.computed // size
        entries = hosts[:cold]
        for position, host in enumerate(hosts[cold:], cold):
            if host == NULL_BLOCK:
                entries.append(NULL_BLOCK)
                continue
            digest = member.digests[position + 1] if position < full else None
            entry = None if digest is None else self.pool.find(digest)
            source = digest or host
            entry = entry or self._loading.get(source)
            if not entry:
                entry = self._loading[source] = self.add()
                self.loads[entry] = host
                self.restored += min(size, member.computed - position * size)
            entries.append(entry)
        self.note_idle(entries[cold:])
        return entries

    def take(self, members: Iterable[Sequence], step: StepInFlight) -> None:
        """Fill the tables, with copies that `step` makes. `OutOfBlocks` unless `needed` fit."""
        group, pool = self.group, self.pool
        pool.acquire(self._idle)  # or the allocation might evict them
        fresh = pool.allocate(self.new)
        if self.loads or self._partial:
            self._move(fresh, step)
        for member, entries in zip(members, self.tables, strict=True):
            first, table = self.first_held(entries), group.table_of(member)
            before = table.blocks
            table.begin(entries[:first])
            blocks = entries[first:]
            for entry in np.flatnonzero(np.asarray(blocks) < NULL_BLOCK).tolist():
                blocks[entry] = fresh[~blocks[entry]]
            table.adopt(blocks)
            if group.host is not None and before:
                group.host.leave(member, before, self.loads.values(), step)
        pool.release([*self._idle, *fresh])

    def _move(self, fresh: list[int], step: StepInFlight) -> None:
        """Let a step copy to new blocks what is loaded, which can be found then, and what is filled in part."""
        moves = self.group.moves_of(step)
        self.pool.guard(self._partial.values(), step.number)
        moves.copies += [(source, fresh[~entry]) for entry, source in self._partial.items()]
        moves.swap_in += [(host, fresh[~entry]) for entry, host in self.loads.items()]
        for key, entry in self._loading.items():
            if isinstance(key, bytes):
                self.group.offer(fresh[~entry], key, moves)
