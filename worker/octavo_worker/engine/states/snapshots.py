"""Snapshots of states: which are kept, when they can be found, and where a prompt may begin."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo_worker.contract.state import NO_SLOT
from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.sequence import Sequence as Member
from octavo_worker.engine.states.live_state import Move
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.pins import PinnedPrefixes
from octavo_worker.memory.prefix_cache import PrefixCache
from octavo_worker.memory.state_pool import StatePool, Tail


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state that has seen the first `position` tokens of a sequence, under their `digest`. One that ends amid a block
    has a `tail`, and that block of keys and values in each group of `blocks`. Until it is published, it has references
    to slot and blocks."""

    slot: int
    digest: bytes
    position: int
    tail: Tail | None = None
    blocks: tuple[int, ...] = ()


class Snapshots:
    """Snapshots lie at the last block boundary of a prompt, where a prompt parts from one whose keys are there
    (a junction), at the ends of pins, behind each `interval` tokens of prompts (0: nowhere else), and where sequences
    ended. None is copied: steps store a state on their way, and what a sequence leaves behind becomes a snapshot.

    A snapshot can be found only when the step that stores it has landed. Until then it is `coming`.
    """

    def __init__(self, pool: StatePool, groups: Sequence[BlockGroup], cache: PrefixCache, interval: int) -> None:
        self.pins = PinnedPrefixes(pool)
        self._pool = pool
        self._groups = groups
        self._cache = cache
        self._size = cache.block_size
        self._interval = -(-interval // self._size)  # in blocks
        self._pending: dict[int, list[Snapshot]] = {}  # by the number of the step that stores them
        self._landed = 0
        self.coming: dict[bytes, int] = {}  # digest -> position

    # Steps

    def settle(self, step: int) -> None:
        """All steps up to this one have landed: what they stored can be found."""
        self._landed = max(self._landed, step)
        for number in [number for number in self._pending if number <= step]:
            for snapshot in self._pending.pop(number):
                self._publish(snapshot)
                self.coming.pop(snapshot.digest, None)

    def undo(self, step: int) -> None:
        """The step failed: what it was to store is nowhere."""
        for snapshot in self._pending.pop(step, ()):
            self._drop(snapshot)
            self.coming.pop(snapshot.digest, None)

    @property
    def pending(self) -> list[Snapshot]:
        """Snapshots that steps in flight store: slots and blocks that come back when these have landed."""
        return [snapshot for snapshots in self._pending.values() for snapshot in snapshots]

    @property
    def pending_blocks(self) -> int:
        """Blocks of each group that come back."""
        return sum(bool(snapshot.blocks) for snapshot in self.pending)

    # What is kept

    def want(self, member: Member, move: Move) -> None:
        """Note where a chunk of a prompt passes a boundary that is worth a snapshot."""
        if member.request.oversized:
            return
        for boundary in self._boundaries(member, move.start // self._size + 1, move.end // self._size):
            self.want_at(member, boundary, move)

    def want_at(self, member: Member, boundary: int, move: Move) -> None:
        """Keep the state behind `boundary` blocks, unless it is there or on its way."""
        digest = member.digests[boundary]
        if self._pool.find(digest) is None and digest not in self.coming:
            move.wanted[boundary * self._size] = digest
            self.coming[digest] = boundary * self._size

    def _boundaries(self, member: Member, first: int, last: int) -> Iterator[int]:
        assert member.live is not None
        chosen = {(len(member.request.prompt) - 1) // self._size, *member.live.junctions}
        if self._interval:
            chosen.update(range(-(-first // self._interval) * self._interval, last + 1, self._interval))
        if self.pins.are_wanted:
            chosen.update(at for at in range(first, last + 1) if self.pins.wants(member.digests[at]))
        return (boundary for boundary in sorted(chosen) if first <= boundary <= last)

    def keep(self, moves: Sequence[Move], step: int) -> None:
        """Give slots to what the moves of a step want, as far as there are any."""
        for move in moves:
            for position, digest in move.wanted.items():
                if not self._pool.available:
                    self.coming.pop(digest, None)
                    continue
                (slot,) = self._pool.allocate(1)
                move.keeps.append((position - move.start, slot))
                self._pending.setdefault(step, []).append(Snapshot(slot, digest, position))
            move.keeps.sort()

    def retire(self, member: Member) -> None:
        """Leave the state of a sequence, which needs it no more, as a snapshot of exactly the tokens that it has seen:
        a token that was computed in vain is one of them. Nothing happens where others have a part in the state or in
        its last block, or a token is not known."""
        live = member.live
        if live is None or not live.seen or live.seen > member.length:
            return
        full, behind = divmod(live.seen, self._size)
        tables = [group.table_of(member).blocks for group in self._groups] if behind else []
        blocks = tuple(table[full] for table in tables)
        if not self._pool.is_own(live.slot) or any(self._is_others(*block) for block in self._by_pool(blocks)):
            return
        tail = None
        digest = member.digests[full]
        if behind:
            tail = Tail(digest, array("I", member.slice(full * self._size, live.seen)).tobytes())
            digest = self._cache.tail(*tail)
        is_there = self._pool.find(digest) is not None and all(pool.find(digest) for pool, _ in self._by_pool(blocks))
        if is_there or digest in self.coming:
            return
        snapshot = Snapshot(live.slot, digest, live.seen, tail, blocks)
        live.slot = NO_SLOT
        for pool, block in self._by_pool(blocks):
            pool.acquire((block,))
        if live.step <= self._landed:
            self._publish(snapshot)
        else:
            self._pending.setdefault(live.step, []).append(snapshot)
            self.coming[digest] = snapshot.position

    def _by_pool(self, blocks: Sequence[int]) -> list[tuple[BlockPool, int]]:
        return [(group.pool, block) for group, block in zip(self._groups, blocks, strict=False)]

    @staticmethod
    def _is_others(pool: BlockPool, block: int) -> bool:
        """True if others have a part in a block."""
        return pool.refs[block] > 1 or pool.hash_of(block) is not None

    def _publish(self, snapshot: Snapshot) -> None:
        slot, digest, tail = snapshot.slot, snapshot.digest, snapshot.tail
        if tail is not None:  # either may be there already, if the other was evicted
            for pool, block in self._by_pool(snapshot.blocks):
                pool.publish(block, digest)
            self._pool.publish_tail(slot, digest, tail)
        elif self._pool.publish(slot, digest):
            self.pins.published(slot, digest)
        self._drop(snapshot)

    def _drop(self, snapshot: Snapshot) -> None:
        for pool, block in self._by_pool(snapshot.blocks):
            pool.release((block,))
        self._pool.release((snapshot.slot,))

    # What is found

    def reach(self, member: Member, most: int) -> int:
        """The longest prefix of at most `most` tokens that there is a snapshot of, in tokens."""
        size, pool, digests = self._size, self._pool, member.digests
        for full in range(most // size, -1, -1):
            begin = full * size
            if tails := pool.tails(digests[full]):
                words = array("I", member.slice(begin, min(begin + size, most))).tobytes()
                if behind := max((len(tail) for tail in tails if words.startswith(tail)), default=0):
                    return begin + behind // 4
            if full and pool.find(digests[full]) is not None:
                return begin
        return 0

    def expects(self, member: Member, position: int) -> bool:
        """True if a snapshot of a longer prefix of a waiting sequence is on its way, but of all its tokens."""
        size, known = self._size, member.digests
        last = min(len(known) - 1, (member.length - 1) // size)
        return any(
            position < end <= last * size and end % size == 0 and known[end // size] == digest
            for digest, end in self.coming.items()
        )

    def common(self, member: Member, other: Member) -> int:
        """Full blocks that two sequences have in common, but for the last token of the first one."""
        mine, others = member.digests, other.digests
        limit = min((member.length - 1) // self._size, len(mine) - 1, len(others) - 1)
        return bisect_left(range(1, limit + 1), True, key=lambda block: mine[block] != others[block])

    def digest_at(self, member: Member, position: int) -> bytes:
        """The digest of the first `position` tokens of a sequence, whose full blocks' digests are known."""
        full, behind = divmod(position, self._size)
        if not behind:
            return member.digests[full]
        tokens = array("I", member.slice(full * self._size, position)).tobytes()
        return self._cache.tail(member.digests[full], tokens)
