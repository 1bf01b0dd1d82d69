"""Where the blocks come from for sequences that are admitted together."""

from __future__ import annotations

from collections.abc import Collection

from octavo_worker.engine.sequence import Sequence
from octavo_worker.memory.block_pool import BlockPool


class Placement:
    """A block for each slot of each member: found in the prefix cache, shared with another member, or new.

    Members that compute their tokens share equal blocks with earlier members although those are not computed yet:
    prompts are computed in order. Swapped members find a block in the cache or load their own from the host; what they
    shared when they left they share again. Nothing is taken before `take`. The digests of the members' full blocks
    must be known; those in `private` share nothing.
    """

    def __init__(self, members: list[Sequence], pool: BlockPool, private: Collection[Sequence] = ()) -> None:
        self.members = members
        self._pool = pool
        self._found: set[int] = set()
        self._new = 0
        self._computing: dict[bytes, int] = {}  # digest -> slot, see `_slots`
        self._loading: dict[bytes | int, int] = {}  # digest, or host block of a partly filled one -> slot
        self.loads: dict[int, int] = {}  # slot -> host block
        self.restored = 0  # tokens in those
        self.recomputed = 0  # tokens that were computed before a preemption and are to be computed again
        self.shared: list[int] = []  # for each member, how many leading blocks it need not compute
        self._slots: list[list[int]] = []  # a block, or -n for the n-th new one
        for member in members:
            slots = self._load(member) if member.host else self._compute(member, member in private)
            self._slots.append(slots)

    @property
    def needed(self) -> int:
        """Available blocks that `take` uses up."""
        return self._new + sum(self._pool.refs[block] == 0 for block in self._found)

    def take(self) -> list[tuple[int, int]]:
        """Fill the tables. Returns the (host block, device block) copies to make. `OutOfBlocks` unless `needed` fit."""
        found = list(self._found)
        self._pool.acquire(found)  # or the allocation might evict them
        fresh = self._pool.allocate(self._new)
        for member, slots in zip(self.members, self._slots, strict=True):
            member.table.adopt(slot if slot > 0 else fresh[-slot - 1] for slot in slots)
        self._pool.release([*found, *fresh])
        return [(host, fresh[-slot - 1]) for slot, host in self.loads.items()]

    def _compute(self, member: Sequence, private: bool) -> list[int]:
        size, length = member.table.block_size, member.length
        slots: list[int] = []
        shareable = [] if private else member.digests[1 : (length - 1) // size + 1]  # the last token is always computed
        for digest in shareable:
            slot = self._find(digest) or self._computing.get(digest)
            if slot is None:
                break
            slots.append(slot)
        self.shared.append(len(slots))
        self.recomputed += max(0, member.peak - len(slots) * size)
        for digest in shareable[len(slots) :]:
            slots.append(self._add())
            self._computing.setdefault(digest, slots[-1])
        slots += [self._add() for _ in range(-(-length // size) - len(slots))]
        return slots

    def _load(self, member: Sequence) -> list[int]:
        size = member.table.block_size
        full = member.computed // size
        slots = []
        for position, host in enumerate(member.host):
            source = member.digests[position + 1] if position < full else host
            slot = (position < full and self._find(source)) or self._loading.get(source)
            if not slot:
                slot = self._loading[source] = self._add()
                self.loads[slot] = host
                self.restored += min(size, member.computed - position * size)
            slots.append(slot)
        self.shared.append(full)
        length = member.computed if member.decodes else member.length
        return slots + [self._add() for _ in range(-(-length // size) - len(slots))]

    def _find(self, digest: bytes | int) -> int | None:
        """A block with this content that exists, or is about to be loaded."""
        assert isinstance(digest, bytes)
        block = self._pool.find(digest)
        if block is None:
            return self._loading.get(digest)
        self._found.add(block)
        return block

    def _add(self) -> int:
        self._new += 1
        return -self._new
