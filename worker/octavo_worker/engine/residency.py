"""What sequences hold of the device's and the host's memory, and how it comes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo_worker.engine.capacity import Capacity
from octavo_worker.engine.placement import Placement
from octavo_worker.engine.plan import StepPlan
from octavo_worker.engine.sequence import Sequence, by_order
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim
from octavo_worker.memory.pins import PinnedPrefixes
from octavo_worker.memory.prefix_cache import PrefixCache


@dataclass(slots=True)
class StepEffects:
    """What a step, once it is computed, will have done to the memory; `number` grows by one a step.

    `published` blocks it fills, `moved` sequences it swaps. `awaiting` lost their memory when it was planned, while the
    step before it still chose their next token: they cannot come back before that is known.
    """

    number: int
    published: list[int] = field(default_factory=list)
    moved: list[Sequence] = field(default_factory=list)
    awaiting: set[Sequence] = field(default_factory=set)


class Residency:
    """The block pool, its prefix cache and, if there is one, the pool in CPU memory that preempted sequences go to.

    Everything that happens from `begin_step` to the next belongs to that step, until it is settled or undone. Several
    steps may be under way.
    """

    def __init__(
        self, capacity: Capacity, num_blocks: int, num_host_blocks: int, policy: PreemptionPolicy, *, chunk: int
    ) -> None:
        self.capacity = capacity
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, capacity.block_size)
        self.pins = PinnedPrefixes(self.pool)
        self.host = BlockPool(num_host_blocks) if num_host_blocks else None
        self.decisions: Counter[Decision] = Counter()
        self._swapped: set[Sequence] = set()  # sequences that wait on the host
        self._policy = policy
        self._chunk = chunk
        self._block_size = capacity.block_size
        self.step = StepEffects(0)

    @property
    def swapped(self) -> int:
        """Sequences that wait on the host."""
        return len(self._swapped)

    @property
    def enough_blocks(self) -> int:
        """Blocks that suffice for a sequence of any length."""
        return self.capacity.bound(self._chunk)

    # Steps

    def begin_step(self) -> StepEffects:
        self.step = StepEffects(self.step.number + 1)
        return self.step

    def settle(self, step: StepEffects) -> None:
        """This step and those before it are over, their copies are done."""
        self.pool.settle(step.number)
        if self.host is not None:
            self.host.settle(step.number)

    def undo(self, step: StepEffects) -> None:
        """The step failed: nothing that it wrote can be found any more."""
        for block in step.published:
            digest = self.pool.hash_of(block)
            if digest is not None:
                self.pins.lost(digest)
            self.pool.unpublish(block)
        self.settle(step)

    # Growing

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that are full once all planned steps are computed, as far as their tokens are known. Not
        those of long sequences: they would pass through the cache and leave nothing of it."""
        if sequence.request.long:
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

    def make_writable(self, sequence: Sequence, position: int, plan: StepPlan) -> None:
        """Give a sequence a block of its own at `position`. May raise `OutOfBlocks`."""
        table = sequence.table
        if table.missing(position + 1):
            table.reserve(position + 1)
        elif table.is_shared(position):
            plan.copies.append(table.unshare(position))

    def fork(self, sequence: Sequence, index: int) -> Sequence:
        """A running sibling that shares all computed tokens, on the host, too."""
        if sequence.host:
            assert self.host is not None
            self.host.acquire(sequence.host)
        return sequence.fork(index)

    # Receding

    def recede(self, members: list[Sequence], growth: int, plan: StepPlan) -> None:
        """Let go of what members of one group need not have on the device, before they take `growth` more blocks."""
        if self.capacity.slides:
            for member in members:
                member.table.give_up(self.capacity.unseen(member.computed))
            return
        request = members[0].request
        if request.beam is None and any(self.capacity.is_long(member.computed + 1) for member in members):
            request.long = True
        if request.long:
            held = {block for member in members for block in member.table.held}
            self._spill(members, len(held) + growth - self.capacity.share, plan)

    def stretch(self, sequence: Sequence, end: int, plan: StepPlan) -> int:
        """Make room for the tokens up to `end` of a prompt whose blocks were not all taken at once. Returns the end of
        those for which there is room now."""
        table, size = sequence.table, self._block_size
        if not self.capacity.slides and not sequence.request.long:
            return end
        growth = table.missing(end)
        if sequence.request.long:
            growth = min(growth, self.capacity.pace)
            last = table.start + self.capacity.share
            self.recede([sequence], 2 * growth, plan)  # room for the next chunk, too: what leaves is free only then
        else:
            self.recede([sequence], growth, plan)
            last = table.start + self.capacity.bound(self._chunk)
        growth = max(0, min(growth, last - len(table.blocks), self.pool.available))
        table.reserve(min(end, (len(table.blocks) + growth) * size))
        return min(end, len(table.blocks) * size)

    def _spill(self, members: list[Sequence], count: int, plan: StepPlan) -> None:
        """Move `count` full blocks to the host, the oldest first, each once however many members share it. Fewer when
        the host is full."""
        assert self.host is not None
        self._make_host_room(count)
        count = min(count, self.host.available)
        while count > 0:
            entry = min(member.table.start for member in members)
            leaving = [m for m in members if m.table.start == entry and entry < m.computed // self._block_size]
            if not leaving:
                return
            blocks = list(dict.fromkeys(member.table.blocks[entry] for member in leaving))
            if len(blocks) > self.host.available:
                return
            hosts = self.host.allocate(len(blocks))
            image = dict(zip(blocks, hosts, strict=True))
            self._copy_out(image, plan)
            for member in leaving:
                self._keep(member, [image[member.table.blocks[entry]]])
                member.table.give_up(entry + 1)
            self.host.release(hosts)
            self.step.moved += leaving
            count -= len(blocks)

    def _make_host_room(self, count: int) -> None:
        """Long sequences go before those that wait on the host: the last of these in order compute again."""
        assert self.host is not None
        for sequence in sorted(self._swapped, key=by_order, reverse=True):
            if self.host.available >= count:
                return
            self.free(sequence)

    def _copy_out(self, image: dict[int, int], plan: StepPlan) -> None:
        assert self.host is not None
        plan.swap_out += image.items()
        self.pool.guard(image, self.step.number)
        self.host.guard(image.values(), self.step.number)

    def _keep(self, sequence: Sequence, hosts: list[int]) -> None:
        assert self.host is not None
        self.host.acquire(hosts)
        sequence.host.extend(hosts)

    # Coming

    def place(self, members: list[Sequence], *, private: Sequence | None = None) -> Placement:
        """Find blocks for members that come in together; `private` must not be served from the cache."""
        for member in members:
            self._extend_digests(member, member.length // self._block_size)
        return Placement(members, self.pool, self.capacity, self._chunk, () if private is None else (private,))

    def enter(self, placement: Placement, plan: StepPlan) -> None:
        """Take what was found. The caller has made sure that it fits."""
        loads = placement.take()
        plan.swap_in += loads
        # Should their owner be aborted before they have arrived:
        self.pool.guard((block for _, block in loads), self.step.number)
        loaded = dict(loads)
        for member, shared in zip(placement.members, placement.shared, strict=True):
            if member.host:
                self._leave_host(member)
                self.step.moved.append(member)
            else:
                member.computed = shared * self._block_size
            member.published = shared
        self.cache.counters.restored += placement.restored
        self.cache.counters.recomputed += placement.recomputed
        self._publish_loaded(placement.members, set(loaded.values()))

    def _publish_loaded(self, members: list[Sequence], loaded: set[int]) -> None:
        for member in members:
            for block, digest in zip(member.table.blocks[: member.published], member.digests[1:], strict=False):
                if block in loaded and self.pool.hash_of(block) is None:
                    self._offer(block, digest)

    # Going

    def evict(self, members: list[Sequence], plan: StepPlan | None) -> Decision:
        """Take the memory of running members of one group. Without a plan there is no step left to carry a swap."""
        decision = self._decide(members) if plan is not None else Decision.NO_CHOICE
        for member in members:
            member.peak = max(member.peak, member.computed)
            if member.awaits_token:
                self.step.awaiting.add(member)
        if decision is Decision.SWAP and plan is not None:
            self._swap_out(members, plan)
        else:
            for member in reversed(members):
                self.free(member)
        self.decisions[decision] += len(members)
        return decision

    def free(self, sequence: Sequence) -> None:
        """Give all memory of a sequence back; whatever it is to do, it computes again."""
        sequence.table.free()
        self._release_host(sequence)
        sequence.start_over()

    def _decide(self, members: list[Sequence]) -> Decision:
        alone = len(set(members[0].request.sequences.values())) == 1
        if not alone and not all(member.decodes for member in members):
            return Decision.NO_CHOICE  # a prompt may share blocks that its sibling has not computed yet
        held = Counter(block for member in members for block in self._stored(member))
        lost = sum(self.pool.refs[block] == count for block, count in held.items())
        kept = len(held) - lost
        if lost:  # what they gave up before is computed again, too
            lost += max(member.table.start for member in members)
        return self._policy.decide(Victim(len(held), lost * self._block_size, kept * self._block_size), self.host)

    def _stored(self, sequence: Sequence) -> list[int]:
        return sequence.table.blocks[sequence.table.start : -(-sequence.computed // self._block_size)]

    def _swap_out(self, members: list[Sequence], plan: StepPlan) -> None:
        """Copy the members' blocks to the host, each once however many members share it."""
        assert self.host is not None
        stored = {member: self._stored(member) for member in members}
        blocks = list(dict.fromkeys(block for held in stored.values() for block in held))
        hosts = self.host.allocate(len(blocks))
        image = dict(zip(blocks, hosts, strict=True))
        self._copy_out(image, plan)
        for member, held in stored.items():
            member.host.extend([NULL_BLOCK] * (member.table.start - len(member.host)))
            self._keep(member, [image[block] for block in held])
        self.host.release(hosts)
        for member in reversed(members):
            member.table.free()
        self.step.moved += members
        self._swapped.update(members)

    def _leave_host(self, sequence: Sequence) -> None:
        """The copies back begin: nobody may write to their sources before they are done."""
        assert self.host is not None
        cold = sequence.table.start if sequence.request.long else 0
        hosts = [host for host in sequence.host[cold:] if host != NULL_BLOCK]
        self.host.guard(hosts, self.step.number)
        self.host.release(reversed(hosts))
        del sequence.host[cold:]
        self._swapped.remove(sequence)

    def _release_host(self, sequence: Sequence) -> None:
        if sequence.host:
            assert self.host is not None
            self.host.release(host for host in reversed(sequence.host) if host != NULL_BLOCK)
        sequence.host.clear()
        self._swapped.discard(sequence)

    # The prefix cache

    def pin(self, name: str, tokens: list[int], salt: bytes) -> bool:
        """Keep the full blocks of a prefix. Whether they are all computed already. `ValueError` if that is too much."""
        digests = [self.cache.root(salt)]
        self.cache.extend_digests(digests, tokens)
        if 2 * (self.pins.num_wanted + len(digests) - 1) > self.pool.total:
            raise ValueError(
                f"{len(digests) - 1} more blocks pinned would be over half of the pool's {self.pool.total}"
            )
        return self.pins.pin(name, digests[1:])

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
        self.pool.check_integrity([*(sequence.table.blocks for sequence in sequences), self.pins.blocks])
        if self.host is not None:
            self.host.check_integrity(sequence.host for sequence in sequences)
        on_host = {sequence for sequence in sequences if sequence.host}
        if {sequence for sequence in on_host if not sequence.table.blocks} != self._swapped:
            raise AssertionError("swapped sequences are not those that are on the host alone")
        for sequence in on_host - self._swapped:
            if not sequence.request.long or len(sequence.host) != sequence.table.start:
                raise AssertionError("host blocks of a running sequence are not those that its table lacks")
