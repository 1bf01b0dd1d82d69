"""What sequences hold of the device's and the host's memory, and how it comes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo_worker.engine.placement import Placement
from octavo_worker.engine.plan import StepPlan
from octavo_worker.engine.sequence import Sequence
from octavo_worker.memory.block_pool import BlockPool
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

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int, policy: PreemptionPolicy) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, block_size)
        self.pins = PinnedPrefixes(self.pool)
        self.host = BlockPool(num_host_blocks) if num_host_blocks else None
        self.decisions: Counter[Decision] = Counter()
        self.swapped = 0  # sequences on the host
        self._policy = policy
        self._block_size = block_size
        self.step = StepEffects(0)

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
        """Offer the blocks that are full once all planned steps are computed, as far as their tokens are known."""
        full = min(sequence.computed, sequence.length) // self._block_size
        self._extend_digests(sequence, full)
        for slot in range(sequence.published, full):
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

    # Coming

    def place(self, members: list[Sequence], *, private: Sequence | None = None) -> Placement:
        """Find blocks for members that come in together; `private` must not be served from the cache."""
        for member in members:
            self._extend_digests(member, member.length // self._block_size)
        return Placement(members, self.pool, () if private is None else (private,))

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
        if sequence.host:
            self._release_host(sequence)
        sequence.computed = sequence.published = 0
        sequence.decodes = False

    def _decide(self, members: list[Sequence]) -> Decision:
        alone = len(set(members[0].request.sequences.values())) == 1
        if not alone and not all(member.decodes for member in members):
            return Decision.NO_CHOICE  # a prompt may share blocks that its sibling has not computed yet
        held = Counter(block for member in members for block in self._stored(member))
        lost = sum(self.pool.refs[block] == count for block, count in held.items())
        return self._policy.decide(Victim(len(held), lost * self._block_size), self.host)

    def _stored(self, sequence: Sequence) -> list[int]:
        return sequence.table.blocks[: -(-sequence.computed // self._block_size)]

    def _swap_out(self, members: list[Sequence], plan: StepPlan) -> None:
        """Copy the members' blocks to the host, each once however many members share it."""
        assert self.host is not None
        blocks = list(dict.fromkeys(block for member in members for block in self._stored(member)))
        hosts = self.host.allocate(len(blocks))
        image = dict(zip(blocks, hosts, strict=True))
        plan.swap_out += image.items()
        self.pool.guard(blocks, self.step.number)
        self.host.guard(hosts, self.step.number)
        for member in members:
            member.host = [image[block] for block in self._stored(member)]
            self.host.acquire(member.host)
        self.host.release(hosts)
        for member in reversed(members):
            member.table.free()
        self.step.moved += members
        self.swapped += len(members)

    def _leave_host(self, sequence: Sequence) -> None:
        """The copies back begin: nobody may write to their sources before they are done."""
        assert self.host is not None
        self.host.guard(sequence.host, self.step.number)
        self._release_host(sequence)

    def _release_host(self, sequence: Sequence) -> None:
        assert self.host is not None
        self.host.release(reversed(sequence.host))
        sequence.host = []
        self.swapped -= 1

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
        if any(sequence.host and sequence.table.blocks for sequence in sequences):
            raise AssertionError("a sequence is on the device and on the host")
        if sum(bool(sequence.host) for sequence in sequences) != self.swapped:
            raise AssertionError("count of swapped sequences is wrong")
