"""Where the blocks come from for sequences that are admitted together."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from functools import partial
from itertools import takewhile

import numpy as np

from octavo_worker.contract.capacity import Capacity
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.states.keys import Keys
from octavo_worker.engine.states.snapshots import Snapshots
from octavo_worker.engine.states.states import States
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool
from octavo_worker.memory.block_table import null_blocks
from octavo_worker.memory.prefix_hits import longest_hit


class Allocation:
    """A block for each slot of each member: found in the prefix cache, shared with another member, or new.

    Members that compute their tokens share equal blocks with earlier members although those are not computed yet:
    prompts are computed in order. Swapped members find a block in the cache or load their own from the host; what they
    shared when they left they share again. Nothing is taken before `take`. The digests of the members' full blocks
    must be known; those in `private` share nothing.

    Where the model keeps `states`, a member begins where both its keys and a snapshot are there, and what other members
    are yet to compute is not shared: the state behind it does not exist. A snapshot may end amid a block, which the
    member then copies.

    What a member has in common with the `neighbour` is taken over from its table at once; anything else is looked up
    block by block.

    Sliding members need of a prefix only the blocks in the window after it, and like oversized ones they get blocks for
    their first tokens only: `chunk` is what they compute in a step at most. Oversized members share nothing, and when
    they come back from the host only their latest blocks are loaded.
    """

    def __init__(
        self,
        members: list[Sequence],
        pool: BlockPool,
        capacity: Capacity,
        chunk: int,
        private: Collection[Sequence] = (),
        neighbour: Sequence | None = None,
        states: States | None = None,
    ) -> None:
        self.members = members
        self._states = states
        self._neighbour = neighbour
        self._pool = pool
        self._capacity = capacity
        self._oversized = members[0].request.oversized
        self._bound = capacity.pace if self._oversized else capacity.bound(chunk)
        self._idle: set[int] = set()  # found, without a reference
        self._new = 0
        self._computing: dict[bytes, int] = {}  # digest -> slot, see `_slots`
        self._loading: dict[bytes | int, int] = {}  # digest, or host block of a partly filled one -> slot
        self.loads: dict[int, int] = {}  # slot -> host block
        self.restored = 0  # tokens in those
        self.recomputed = 0  # tokens that were computed before a preemption and are to be computed again
        self.shared: list[int] = []  # for each member, how many leading blocks it need not compute
        self.begins: list[tuple[Sequence, int]] = []  # members that compute, and the tokens that they need not
        self.stateless: list[int] = []  # and the length of the keys that were there
        self._partial: dict[int, int] = {}  # slot -> partly filled block that it is a copy of
        self._slots: list[array[int]] = []  # a block, or -n for the n-th new one
        for member in members:
            slots = self._load(member) if member.is_swapped else self._compute(member, member in private)
            self._slots.append(slots)

    @property
    def needed(self) -> int:
        """Available blocks that `take` uses up, and those that oversized members take next."""
        ahead = max(0, self._capacity.share - self._new) if self._oversized else 0
        return self._new + ahead + len(self._idle)

    @property
    def needed_slots(self) -> tuple[int, int]:
        """The same for slots of states: for good, and for a step."""
        if self._states is None:
            return 0, 0
        return self._states.needed(self.begins, [member for member in self.members if member.is_swapped])

    def take(self, step: int) -> tuple[list[tuple[int, int]], dict[bytes, int], list[tuple[int, int]]]:
        """Fill the tables. Returns the (host block, device block) copies that `step` makes, the full blocks among their
        targets by their digests, and copies within the device. `OutOfBlocks` unless `needed` fit."""
        self._pool.acquire(self._idle)  # or the allocation might evict them
        self._pool.guard(self._partial.values(), step)
        fresh = self._pool.allocate(self._new)
        for member, slots in zip(self.members, self._slots, strict=True):
            first = self._first_held(slots)
            member.table.begin(slots[:first])
            blocks = slots[first:]
            for entry in np.flatnonzero(np.asarray(blocks) < NULL_BLOCK).tolist():
                blocks[entry] = fresh[~blocks[entry]]
            member.table.adopt(blocks)
        self._pool.release([*self._idle, *fresh])
        loads = [(host, fresh[~slot]) for slot, host in self.loads.items()]
        full = {key: fresh[~slot] for key, slot in self._loading.items() if isinstance(key, bytes)}
        return loads, full, [(source, fresh[~slot]) for slot, source in self._partial.items()]

    def _compute(self, member: Sequence, private: bool) -> array[int]:
        size, length = member.table.block_size, member.length
        shareable = member.digests[1 : (length - 1) // size + 1]  # the last token is always computed
        if self._states is not None:
            return self._compute_behind_state(member, private, shareable, self._states)
        slots = array("i") if private or self._oversized else self._prefix(member, shareable)
        self.shared.append(len(slots))
        self.recomputed += max(0, member.peak - len(slots) * size)
        return self._add_rest(slots, shareable, self._end(slots, length, size))

    def _compute_behind_state(
        self, member: Sequence, private: bool, shareable: list[bytes], states: States
    ) -> array[int]:
        size, snapshots = member.table.block_size, states.snapshots
        found, hit, known = array("i"), 0, 0
        if not private and not self._oversized:
            if self._capacity.slides:
                found.extend(map(self._there, shareable))
            else:
                shared, rest = self._run(member, shareable)
                found = shared + rest
            keys = Keys(found, self._capacity, partial(self._has_tail, snapshots, member))
            known = keys.reach(member.length - 1)
            most = min(member.length, (len(found) + 1) * size) - 1  # a snapshot may end amid the block behind them
            hit = longest_hit([partial(snapshots.reach, member), keys.reach], most)
        full, behind = divmod(hit, size)
        first = self._capacity.unseen(hit) if self._capacity.slides else 0
        slots = null_blocks(first) + found[first:full]
        if behind:
            source = self._pool.find(snapshots.digest_at(member, hit))
            assert source is not None, "a snapshot ends in a block that is not there"
            self._note_idle(array("i", (source,)))
            slots.append(self._add())
            self._partial[slots[-1]] = source
        self._note_idle(slots)
        self.shared.append(full)
        self.begins.append((member, hit))
        self.stateless.append(known)
        self.recomputed += max(0, member.peak - hit)
        return self._add_up_to(slots, self._end(slots, member.length, size))

    def _has_tail(self, snapshots: Snapshots, member: Sequence, end: int) -> bool:
        return self._pool.find(snapshots.digest_at(member, end)) is not None

    def _add_rest(self, slots: array[int], shareable: list[bytes], end: int) -> array[int]:
        """New blocks up to `end`, which later members share as far as they are to hold the same."""
        for digest in shareable[len(slots) : end]:
            slots.append(self._add())
            self._computing.setdefault(digest, slots[-1])
        return self._add_up_to(slots, end)

    def _add_up_to(self, slots: array[int], end: int) -> array[int]:
        slots.extend(self._add() for _ in range(end - len(slots)))
        return slots

    def _prefix(self, member: Sequence, digests: list[bytes]) -> array[int]:
        """The longest prefix of which everything is there that is seen from its end."""
        if not self._capacity.slides:
            shared, rest = self._run(member, digests)
            self._note_idle(rest)
            return shared + rest
        slots, size = map(self._there, digests), member.table.block_size
        found = array("i")
        best = run = 0
        for end, slot in enumerate(slots, 1):
            found.append(slot)
            run = 0 if slot == NULL_BLOCK else run + 1
            if run >= end - self._capacity.unseen(end * size):
                best = end
        first = self._capacity.unseen(best * size)
        self._note_idle(found[first:best])
        return null_blocks(first) + found[first:best]

    def _run(self, member: Sequence, digests: list[bytes], first: int = 0) -> tuple[array[int], array[int]]:
        """Blocks for `digests`, those from entry `first` on, as far as there are any: the neighbour's, and others."""
        neighbour, found = self._neighbour, array("i")
        if neighbour is not None:
            found = neighbour.table.blocks[first : neighbour.common(member, first + len(digests))]
        rest = self._pool.find_run(digests[len(found) :])
        rest.extend(takewhile(bool, map(self._there, digests[len(found) + len(rest) :])))
        return found, rest

    def _note_idle(self, slots: array[int]) -> None:
        refs = self._pool.refs
        self._idle.update(slot for slot in slots if slot > NULL_BLOCK and refs[slot] == 0)

    def _load(self, member: Sequence) -> array[int]:
        size, hosts = member.table.block_size, member.table.blocks
        full = member.computed // size
        cold = max(0, len(hosts) - max(1, self._bound // len(self.members))) if self._oversized else 0
        slots = hosts[:cold]
        for position, host in enumerate(hosts[cold:], cold):
            if host == NULL_BLOCK:
                slots.append(NULL_BLOCK)
                continue
            digest = member.digests[position + 1] if position < full else None
            slot = None if digest is None else self._pool.find(digest)
            source = digest or host
            slot = slot or self._loading.get(source)
            if not slot:
                slot = self._loading[source] = self._add()
                self.loads[slot] = host
                self.restored += min(size, member.computed - position * size)
            slots.append(slot)
        self._note_idle(slots[cold:])
        if member.decodes or self._oversized:
            self.shared.append(full)
            length = member.computed if member.decodes else member.length
            return self._add_up_to(slots, self._end(slots, length, size))
        return self._go_on(member, slots, full)

    def _go_on(self, member: Sequence, slots: array[int], full: int) -> array[int]:
        """The blocks of a member that was loaded amid its prompt: `full` full ones, a partly filled one perhaps. It
        shares blocks with others that have filled them since, or are going to."""
        size, length = member.table.block_size, member.length
        shareable = member.digests[1 : (length - 1) // size + 1]
        if len(slots) > full:  # its last block is partly filled
            if full < len(shareable):
                self._computing.setdefault(shareable[full], slots[full])
        elif not self._capacity.slides and member.request.prompt_scorer is not member and self._states is None:
            shared, rest = self._run(member, shareable[full:], full)
            self._note_idle(rest)
            slots += shared + rest
            full = len(slots)
        self.shared.append(full)
        return self._add_rest(slots, shareable, self._end(slots, length, size))

    def _end(self, slots: array[int], length: int, size: int) -> int:
        """How many entries a table gets whose first ones are `slots`."""
        end = -(-length // size)
        if not self._oversized and not self._capacity.slides:
            return end
        return max(len(slots), min(end, self._first_held(slots) + self._bound))

    def _there(self, digest: bytes) -> int:
        """A block with this content that exists, or is about to be loaded or computed; the null block if none is."""
        return self._pool.find(digest) or self._loading.get(digest) or self._computing.get(digest, NULL_BLOCK)

    def _add(self) -> int:
        self._new += 1
        return -self._new

    def _first_held(self, slots: array[int]) -> int:
        """The first entry that is neither the null block nor the host's."""
        end = self._pool.num_blocks
        return next((entry for entry, slot in enumerate(slots) if slot != NULL_BLOCK and slot < end), len(slots))
