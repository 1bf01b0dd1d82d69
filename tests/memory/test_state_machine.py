"""Any order of allocate, append, verify and rewind, fork, free, preempt, swap, restore, slide, spill, beam step, cache
hit and evict keeps the books and the contents right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiers import examples

from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool, OutOfBlocks
from octavo_worker.memory.block_table import BlockTable, null_blocks
from octavo_worker.memory.prefix_cache import PrefixCache

SIZE = 4
SALTS = (b"one", b"two")


@dataclass(eq=False)
class Writer:
    """A sequence as a memory manager sees it. `stored` of its `tokens` are in the array; preempted: none.

    One that is `away` has its blocks in `host`; `arriving` is the step that copies them back, until it settles. One
    that is not has in `host` the blocks that it spilled. Entries that its table gave up beyond those slid out of sight.
    """

    salt: bytes
    tokens: list[int]
    table: BlockTable
    digests: list[bytes]
    stored: int = 0
    host: list[int] = field(default_factory=list)
    away: bool = False
    arriving: int = 0

    @property
    def present(self) -> bool:
        return not self.away and not self.arriving

    @property
    def stored_blocks(self) -> list[int]:
        return self.table.blocks[self.table.start : -(-self.stored // SIZE)]


class Memory(RuleBasedStateMachine):
    """Sequences write their tokens into an array through their tables; each must always read its own back. `done`
    counts what was not in vain, over all runs."""

    done: ClassVar[Counter[str]] = Counter()

    @initialize(num_blocks=st.integers(4, 24), host_blocks=st.integers(2, 20))
    def start(self, num_blocks: int, host_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.host_pool = BlockPool(host_blocks)
        self.host_array: list[int | None] = [None] * (host_blocks * SIZE)
        self.step, self.settled = 1, 0  # the step being planned, and the last that is over: one may be between them
        self.outgoing: list[tuple[int, int, int]] = []  # (step, block, host block), copied when the step settles
        self.incoming: list[tuple[int, int, int]] = []  # (step, host block, block)
        self.cache = PrefixCache(self.pool, SIZE)
        self.array: list[int | None] = [None] * (num_blocks * SIZE)
        self.writers: list[Writer] = []
        self.contents: dict[bytes, tuple[bytes, tuple[int, ...]]] = {}  # digest -> salt and all tokens up to it

    @precondition(lambda self: len(self.writers) < 8)
    @rule(
        prefix=st.integers(0, 14),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        salt=st.sampled_from(SALTS),
    )
    def allocate(self, prefix: int, tokens: list[int], salt: bytes) -> None:
        """Many begin alike."""
        writer = Writer(salt, [0] * prefix + tokens, BlockTable(self.pool, SIZE), [self.cache.root(salt)])
        if self._restore(writer):
            self.writers.append(writer)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        self._append(writer, token)

    def _append(self, writer: Writer, token: int) -> None:
        if writer.stored < len(writer.tokens) or not writer.present:
            return
        if self._make_writable(writer, len(writer.tokens)):
            writer.tokens.append(token)
            self._write(writer)

    def _make_writable(self, writer: Writer, position: int) -> bool:
        try:
            if writer.table.missing(position + 1):
                writer.table.reserve(position + 1)
            elif writer.table.is_shared(position):
                source, target = writer.table.unshare(position)
                assert source != target
                copied = self.array[source * SIZE : (source + 1) * SIZE]
                self.array[target * SIZE : (target + 1) * SIZE] = copied
                self.done["copies on write"] += 1
        except OutOfBlocks:
            return False
        assert not writer.table.is_shared(position), "a block with two writers"
        return True

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), drafts=st.lists(st.integers(0, 1), min_size=1, max_size=9), accepted=st.integers(0, 9))
    def verify(self, data: st.DataObject, drafts: list[int], accepted: int) -> None:
        """Drafts are stored without being published, as far as there are blocks; then some of them are taken back."""
        writer = data.draw(st.sampled_from(self.writers))
        if writer.stored < len(writer.tokens) or not writer.present:
            return
        before, length = list(writer.table.blocks), len(writer.tokens)
        fitting = 0
        while fitting < len(drafts) and self._make_writable(writer, length + fitting):
            block = writer.table.blocks[(length + fitting) // SIZE]
            self.array[block * SIZE + (length + fitting) % SIZE] = drafts[fitting]
            fitting += 1
        planned = writer.table.blocks
        seen = list(planned)
        writer.tokens += drafts[: min(accepted, fitting)]
        writer.table.shrink(len(writer.tokens))
        assert list(planned) == seen, "a step in flight would see another table"
        assert len(writer.table.blocks) == -(-len(writer.tokens) // SIZE) >= len(before)
        self._write(writer)
        self.done["rewinds"] += fitting > accepted

    @precondition(lambda self: 0 < len(self.writers) < 8)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.writers))
        if parent.stored == len(parent.tokens) and parent.present:
            self._fork(parent)

    def _fork(self, parent: Writer) -> Writer:
        child = Writer(parent.salt, list(parent.tokens), parent.table.fork(), list(parent.digests), parent.stored)
        self.host_pool.acquire(parent.host)
        child.host = list(parent.host)
        self.writers.append(child)
        self.done["forks"] += 1
        return child

    @precondition(lambda self: len(self.writers) > 1)
    @rule(data=st.data())
    def beam_step(self, data: st.DataObject) -> None:
        """One hypothesis dies, another has two children: both append to what they share."""
        parent, dying = data.draw(st.permutations(self.writers))[:2]
        if parent.stored == len(parent.tokens) and parent.present:
            self._end(dying)
            child = self._fork(parent)
            self._append(parent, 0)
            self._append(child, 1)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), together=st.integers(1, 3))
    def swap_out(self, data: st.DataObject, together: int) -> None:
        """A gang leaves; what its members share is copied once, and its blocks are not reused before that is done."""
        gang = [w for w in data.draw(st.permutations(self.writers))[:together] if w.present and w.stored]
        blocks = list(dict.fromkeys(b for w in gang for b in w.stored_blocks))
        if not gang or len(blocks) > self.host_pool.available:
            return
        image = self._copy_out(blocks)
        for writer in gang:
            writer.host += [NULL_BLOCK] * (writer.table.start - len(writer.host))
            self._keep(writer, [image[b] for b in writer.stored_blocks])
            writer.table.free()
            writer.away = True
            self.done["swaps out"] += 1
        self.host_pool.release(image.values())

    def _copy_out(self, blocks: list[int]) -> dict[int, int]:
        image = dict(zip(blocks, self.host_pool.allocate(len(blocks)), strict=True))
        self.pool.guard(blocks, self.step)
        self.host_pool.guard(image.values(), self.step)
        self.outgoing += [(self.step, block, host) for block, host in image.items()]
        return image

    def _keep(self, writer: Writer, hosts: list[int]) -> None:
        self.host_pool.acquire(hosts)
        writer.host += hosts

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), together=st.integers(1, 3))
    def spill(self, data: st.DataObject, together: int) -> None:
        """The oldest block of some writers leaves, once however many share it, and they go on without it."""
        gang = [w for w in data.draw(st.permutations(self.writers))[:together] if w.present]
        gang = [w for w in gang if len(w.host) == w.table.start < w.stored // SIZE]
        blocks = list(dict.fromkeys(w.table.blocks[w.table.start] for w in gang))
        if len(blocks) > self.host_pool.available:
            return
        image = self._copy_out(blocks)
        for writer in gang:
            self._keep(writer, [image[writer.table.blocks[writer.table.start]]])
            writer.table.give_up(writer.table.start + 1)
            self.done["spills"] += 1
        self.host_pool.release(image.values())

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), window=st.integers(1, 9))
    def slide(self, data: st.DataObject, window: int) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        if writer.present and not writer.host:
            before = writer.table.start
            writer.table.give_up(max(0, writer.stored - window) // SIZE)
            self.done["slides"] += writer.table.start > before

    def _may_return(self) -> list[Writer]:
        """Writers that are away, but for those that leave in this very step."""
        leaving = {host for step, _, host in self.outgoing if step == self.step}
        return [writer for writer in self.writers if writer.away and leaving.isdisjoint(writer.host)]

    @precondition(lambda self: self._may_return())
    @rule(data=st.data(), cold=st.integers(0, 5))
    def swap_in(self, data: st.DataObject, cold: int) -> None:
        """All that was on the device comes back, or but for some full blocks at the beginning."""
        writer = data.draw(st.sampled_from(self._may_return()))
        for other in self.writers:
            if other.present and writer.table.missing(len(writer.tokens)) > self.pool.available:
                self._drop(other)  # gives way
        gone = writer.host.count(NULL_BLOCK)
        cold = 0 if gone else min(cold, writer.stored // SIZE)
        writer.table.begin(null_blocks(gone + cold))
        try:
            writer.table.reserve(len(writer.tokens))
        except OutOfBlocks:
            assert not writer.table.held
            writer.table.free()
            return
        coming = writer.host[gone + cold :]
        arriving = list(zip(coming, writer.table.held, strict=False))
        self.incoming += [(self.step, host, block) for host, block in arriving]
        self.pool.guard((block for _, block in arriving), self.step)
        self.host_pool.guard(coming, self.step)
        self.host_pool.release(reversed(coming))
        writer.host, writer.away, writer.arriving = writer.host[:cold], False, self.step
        self.done["swaps in"] += 1

    @precondition(lambda self: self.step - self.settled < 2)
    @rule()
    def run_ahead(self) -> None:
        """The step is launched, the next one is planned while it is under way."""
        self.step += 1
        self.done["ahead"] += 1

    @rule()
    def settle(self) -> None:
        """The copies of the oldest step are made as late as possible: their sources and targets must be untouched
        before."""
        self.settled += 1
        for _, host, block in (copy for copy in self.incoming if copy[0] == self.settled):
            self.array[block * SIZE : (block + 1) * SIZE] = self.host_array[host * SIZE : (host + 1) * SIZE]
        for _, block, host in (copy for copy in self.outgoing if copy[0] == self.settled):
            self.host_array[host * SIZE : (host + 1) * SIZE] = self.array[block * SIZE : (block + 1) * SIZE]
        self.outgoing = [copy for copy in self.outgoing if copy[0] > self.settled]
        self.incoming = [copy for copy in self.incoming if copy[0] > self.settled]
        self.pool.settle(self.settled)
        self.host_pool.settle(self.settled)
        for writer in self.writers:
            writer.arriving = 0 if writer.arriving <= self.settled else writer.arriving
        self.step = max(self.step, self.settled + 1)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self.writers)))

    def _end(self, writer: Writer) -> None:
        self.writers.remove(writer)
        self._drop(writer)

    def _drop(self, writer: Writer) -> None:
        writer.table.free()
        self.host_pool.release(host for host in reversed(writer.host) if host != NULL_BLOCK)
        writer.host, writer.stored, writer.away = [], 0, False

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        if writer.present:
            self._drop(writer)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        if writer.stored == 0 and writer.present:
            self._restore(writer)

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        """The blocks that are next in line are taken, overwritten and given back."""
        order = self.pool.free_order()
        try:
            blocks = self.pool.allocate(count)
        except OutOfBlocks:
            assert self.pool.free_order() == order
            return
        assert blocks == order[:count]
        for block in blocks:
            self.array[block * SIZE : (block + 1) * SIZE] = [9] * SIZE
        self.pool.release(reversed(blocks))

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        """A step failed: what it published is forgotten."""
        writer = data.draw(st.sampled_from(self.writers))
        for block in writer.table.held:
            self.pool.unpublish(block)

    def _restore(self, writer: Writer) -> bool:
        full = len(writer.tokens) // SIZE
        known = len(writer.digests) - 1
        self.cache.extend_digests(writer.digests, writer.tokens[known * SIZE : full * SIZE])
        before = list(self.pool.refs)
        hits = self.cache.match(writer.digests, len(writer.tokens))
        assert len(hits) * SIZE < len(writer.tokens)
        writer.table.adopt(hits)
        try:
            writer.table.reserve(len(writer.tokens))
        except OutOfBlocks:
            writer.table.free()
            assert self.pool.refs == before
            return False
        writer.stored = len(hits) * SIZE
        self.done["hits"] += bool(hits)
        self._write(writer)
        return True

    def _write(self, writer: Writer) -> None:
        """Store what is not stored yet, and publish the blocks that this fills."""
        for position in range(writer.stored, len(writer.tokens)):
            block = writer.table.blocks[position // SIZE]
            assert self.pool.refs[block] == 1, "a shared block is written"
            self.array[block * SIZE + position % SIZE] = writer.tokens[position]
        first = writer.stored // SIZE
        writer.stored = len(writer.tokens)
        full = writer.stored // SIZE
        known = len(writer.digests) - 1
        self.cache.extend_digests(writer.digests, writer.tokens[known * SIZE : full * SIZE])
        for slot in range(first, full):
            digest = writer.digests[slot + 1]
            content = writer.salt, tuple(writer.tokens[: (slot + 1) * SIZE])
            assert self.contents.setdefault(digest, content) == content, "one digest, two contents"
            self.pool.publish(writer.table.blocks[slot], digest)

    @invariant()
    def books_balance(self) -> None:
        self.done["steps"] += 1
        self.pool.check_integrity(writer.table.blocks for writer in self.writers)
        self.host_pool.check_integrity(writer.host for writer in self.writers)
        pool = self.pool
        assert pool.free + pool.used + pool.cached + pool.quarantined == pool.total

    @invariant()
    def everybody_reads_back_what_was_written(self) -> None:
        for writer in filter(lambda writer: writer.present, self.writers):
            first = 0 if writer.host else writer.table.start * SIZE
            assert [self._read(writer, p) for p in range(first, writer.stored)] == writer.tokens[first : writer.stored]

    def _read(self, writer: Writer, position: int) -> int | None:
        entry, offset = divmod(position, SIZE)
        if entry >= len(writer.host):
            return self.array[writer.table.blocks[entry] * SIZE + offset]
        leaving = {host: block for _, block, host in self.outgoing}
        if (block := leaving.get(writer.host[entry])) is not None:
            return self.array[block * SIZE + offset]  # until the copy is made, it is still there
        return self.host_array[writer.host[entry] * SIZE + offset]

    @invariant()
    def hashes_are_true_to_content(self) -> None:
        for digest, (_, tokens) in self.contents.items():
            block = self.pool.find(digest)
            if block is not None:
                assert tuple(self.array[block * SIZE : (block + 1) * SIZE]) == tokens[-SIZE:]


def test_any_order_keeps_books_and_contents(capsys):
    Memory.done.clear()
    count = examples(250, quick=100)
    run_state_machine_as_test(Memory, settings=settings(max_examples=count, stateful_step_count=70, deadline=None))
    with capsys.disabled():
        print(f"\nmemory state machine: {dict(Memory.done.most_common())}")
    assert Memory.done["steps"] > 40 * count
    kinds = "rewinds", "forks", "copies on write", "swaps out", "swaps in", "spills", "slides", "hits", "ahead"
    assert count < 250 or {kind: Memory.done[kind] for kind in kinds if Memory.done[kind] < 5} == {}
