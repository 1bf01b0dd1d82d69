"""A group of blocks: those of layers that keep a sequence alike, with one table of each sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import WindowLimits
from octavo_worker.engine.kv.host_memory import HostMemory
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.step_in_flight import GroupMoves, StepInFlight
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.block_table import BlockTable
from octavo_worker.memory.pins import PinnedPrefixes


class BlockGroup:
    """The pool of a group, with its pins and, if there are any, its blocks on the host.

    Most models have one group. Where layers with a window have one of their own, its tables slide: they give up what
    falls out of the window, and prompts take their blocks a chunk at a time. Both groups know contents by the same
    digests. `table_of` is the table of a sequence here, `moves_of` a step's moves.
    """

    def __init__(
        self,
        capacity: Capacity,
        pool: BlockPool,
        num_host_blocks: int,
        first_host_block: int,
        *,
        chunk: int,
        table_of: Callable[[Sequence], BlockTable],
        moves_of: Callable[[StepInFlight], GroupMoves],
        give_up: Callable[[Sequence], None],
    ) -> None:
        """A step computes at most `chunk` tokens of a sequence; `give_up` frees all memory of one that waits on the
        host."""
        self.capacity = capacity
        self.table_of, self.moves_of = table_of, moves_of
        self.bound, self.slides = capacity.bound(chunk), capacity.slides
        self.pool = pool
        self.pins = PinnedPrefixes(self.pool)
        self.host: HostMemory | None = None
        if num_host_blocks:
            self.host = HostMemory(num_host_blocks, first_host_block, self.pool, table_of, moves_of, give_up)
        self._size, self._chunk = capacity.block_size, chunk

    def new_table(self) -> BlockTable:
        return BlockTable(self.pool, self._size)

    def counts(self) -> dict[str, int]:
        """Blocks of the second group by state, under the names of `EngineStats`."""
        pool, host = self.pool, self.host
        return {
            "free_windows": pool.free,
            "used_windows": pool.used,
            "cached_windows": pool.cached,
            "quarantined_windows": pool.quarantined,
            "shared_windows": pool.shared,
            "pinned_windows": len(self.pins.blocks),
            "host_windows": 0 if host is None else host.pool.total,
            "host_free_windows": 0 if host is None else host.pool.free,
        }

    def limits(self, weight: float) -> WindowLimits:
        """Blocks of the second group that sequences take: of memory that is shared, where each has so much `weight`,
        or of its own."""
        live = self.capacity.sliding_blocks(1)
        chunks = self.capacity.sliding_blocks(self._chunk)  # also where several prompts have less than all of it each
        return WindowLimits(0 if weight else self.pool.total, live, chunks - live, weight)

    # Steps

    def settle(self, step: int) -> None:
        """All copies of steps up to this one are done."""
        self.pool.settle(step)
        if self.host is not None:
            self.host.pool.settle(step)

    def undo(self, step: StepInFlight) -> None:
        """The step failed: nothing that it wrote can be found any more."""
        for block in self.moves_of(step).published:
            digest = self.pool.hash_of(block)
            if digest is not None:
                self.pins.lost(digest)
            self.pool.unpublish(block)

    # Growing

    def publish(self, sequence: Sequence, full: int, step: StepInFlight) -> None:
        """Offer what a sequence has of its first `full` blocks, and has not offered yet, to the prefix cache."""
        table, digests, moves = self.table_of(sequence), sequence.digests, self.moves_of(step)
        blocks = table.blocks
        for slot in range(max(table.start, sequence.published), full):
            self.offer(blocks[slot], digests[slot + 1], moves)

    def offer(self, block: int, digest: bytes, moves: GroupMoves) -> None:
        """Let a block be found that the step of these moves fills."""
        if self.pool.publish(block, digest):
            moves.published.append(block)
            self.pins.published(block, digest)

    def grows(self, sequence: Sequence, slot: int) -> bool:
        """True if a decode that writes entry `slot` of its table takes a block: a new one, or for itself a shared
        one."""
        blocks = self.table_of(sequence).blocks
        return slot == len(blocks) or self.pool.refs[blocks[slot]] > 1

    def growth(self, members: list[Sequence]) -> int:
        """Blocks that decoding members of one request take for their next token: new ones, and copies of shared
        ones."""
        if len(members) == 1:
            return int(self.grows(members[0], members[0].computed // self._size))
        count, tails = 0, Counter[int]()
        for member in members:
            blocks, slot = self.table_of(member).blocks, member.computed // self._size
            if slot == len(blocks):
                count += 1
            elif self.pool.refs[blocks[slot]] > 1:
                tails[blocks[slot]] += 1
        return count + sum(sharers - (self.pool.refs[block] == sharers) for block, sharers in tails.items())

    def make_writable(self, sequence: Sequence, position: int, step: StepInFlight) -> None:
        """Give a sequence a block of its own at `position`. May raise `OutOfBlocks`."""
        table = self.table_of(sequence)
        if table.missing(position + 1):
            table.reserve(position + 1)
        elif table.is_shared(position):
            self.moves_of(step).copies.append(table.unshare(position))

    def slide(self, sequence: Sequence) -> None:
        """Give back what is behind the window of the next token."""
        self.table_of(sequence).give_up(self.capacity.unseen(sequence.computed))

    def extend(self, sequence: Sequence, end: int) -> int:
        """Make room for the tokens up to `end` of a prompt that slides. Returns the end of those for which there is
        room."""
        table = self.table_of(sequence)
        self.slide(sequence)
        growth = min(table.missing(end), table.start + self.bound - len(table.blocks), self.pool.available)
        table.reserve(min(end, (len(table.blocks) + max(0, growth)) * self._size))
        return min(end, len(table.blocks) * self._size)

    def can_rewind(self, sequence: Sequence, end: int) -> bool:
        """True if what is left of a sequence that ends with token `end` covers all that is final: published blocks, and
        blocks that left the device or the window."""
        start = self.table_of(sequence).start
        moved_on = self.slides and self.capacity.unseen(end) < start
        return end >= max(sequence.published, start) * self._size and not moved_on

    # Preemption

    def held(self, members: Iterable[Sequence]) -> Counter[int]:
        """The blocks on the device that these sequences have, and how many of them have each."""
        return Counter(block for member in members for block in self.table_of(member).held)

    def held_alone(self, members: Iterable[Sequence]) -> int:
        """Blocks on the device that no sequence but these has."""
        return sum(self.pool.refs[block] == count for block, count in self.held(members).items())

    def free(self, sequence: Sequence) -> None:
        """Give all blocks of a sequence back, wherever they are."""
        if self.host is not None:
            self.host.release(sequence)
        self.table_of(sequence).free()

    def check_integrity(self, sequences: Iterable[Sequence], others: Iterable[int]) -> None:
        """Verify all accounts of the pool, where there are references to `others`, too, and of the host.
        `AssertionError` if one is wrong."""
        sequences = list(sequences)
        self.pool.check_integrity([*(self.table_of(each).held for each in sequences), self.pins.blocks, [*others]])
        if self.host is not None:
            self.host.check_integrity(sequences)
