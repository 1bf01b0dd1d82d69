"""Memory of sequences: how blocks are reserved, shared, swapped and released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from octavo_worker.contract.capacity import Capacity
from octavo_worker.engine.kv.allocation import Allocation
from octavo_worker.engine.kv.host_memory import HostMemory
from octavo_worker.engine.kv.pinned import Pinned
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.engine.states.states import States, StateSizes, slots_of
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.memory.block_pool import BlockPool, OutOfBlocks
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim
from octavo_worker.memory.pins import PinnedPrefixes
from octavo_worker.memory.prefix_cache import PrefixCache


class KVCacheManager:
    """The block pool, its prefix cache and, if there is one, the pool in CPU memory that preempted sequences go to; and
    the states of recurrent layers, if the model keeps any.

    Everything that happens from `begin_step` to the next belongs to that step, until it is settled or undone. Several
    steps may be in flight.
    """

    def __init__(
        self,
        capacity: Capacity,
        num_blocks: int,
        num_host_blocks: int,
        policy: PreemptionPolicy,
        *,
        first_host_block: int,
        chunk: int,
        states: StateSizes | None = None,
    ) -> None:
        self.capacity = capacity
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, capacity.block_size)
        self.pins = PinnedPrefixes(self.pool)
        self.host = HostMemory(num_host_blocks, first_host_block, self.pool, self.free) if num_host_blocks else None
        self.states = None if states is None else States(states, self.pool, self.cache)
        self.pinned = Pinned(self.cache, self.pool, self.pins, self.states)
        self.decisions: Counter[Decision] = Counter()
        self._policy = policy
        self._chunk = chunk
        self._block_size = capacity.block_size
        self._latest: Sequence | None = None  # the sequence that came in last
        self.step = StepInFlight(0)

    @property
    def enough_blocks(self) -> int:
        """Blocks that suffice for a sequence of any length."""
        return self.capacity.bound(self._chunk)

    @property
    def swap_space(self) -> int:
        """Free blocks on the host for what is preempted."""
        return self.host.pool.available if self.host is not None and self._policy.swaps else 0

    # Steps

    def begin_step(self) -> StepInFlight:
        self.step = StepInFlight(self.step.number + 1)
        return self.step

    def settle(self, step: StepInFlight) -> None:
        """This step and those before it are over, their copies are done."""
        self.pool.settle(step.number)
        if self.host is not None:
            self.host.pool.settle(step.number)
        if self.states is not None:
            self.states.settle(step.number)

    def undo(self, step: StepInFlight) -> None:
        """The step failed: nothing that it wrote can be found any more."""
        for block in step.published:
            digest = self.pool.hash_of(block)
            if digest is not None:
                self.pins.lost(digest)
            self.pool.unpublish(block)
        if self.states is not None:
            self.states.snapshots.undo(step.number)
        self.settle(step)

    def seal(self, step: StepInFlight) -> None:
        """Planning is over."""
        if self.states is not None:
            self.states.seal(step)

    # Growing

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that are full once all planned steps are computed, as far as their tokens are known. Not
        those of oversized sequences: they would pass through the cache and leave nothing of it."""
        if sequence.request.oversized:
            return
        full = min(sequence.computed, sequence.length) // self._block_size
        self._extend_digests(sequence, full)
        for slot in range(max(sequence.published, sequence.table.start), full):
            self._offer(sequence.table.blocks[slot], sequence.digests[slot + 1])
        sequence.published = full

    def growth(self, members: Iterable[Sequence]) -> int:
        """Blocks that decoding members of one group take for their next token: new ones, and copies of shared ones."""
        count, tails = 0, Counter[int]()
        for member in members:
            blocks, slot = member.table.blocks, member.computed // self._block_size
            if slot == len(blocks):
                count += 1
            elif self.pool.refs[blocks[slot]] > 1:
                tails[blocks[slot]] += 1
        return count + sum(sharers - (self.pool.refs[block] == sharers) for block, sharers in tails.items())

    def lacks(self, blocks: int, slots: int, *, soon: bool = False) -> bool:
        """True if so many blocks and slots of states are not available; `soon`: not when the steps in flight have
        landed either."""
        states = self.states
        if self.pool.available + (self.freeing if soon else 0) < blocks:
            return True
        return states is not None and states.pool.available + (states.freeing if soon else 0) < slots

    @property
    def freeing(self) -> int:
        """Blocks that become available when the steps in flight have landed."""
        return self.pool.quarantined + (0 if self.states is None else self.states.snapshots.pending_blocks)

    @property
    def waits_for_steps(self) -> bool:
        """True if steps in flight will give memory back."""
        return self.freeing > 0 or (self.states is not None and self.states.freeing > 0)

    def make_writable(self, sequence: Sequence, position: int, step: StepInFlight) -> None:
        """Give a sequence a block of its own at `position`, and a slot for its state. May raise `OutOfBlocks`."""
        table = sequence.table
        if self.states is not None and not self.states.make_writable(sequence):
            raise OutOfBlocks("no slot for a state is available")
        if table.missing(position + 1):
            table.reserve(position + 1)
        elif table.is_shared(position):
            step.copies.append(table.unshare(position))

    def fork(self, sequence: Sequence, index: int) -> Sequence:
        """A running sibling that shares all computed tokens, on the host, too."""
        child = sequence.fork(index)
        if self.host is not None:
            self.host.share(sequence, child)
        if self.states is not None:
            self.states.fork(sequence, child)
        return child

    def rewind(self, sequence: Sequence, tokens: int) -> None:
        """Take back the last `tokens` that a decoding sequence has computed or planned: drafts that were rejected.

        Frees the blocks past what is left. They may be shared, and a step in flight may write them still. What is left
        must cover all that is final: published blocks, and blocks that left the device or the window. `ValueError` if
        it does not: only tokens that were planned as drafts since then can be taken back.
        """
        end, table = sequence.computed - tokens, sequence.table
        if not sequence.decodes or sequence.state is not State.RUNNING:
            raise ValueError("only a running sequence that decodes can be rewound")
        if tokens < 0 or end < max(sequence.published, table.start) * self._block_size:
            raise ValueError(f"{tokens} of {sequence.computed} tokens cannot be taken back: some of them are final")
        if self.capacity.slides and self.capacity.unseen(end) < table.start:
            raise ValueError(f"{tokens} tokens cannot be taken back: the window has moved on")
        table.shrink(end)
        sequence.computed = end

    def accept(self, sequence: Sequence) -> None:
        """All drafts that are left of a sequence are right."""
        if self.states is not None:
            self.states.accept(sequence, sequence.computed)

    # Room on the device

    def offload(self, members: list[Sequence], growth: int, step: StepInFlight) -> None:
        """Let go of what members of one group need not have on the device, before they take `growth` more blocks."""
        if self.capacity.slides:
            for member in members:
                member.table.give_up(self.capacity.unseen(member.computed))
            return
        request = members[0].request
        if request.beam is None and any(self.capacity.is_oversized(member.computed + 1) for member in members):
            request.oversized = True
        if request.oversized and self.host is not None:
            held = {block for member in members for block in member.table.held}
            self.host.spill(members, len(held) + growth - self.capacity.share, step)

    def extend(self, sequence: Sequence, end: int, step: StepInFlight) -> int:
        """Make room for the tokens up to `end` of a prompt whose blocks were not all taken at once. Returns the end of
        those for which there is room now."""
        table, size = sequence.table, self._block_size
        if not self.capacity.slides and not sequence.request.oversized:
            return end
        growth = table.missing(end)
        if sequence.request.oversized:
            growth = min(growth, self.capacity.pace)
            last = table.start + self.capacity.share
            self.offload([sequence], 2 * growth, step)  # room for the next chunk, too: what leaves is free only then
        else:
            self.offload([sequence], growth, step)
            last = table.start + self.capacity.bound(self._chunk)
        growth = max(0, min(growth, last - len(table.blocks), self.pool.available))
        table.reserve(min(end, (len(table.blocks) + growth) * size))
        return min(end, len(table.blocks) * size)

    # Admission

    def place(self, members: list[Sequence], *, private: Sequence | None = None) -> Allocation:
        """Find blocks for members that come in together; `private` must not be served from the cache."""
        for member in members:
            self.digest(member)
        alone = () if private is None else (private,)
        return Allocation(members, self.pool, self.capacity, self._chunk, alone, self._latest, self.states)

    def digest(self, sequence: Sequence) -> None:
        """Know the digests of all full blocks of a sequence."""
        self._extend_digests(sequence, sequence.length // self._block_size)

    def enter(self, allocation: Allocation, step: StepInFlight) -> None:
        """Take what was found. The caller has made sure that it fits."""
        tables = [member.table.blocks for member in allocation.members]
        returning = [member for member in allocation.members if member.is_swapped]
        loads, restored, copies = allocation.take(step.number)
        step.copies += copies
        if self.states is not None:
            self.states.swap_in(returning, step)
            self.states.begin(allocation.begins)
        # Of several members one may have blocks that another is yet to compute.
        self._latest = allocation.members[0] if len(allocation.members) == 1 else None
        step.swap_in += loads
        copied = {host for host, _ in loads}
        for member, table, shared in zip(allocation.members, tables, allocation.shared, strict=True):
            if self.host is not None and table:
                self.host.leave(member, table, copied, step)
            member.computed = max(member.computed, shared * self._block_size)
            member.published = shared
        self._begin_behind(allocation)
        self.cache.counters.restored += allocation.restored
        self.cache.counters.recomputed += allocation.recomputed
        for digest, block in restored.items():
            self._offer(block, digest)

    def _begin_behind(self, allocation: Allocation) -> None:
        """Members begin where a state was found. Where keys were found further, the way to there is worth a
        snapshot."""
        for (member, position), known in zip(allocation.begins, allocation.stateless, strict=True):
            member.computed = position
            if known > position and member.live is not None:
                member.live.junctions.add(known // self._block_size)
                if not member.peak and not member.decodes:
                    self.cache.counters.stateless += known - position

    # Preemption and ends

    def retire(self, sequence: Sequence) -> None:
        """A sequence ends: what it has computed may be of use to others."""
        if self.states is not None and sequence.state is State.RUNNING and not sequence.request.oversized:
            self.digest(sequence)
            self.states.retire(sequence)

    def evict(self, members: list[Sequence], step: StepInFlight | None) -> Decision:
        """Take the memory of running members of one group. Without a step there is nothing to carry a swap."""
        if step is not None and not self._is_apart(members):
            self._forgo(members)
        decision = self._decide(members) if step is not None else Decision.NO_CHOICE
        for member in members:
            member.peak = max(member.peak, member.computed)
        self.step.evicted.update(members)
        stored: list[Sequence] = []
        if decision is Decision.SWAP and self.host is not None and step is not None:
            stored = [member for member in members if member.computed]
            self.host.swap_out(stored, step)
            if self.states is not None:
                self.states.swap_out(stored, step)
        for member in reversed(members):
            if member not in stored:
                if step is not None:
                    self.retire(member)
                self.free(member)
        self.decisions[decision] += len(members)
        return decision

    def held_alone(self, members: list[Sequence]) -> int:
        """Blocks on the device that no sequence but these has."""
        held = Counter(block for member in members for block in member.table.held)
        return sum(self.pool.refs[block] == count for block, count in held.items())

    def _is_apart(self, members: list[Sequence]) -> bool:
        """Groups still in prefill are recomputed if oversized or sliding: their earlier blocks may be gone."""
        request = members[0].request
        alone = len(set(request.sequences.values())) == 1
        return (
            (request.oversized or self.capacity.slides) and not alone and not all(member.decodes for member in members)
        )

    def _forgo(self, members: list[Sequence]) -> None:
        """Count as computed only what is: in a group in prefill, some members wait for blocks that a sibling fills.
        Beams compute their last token again: its candidates are dropped, or never arrive."""
        request, size = members[0].request, self._block_size
        pending: set[int] = set()
        for member in request.members(State.RUNNING):
            blocks = member.table.blocks
            if request.beam is not None and member in members:
                member.computed = min(member.computed, member.length - 1)
            if not member.decodes:
                full = min(member.computed, member.length - 1) // size
                ready = next((slot for slot in range(full) if blocks[slot] in pending), full)
                if member in members and ready < full:
                    member.computed = ready * size
                pending.update(blocks[ready:])

    def free(self, sequence: Sequence) -> None:
        """Give all memory of a sequence back; whatever it is to do, it computes again."""
        if self.host is not None:
            self.host.release(sequence)
        if self.states is not None:
            self.states.free(sequence)
        sequence.table.free()
        sequence.start_over()

    def _decide(self, members: list[Sequence]) -> Decision:
        if self._is_apart(members):
            return Decision.NO_CHOICE
        held = Counter(block for member in members for block in member.table.storing(member.computed))
        lost = sum(self.pool.refs[block] == count for block, count in held.items())
        kept = len(held) - lost
        if lost:  # what they gave up before is computed again, too
            lost += max(member.table.start for member in members)
        victim = Victim(len(held), lost * self._block_size, kept * self._block_size)
        if self.states is not None:
            victim = self._with_states(victim, members)
            if any(member.live is None or member.live.seen != member.computed for member in members):
                return Decision.NO_CHOICE  # beams whose last token is to be computed again
        decision = self._policy.decide(victim, None if self.host is None else self.host.pool)
        if decision is Decision.SWAP and self.states is not None and not self.states.can_leave(members):
            return Decision.NO_SWAP if self.states.host is None else Decision.HOST_FULL
        return decision

    def _with_states(self, victim: Victim, members: list[Sequence]) -> Victim:
        """A swap moves states, too; keys that are kept are of use from a snapshot on."""
        assert self.states is not None
        known = (len(members[0].digests) - 1) * self._block_size
        best = self.states.snapshots.reach(members[0], min(known, victim.kept))
        return replace(victim, states=len(slots_of(members)), tokens=victim.tokens + victim.kept - best, kept=best)

    # The prefix cache

    def _offer(self, block: int, digest: bytes) -> None:
        if self.pool.publish(block, digest):
            self.step.published.append(block)
            self.pins.published(block, digest)

    def _extend_digests(self, sequence: Sequence, blocks: int) -> None:
        digests, size = sequence.digests, self._block_size
        if not digests:
            digests.append(self.cache.root(sequence.request.salt))
        known = len(digests) - 1
        if known < blocks:
            self.cache.extend_digests(digests, sequence.slice(known * size, blocks * size))

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Verify all accounts of both pools. `AssertionError` if one is wrong."""
        sequences = list(sequences)
        tables = [*(sequence.table.held for sequence in sequences), self.pins.blocks]
        if self.states is not None:
            self.states.check_integrity(sequences)
            tables.append([snapshot.block for snapshot in self.states.snapshots.pending])
        self.pool.check_integrity(tables)
        if self.host is not None:
            self.host.check_integrity(sequences)
