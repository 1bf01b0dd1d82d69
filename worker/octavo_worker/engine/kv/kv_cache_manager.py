"""Memory of sequences: how blocks are reserved, shared, swapped and released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import WindowLimits
from octavo_worker.contract.windows import WindowBlocks
from octavo_worker.engine.kv.allocation import Allocation
from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.kv.pinned import Pinned
from octavo_worker.engine.kv.room import Room
from octavo_worker.engine.kv.shared_room import SharedRoom
from octavo_worker.engine.kv.victims import victim_of
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.engine.states.states import States, StateSizes
from octavo_worker.engine.step_in_flight import GroupMoves, StepInFlight
from octavo_worker.memory.block_pool import BlockPool, OutOfBlocks
from octavo_worker.memory.block_table import BlockTable
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim
from octavo_worker.memory.prefix_cache import PrefixCache


class KVCacheManager:
    """The groups of blocks, their prefix cache and, if there are any, the blocks in CPU memory that preempted sequences
    go to; and the states of recurrent layers, if the model keeps any.

    There is one group of `blocks`, or another one of `windows` beside it, for layers with a window in a model that has
    layers that see all. `pool`, `pins` and `host` are those of the first. Both may lie in `shared` memory.

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
        windows: WindowBlocks | None = None,
    ) -> None:
        self.capacity = capacity
        self.shared = None if windows is None or windows.slabs is None else SharedRoom.of(windows.slabs)
        self.blocks = BlockGroup(
            capacity,
            BlockPool(num_blocks) if self.shared is None else self.shared.blocks,
            num_host_blocks,
            first_host_block,
            chunk=chunk,
            table_of=attrgetter("table"),
            moves_of=attrgetter("blocks"),
            give_up=self.free,
        )
        self.windows = None if windows is None else self._window_group(windows, chunk)
        self.groups = [self.blocks] if self.windows is None else [self.blocks, self.windows]
        self._sliding = [group for group in self.groups if group.slides]
        self.pool, self.pins, self.host = self.blocks.pool, self.blocks.pins, self.blocks.host
        self.cache = PrefixCache(self.pool, capacity.block_size)
        self.states = None if states is None else States(states, self.groups, self.cache)
        self.pinned = Pinned(self.cache, self.groups, self.states)
        self.decisions: Counter[Decision] = Counter()
        self._policy = policy
        self._block_size = capacity.block_size
        self._latest: Sequence | None = None  # the sequence that came in last
        self.step = StepInFlight(0, windows=GroupMoves())

    def _window_group(self, windows: WindowBlocks, chunk: int) -> BlockGroup:
        device = windows.num_blocks - 1 if windows.slabs is None else windows.slabs.windows_beside
        capacity = Capacity(device, self.capacity.block_size, window=windows.window)
        if not capacity.slides:
            raise ValueError(f"{windows.num_blocks} blocks do not hold a window of {windows.window} tokens")
        return BlockGroup(
            capacity,
            BlockPool(windows.num_blocks) if self.shared is None else self.shared.windows,
            windows.num_host_blocks,
            windows.first_host_block,
            chunk=chunk,
            table_of=attrgetter("windows"),
            moves_of=attrgetter("windows"),
            give_up=self.free,
        )

    def new_tables(self) -> tuple[BlockTable, BlockTable | None]:
        """The empty tables of a sequence, of each group of blocks."""
        return self.blocks.new_table(), None if self.windows is None else self.windows.new_table()

    @property
    def enough_blocks(self) -> int:
        """Blocks of the first group that suffice for a sequence of any length."""
        return self.blocks.bound

    @property
    def window_limits(self) -> WindowLimits | None:
        """Blocks of the second group that sequences take, if there is one."""
        return None if self.windows is None else self.windows.limits(0.0 if self.shared is None else self.shared.weight)

    @property
    def swap_space(self) -> int:
        """Free blocks on the host for what is preempted."""
        return self.host.pool.available if self.host is not None and self._policy.swaps else 0

    # Steps

    def begin_step(self) -> StepInFlight:
        self.step = StepInFlight(self.step.number + 1, windows=None if self.windows is None else GroupMoves())
        return self.step

    def settle(self, step: StepInFlight) -> None:
        """This step and those before it are over, their copies are done."""
        for group in self.groups:
            group.settle(step.number)
        if self.states is not None:
            self.states.settle(step.number)

    def undo(self, step: StepInFlight) -> None:
        """The step failed: nothing that it wrote can be found any more."""
        for group in self.groups:
            group.undo(step)
        if self.states is not None:
            self.states.snapshots.undo(step.number)
        self.settle(step)

    def seal(self, step: StepInFlight) -> None:
        """Planning is over: the sequences of the step are told what they have beside blocks of the first group."""
        if self.windows is not None:
            for place, sequence in enumerate(step.sequences):
                step.steps[place] = step.steps[place].windowed(self.windows.table_of(sequence).blocks)
        if self.states is not None:
            self.states.seal(step)

    # Growing

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that are full once all planned steps are computed, as far as their tokens are known. Not
        those of oversized sequences: they would pass through the cache and leave nothing of it."""
        if sequence.request.oversized:
            return
        full = min(sequence.computed, sequence.length) // self._block_size
        if full == sequence.published:
            return
        self._extend_digests(sequence, full)
        self.blocks.publish(sequence, full, self.step)
        if self.windows is not None:
            self.windows.publish(sequence, full, self.step)
        sequence.published = full

    def growth(self, members: list[Sequence]) -> Room:
        """Memory that decoding members of one request take for their next token."""
        slots = 0 if self.states is None else self.states.growth(members)
        return Room(self.blocks.growth(members), slots, 0 if self.windows is None else self.windows.growth(members))

    def room(self, *, soon: bool = False) -> Room:
        """Memory that is available; `soon`: when the steps in flight have landed."""
        states, windows, slots = self.states, self.windows, 0
        if states is None and windows is None:
            return Room(self.pool.available + (self.pool.quarantined if soon else 0))
        ending = 0 if states is None or not soon else states.snapshots.pending_blocks  # in each group
        if states is not None:
            slots = states.pool.available + (states.freeing if soon else 0)
        available = [group.pool.available + (group.pool.quarantined if soon else 0) + ending for group in self.groups]
        return Room(available[0], slots, 0 if windows is None else available[1])

    def lacks(self, needed: Room, *, soon: bool = False) -> bool:
        """True if so much is not available; `soon`: not when the steps in flight have landed either."""
        room = self.room(soon=soon)
        return not (room if self.shared is None else self.shared.provide(room, needed)).covers(needed)

    @property
    def waits_for_steps(self) -> bool:
        """True if steps in flight will give memory back."""
        return self.room(soon=True) != self.room()

    def make_writable(self, sequence: Sequence, position: int, step: StepInFlight) -> None:
        """Give a sequence blocks of its own at `position`, and a slot for its state. May raise `OutOfBlocks`."""
        if self.states is not None and not self.states.make_writable(sequence):
            raise OutOfBlocks("no slot for a state is available")
        self.blocks.make_writable(sequence, position, step)
        if self.windows is not None:
            self.windows.make_writable(sequence, position, step)

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
        end = sequence.computed - tokens
        if not sequence.decodes or sequence.state is not State.RUNNING:
            raise ValueError("only a running sequence that decodes can be rewound")
        if tokens < 0 or not all(group.can_rewind(sequence, end) for group in self.groups):
            raise ValueError(f"{tokens} of {sequence.computed} tokens cannot be taken back: some of them are final")
        for group in self.groups:
            group.table_of(sequence).shrink(end)
        sequence.computed = end

    def accept(self, sequence: Sequence) -> None:
        """All drafts that are left of a sequence are right."""
        if self.states is not None:
            self.states.accept(sequence, sequence.computed)

    # Room on the device

    def offload(self, members: list[Sequence], growth: int, step: StepInFlight) -> None:
        """Let go of what members of one request need not have on the device, before they take `growth` more blocks of
        the first group."""
        for group in self._sliding:
            for member in members:
                group.slide(member)
        request = members[0].request
        if request.beam is None and any(self.capacity.is_oversized(member.computed + 1) for member in members):
            request.oversized = True
        if request.oversized and self.host is not None:
            held = self.blocks.held(members)
            self.host.spill(members, len(held) + growth - self.capacity.share, step)

    def extend(self, sequence: Sequence, end: int, step: StepInFlight) -> int:
        """Make room for the tokens up to `end` of a prompt whose blocks were not all taken at once. Returns the end of
        those for which there is room now."""
        if sequence.request.oversized:
            end = self._extend_oversized(sequence, end, step)
        for group in self._sliding:
            end = group.extend(sequence, end)
        return end

    def _extend_oversized(self, sequence: Sequence, end: int, step: StepInFlight) -> int:
        table, size = sequence.table, self._block_size
        growth = min(table.missing(end), self.capacity.pace)
        last = table.start + self.capacity.share
        self.offload([sequence], 2 * growth, step)  # room for the next chunk, too: what leaves is free only then
        growth = max(0, min(growth, last - len(table.blocks), self.pool.available))
        table.reserve(min(end, (len(table.blocks) + growth) * size))
        return min(end, len(table.blocks) * size)

    # Admission

    def place(self, members: list[Sequence], *, private: Sequence | None = None) -> Allocation:
        """Find blocks for members that come in together; `private` must not be served from the cache."""
        for member in members:
            self.digest(member)
        alone = () if private is None else (private,)
        return Allocation(members, self.groups, alone, self._latest, self.states)

    def digest(self, sequence: Sequence) -> None:
        """Know the digests of all full blocks of a sequence."""
        self._extend_digests(sequence, sequence.length // self._block_size)

    def enter(self, allocation: Allocation, step: StepInFlight) -> None:
        """Take what was found. The caller has made sure that it fits."""
        members = allocation.members
        if self.states is not None:
            self.states.swap_in([member for member in members if member.is_swapped], step)
            self.states.begin(allocation.begins)
        allocation.take(step)
        # Of several members one may have blocks that another is yet to compute.
        self._latest = members[0] if len(members) == 1 else None
        for member, shared in zip(members, allocation.shared, strict=True):
            member.computed = max(member.computed, shared * self._block_size)
            member.published = shared
        self._begin_behind(allocation)
        self.cache.counters.restored += allocation.restored
        self.cache.counters.recomputed += allocation.recomputed

    def _begin_behind(self, allocation: Allocation) -> None:
        """Members begin where all pools go on. Where keys were found further than a state, the way to there is worth a
        snapshot."""
        counters = self.cache.counters
        for (member, position), (known, in_all) in zip(allocation.begins, allocation.known, strict=True):
            member.computed = position
            if in_all > position and member.live is not None:
                member.live.junctions.add(in_all // self._block_size)
            if not member.peak and not member.decodes:
                counters.stateless += max(0, in_all - position)
                counters.windowless += max(0, known - max(in_all, position))

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
            for group in self.groups:
                if group.host is not None:
                    group.host.swap_out(stored, step)
            if self.states is not None:
                self.states.swap_out(stored, step)
        for member in reversed(members):
            if member not in stored:
                if step is not None:
                    self.retire(member)
                self.free(member)
        self.decisions[decision] += len(members)
        return decision

    def held_alone(self, members: list[Sequence]) -> Room:
        """Memory that no sequence but these has."""
        windows = 0 if self.windows is None else self.windows.held_alone(members)
        return Room(self.blocks.held_alone(members), len(members), windows)

    def _is_apart(self, members: list[Sequence]) -> bool:
        """Groups still in prefill are recomputed if oversized or sliding: their earlier blocks may be gone."""
        request = members[0].request
        alone = len(set(request.sequences.values())) == 1
        return (
            (request.oversized or bool(self._sliding)) and not alone and not all(member.decodes for member in members)
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
        if self.states is not None:
            self.states.free(sequence)
        for group in self.groups:
            group.free(sequence)
        sequence.start_over()

    def _decide(self, members: list[Sequence]) -> Decision:
        if self._is_apart(members):
            return Decision.NO_CHOICE
        if any(member.live is not None and member.live.seen != member.computed for member in members):
            return Decision.NO_CHOICE  # beams whose last token is to be computed again
        victim = victim_of(members, self.groups, self.states)
        decision = self._policy.decide(victim, None if self.host is None else self.host.pool)
        if decision is Decision.SWAP and not self._has_room_for(victim):
            return Decision.HOST_FULL
        if decision is Decision.SWAP and self.states is not None and not self.states.can_leave(members):
            return Decision.NO_SWAP if self.states.host is None else Decision.HOST_FULL
        return decision

    def _has_room_for(self, victim: Victim) -> bool:
        windows = self.windows
        return windows is None or (windows.host is not None and victim.windows <= windows.host.pool.available)

    # The prefix cache

    def _extend_digests(self, sequence: Sequence, blocks: int) -> None:
        digests, size = sequence.digests, self._block_size
        if not digests:
            digests.append(self.cache.root(sequence.request.salt))
        known = len(digests) - 1
        if known < blocks:
            self.cache.extend_digests(digests, sequence.slice(known * size, blocks * size))

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Verify all accounts of all pools. `AssertionError` if one is wrong."""
        sequences = list(sequences)
        pending = [] if self.states is None else self.states.snapshots.pending
        if self.states is not None:
            self.states.check_integrity(sequences)
        if self.shared is not None:
            self.shared.check_integrity()
        for place, group in enumerate(self.groups):
            group.check_integrity(sequences, [snapshot.blocks[place] for snapshot in pending if snapshot.blocks])
