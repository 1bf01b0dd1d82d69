"""Where the blocks come from for sequences that are admitted together."""

from __future__ import annotations

from collections.abc import Collection
from itertools import takewhile

from octavo_worker.engine.capacity import Capacity
from octavo_worker.engine.sequence import Sequence
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool


class Placement:
    """A block for each slot of each member: found in the prefix cache, shared with another member, or new.

    Members that compute their tokens share equal blocks with earlier members although those are not computed yet:
    prompts are computed in order. Swapped members find a block in the cache or load their own from the host; what they
    shared when they left they share again. Nothing is taken before `take`. The digests of the members' full blocks
    must be known; those in `private` share nothing.

    Sliding members need of a prefix only the blocks in the window after it, and like long ones they get blocks for
    their first tokens only: `chunk` is what they compute in a step at most. Long members share nothing, and when they
    come back from the host only their latest blocks are loaded.
    """

    def __init__(
        self,
        members: list[Sequence],
        pool: BlockPool,
        capacity: Capacity,
        chunk: int,
        private: Collection[Sequence] = (),
    ) -> None:
        self.members = members
        self._pool = pool
        self._capacity = capacity
        self._long = members[0].request.long
        self._bound = capacity.pace if self._long else capacity.bound(chunk)
        self._idle: set[int] = set()  # found, and held by nobody
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
            self._idle.update(slot for slot in slots if slot > 0 and pool.refs[slot] == 0)

    @property
    def needed(self) -> int:
        """Available blocks that `take` uses up, and those that long members take next."""
        ahead = max(0, self._capacity.share - self._new) if self._long else 0
        return self._new + ahead + len(self._idle)

    def take(self) -> tuple[list[tuple[int, int]], dict[bytes, int]]:
        """Fill the tables. Returns the (host block, device block) copies to make, and the full blocks among their
        targets by their digests. `OutOfBlocks` unless `needed` fit."""
        self._pool.acquire(self._idle)  # or the allocation might evict them
        fresh = self._pool.allocate(self._new)
        for member, slots in zip(self.members, self._slots, strict=True):
            first = _first_held(slots)
            member.table.skip(first)
            member.table.adopt(slot if slot > 0 else fresh[-slot - 1] for slot in slots[first:])
        self._pool.release([*self._idle, *fresh])
        loads = [(host, fresh[-slot - 1]) for slot, host in self.loads.items()]
        full = {key: fresh[-slot - 1] for key, slot in self._loading.items() if isinstance(key, bytes)}
        return loads, full

    def _compute(self, member: Sequence, private: bool) -> list[int]:
        size, length = member.table.block_size, member.length
        shareable = member.digests[1 : (length - 1) // size + 1]  # the last token is always computed
        slots = [] if private or self._long else self._prefix(shareable, size)
        self.shared.append(len(slots))
        self.recomputed += max(0, member.peak - len(slots) * size)
        return self._add_rest(slots, shareable, self._end(slots, length, size))

    def _add_rest(self, slots: list[int], shareable: list[bytes], end: int) -> list[int]:
        """New blocks up to `end`, which later members share as far as they are to hold the same."""
        for digest in shareable[len(slots) : end]:
            slots.append(self._add())
            self._computing.setdefault(digest, slots[-1])
        return slots + [self._add() for _ in range(end - len(slots))]

    def _prefix(self, digests: list[bytes], size: int) -> list[int]:
        """The longest prefix of which everything is there that is seen from its end."""
        if not self._capacity.slides:
            return self._run(digests)
        slots = map(self._there, digests)
        found: list[int] = []
        best = run = 0
        for end, slot in enumerate(slots, 1):
            found.append(slot)
            run = 0 if slot == NULL_BLOCK else run + 1
            if run >= end - self._capacity.unseen(end * size):
                best = end
        first = self._capacity.unseen(best * size)
        return [NULL_BLOCK] * first + found[first:best]

    def _run(self, digests: list[bytes]) -> list[int]:
        """Blocks from the first on, as far as there are any."""
        found = self._pool.find_run(digests)
        return [*found, *takewhile(bool, map(self._there, digests[len(found) :]))]

    def _load(self, member: Sequence) -> list[int]:
        size = member.table.block_size
        full = member.computed // size
        cold = max(0, len(member.host) - max(1, self._bound // len(self.members))) if self._long else 0
        slots = [NULL_BLOCK] * cold
        for position, host in enumerate(member.host[cold:], cold):
            source = member.digests[position + 1] if position < full else host
            if host == NULL_BLOCK:
                slots.append(NULL_BLOCK)
                continue
            slot = (position < full and self._pool.find(source)) or self._loading.get(source)
            if not slot:
                slot = self._loading[source] = self._add()
                self.loads[slot] = host
                self.restored += min(size, member.computed - position * size)
            slots.append(slot)
        if member.decodes or self._long:
            self.shared.append(full)
            length = member.computed if member.decodes else member.length
            return slots + [self._add() for _ in range(self._end(slots, length, size) - len(slots))]
        return self._go_on(member, slots, full)

    def _go_on(self, member: Sequence, slots: list[int], full: int) -> list[int]:
        """The blocks of a member that was loaded amid its prompt: `full` full ones, a partly filled one perhaps. It
        shares blocks with others that have filled them since, or are going to."""
        size, length = member.table.block_size, member.length
        shareable = member.digests[1 : (length - 1) // size + 1]
        if len(slots) > full:  # its last block is partly filled
            if full < len(shareable):
                self._computing.setdefault(shareable[full], slots[full])
        elif not self._capacity.slides and member.request.prompt_scorer is not member:
            slots += self._run(shareable[full:])
            full = len(slots)
        self.shared.append(full)
        return self._add_rest(slots, shareable, self._end(slots, length, size))

    def _end(self, slots: list[int], length: int, size: int) -> int:
        """How many entries a table gets whose first ones are `slots`."""
        end = -(-length // size)
        if not self._long and not self._capacity.slides:
            return end
        return max(len(slots), min(end, _first_held(slots) + self._bound))

    def _there(self, digest: bytes) -> int:
        """A block with this content that exists, or is about to be loaded or computed; the null block if none is."""
        return self._pool.find(digest) or self._loading.get(digest) or self._computing.get(digest, NULL_BLOCK)

    def _add(self) -> int:
        self._new += 1
        return -self._new


def _first_held(slots: list[int]) -> int:
    return next((entry for entry, slot in enumerate(slots) if slot != NULL_BLOCK), len(slots))
