"""Slots of sequences: where a step reads and writes the state of each, and what becomes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo_worker.contract.state import NO_SLOT
from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.sequence import Request, State
from octavo_worker.engine.sequence import Sequence as Member
from octavo_worker.engine.states.live_state import LiveState, Move
from octavo_worker.engine.states.snapshots import Snapshots
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.prefix_cache import PrefixCache
from octavo_worker.memory.state_pool import StatePool


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Slots of states on the device and the host, the ids of the latter from `first_host_slot` on, slot 0 of each
    included; and tokens of a prompt between snapshots (0: only where they are of use)."""

    slots: int
    host_slots: int = 0
    first_host_slot: int = 0
    interval: int = 0

    def __post_init__(self) -> None:
        if self.slots < 3:
            raise ValueError(f"{self.slots} slots for states: 3 are needed, one to read, one to write, and slot 0")

    @property
    def most_running(self) -> int:
        """Sequences that run at once at most: samples that part leave a slot that is free a step later."""
        return self.slots - 2

    @property
    def most_beams(self) -> int:
        """The widest beam search: each two beams may leave a slot."""
        return 2 * (self.slots - 1) // 3


class States:
    """The `pool` of slots on the device and, if there is one, the `host`'s, where states of preempted sequences go.

    A sequence that runs has a slot of its own to write. It is written in place while no other needs what is there:
    a slot with another reference, a snapshot and a slot that a copy in flight reads are left, and another one is
    written. So forks, beams and resumed prompts copy nothing, and no slot is read by one sequence of a step and written
    by another.
    """

    def __init__(self, sizes: StateSizes, groups: Sequence[BlockGroup], cache: PrefixCache) -> None:
        self.pool = StatePool(sizes.slots)
        self.host = BlockPool(sizes.host_slots, sizes.first_host_slot) if sizes.host_slots else None
        self.snapshots = Snapshots(self.pool, groups, cache, sizes.interval)

    @property
    def freeing(self) -> int:
        """Slots that become available when the steps in flight have landed."""
        return self.pool.quarantined + len(self.snapshots.pending)

    def counts(self) -> dict[str, int]:
        """Slots by state, under the names of `EngineStats`."""
        pool, host = self.pool, self.host
        return {
            "free_states": pool.free,
            "used_states": pool.used,
            "cached_states": pool.cached,
            "quarantined_states": pool.quarantined,
            "shared_states": pool.shared,
            "pinned_states": len(self.snapshots.pins.blocks),
            "host_states": 0 if host is None else host.total,
            "host_free_states": 0 if host is None else host.free,
        }

    # Steps

    def settle(self, step: int) -> None:
        """All steps up to this one have landed, and all their copies are done."""
        self.pool.settle(step)
        if self.host is not None:
            self.host.settle(step)
        self.snapshots.settle(step)

    def growth(self, members: Iterable[Member]) -> int:
        """Slots that decoding members take for their next token."""
        return sum(not self.is_ready(member) for member in members)

    def is_ready(self, member: Member) -> bool:
        """True if the next step of a running sequence takes no slot."""
        live = _live(member)
        return bool(live.target) or self.pool.is_own(live.slot)

    def make_writable(self, member: Member) -> bool:
        """Give a sequence a slot that its next step may write. Whether there is one."""
        if self.is_ready(member):
            return True
        if not self.pool.available:
            return False
        (_live(member).target,) = self.pool.allocate(1)
        return True

    def advance(self, member: Member, end: int, step: StepInFlight) -> Move:
        """Plan the tokens up to `end` of a sequence that has a slot to write."""
        live = _live(member)
        move = Move(live.slot, live.target or live.slot, live.seen, end)
        if move.read not in (move.write, NO_SLOT):
            self._leave(move.read, step)
        live.slot, live.target, live.seen, live.step = move.write, NO_SLOT, end, step.number
        step.moves[member] = move
        return move

    def _leave(self, slot: int, step: StepInFlight) -> None:
        """Drop a reference to a slot that the step reads: none may write there before it has landed."""
        self.pool.guard((slot,), step.number)
        self.pool.release((slot,))

    def seal(self, step: StepInFlight) -> None:
        """Planning is over: the sequences of the step are told their moves."""
        moves = [step.moves[member] for member in step.sequences]
        self.snapshots.keep(moves, step.number)
        for place, move in enumerate(moves):
            step.steps[place] = step.steps[place].moving(move.seal())

    # Drafts

    def most_drafts(self, member: Member, step: StepInFlight) -> int:
        """Drafts of a planned decode that there are slots for: one behind each row."""
        move = step.moves[member]
        return self.pool.available - 1 if move.read == move.write else 0

    def draft(self, member: Member, drafts: int, step: StepInFlight) -> None:
        """Let a planned decode verify so many drafts: it writes no slot that it has, but one behind each row."""
        live, move = _live(member), step.moves[member]
        live.rows = self.pool.allocate(1 + drafts)
        move.write, move.end = NO_SLOT, move.end + drafts
        move.keeps = list(enumerate(live.rows, 1))
        live.seen = move.start

    def accept(self, member: Member, seen: int) -> None:
        """The drafts of a sequence are verified, the first `seen` tokens are right: its state is the one behind the
        last of them."""
        live = _live(member)
        if live.rows:
            taken = seen - live.seen - 1
            chosen = live.rows[taken] if taken >= 0 else live.slot
            self.pool.release(slot for slot in (live.slot, *live.rows) if slot != chosen)
            live.slot, live.seen, live.rows = chosen, max(seen, live.seen), []

    # Forks and ends

    def fork(self, parent: Member, child: Member) -> None:
        """A running fork goes on from the state of its parent."""
        live = _live(parent)
        self.pool.acquire((live.slot,))
        child.live = LiveState(live.slot, live.seen, step=live.step)

    def retire(self, member: Member) -> None:
        """A running sequence needs its state no more: it becomes a snapshot, if it can. The digests of its full blocks
        must be known."""
        self.accept(member, member.length - 1)
        self.snapshots.retire(member)

    def free(self, member: Member) -> None:
        """Give back all slots of a sequence, wherever they are."""
        live, member.live = member.live, None
        if live is None:
            return
        if self.host is not None and live.slot > self.host.first:
            self.host.release((live.slot,))
            live.slot = NO_SLOT
        self.pool.release(live.slots)

    # The host

    def can_leave(self, members: Iterable[Member]) -> bool:
        """True if the host has room for the states of these sequences."""
        return self.host is not None and len(slots_of(members)) <= self.host.available

    def swap_out(self, members: Sequence[Member], step: StepInFlight) -> None:
        """Move the states of sequences to the host, each once, however many share it."""
        assert self.host is not None
        slots = slots_of(members)
        image = dict(zip(slots, self.host.allocate(len(slots)), strict=True))
        step.state_out += image.items()
        self.pool.guard(image, step.number)
        self.host.guard(image.values(), step.number)
        for member in members:
            live = _live(member)
            self.pool.release(live.slots)
            self.host.acquire((image[live.slot],))
            live.slot, live.target = image[live.slot], NO_SLOT
        self.host.release(image.values())

    def swap_in(self, members: Sequence[Member], step: StepInFlight) -> None:
        """Move the states of swapped sequences back, each once."""
        if not members:
            return
        assert self.host is not None
        hosts = slots_of(members)
        image = dict(zip(hosts, self.pool.allocate(len(hosts)), strict=True))
        step.state_in += image.items()
        self.host.guard(hosts, step.number)
        for member in members:
            live = _live(member)
            self.host.release((live.slot,))
            self.pool.acquire((image[live.slot],))
            live.slot, live.step = image[live.slot], step.number
        self.pool.release(image.values())

    # Admission

    def needed(self, begin: Iterable[tuple[Member, int]], back: Iterable[Member]) -> tuple[int, int]:
        """Available slots that `begin` and `swap_in` use up for these sequences, and those that are available again
        after their first step, because snapshots lie there."""
        starts = list(begin)
        idle = {slot for slot in self._sources(starts) if slot != NO_SLOT and self.pool.refs[slot] == 0}
        return len(starts) + len(slots_of(back)), len(idle)

    def fits(self, gang: Sequence[Member], needed: tuple[int, int], available: int, running: Iterable[Member]) -> bool:
        """True if a gang may take the slots that it needs (see `needed`) of the `available` ones: besides those there
        are enough for it to part, and for what runs."""
        lasting, passing = needed
        groups = defaultdict[Request, list[Member]](list)
        for member in running:
            groups[member.request].append(member)
        parting = _growth(gang) + sum(map(_growth, groups.values()))
        return lasting + max(passing, parting) <= available

    def expects(self, member: Member, position: int, prefilling: Iterable[Member], step: StepInFlight) -> bool:
        """True if a step that has not landed stores a state of a longer prefix than the first `position` tokens of a
        sequence that waits. A prompt of this `step` that computes one is told to keep it."""
        self.foresee(member, prefilling, step)
        return self.snapshots.expects(member, position)

    def foresee(self, member: Member, prefilling: Iterable[Member], step: StepInFlight) -> None:
        """Let prompts of a step keep the state where a sequence that waits parts from them."""
        for other in prefilling:
            move, boundary = step.moves.get(other), self.snapshots.common(member, other)
            passes = move is not None and move.start < boundary * member.table.block_size <= move.end
            if move is not None and passes and not other.request.oversized:
                self.snapshots.want_at(other, boundary, move)

    def begin(self, starts: Sequence[tuple[Member, int]]) -> None:
        """Let sequences begin behind their first so many tokens, which there are snapshots of, each with a slot to
        write."""
        sources = self._sources(starts)
        held = [source for source in sources if source != NO_SLOT]
        self.pool.acquire(held)  # all of them: what the first take may evict no other
        for slot in held:
            self.pool.hit(slot)
        for (member, position), source in zip(starts, sources, strict=True):
            (target,) = self.pool.allocate(1)
            member.live = LiveState(source, position, target)

    def _sources(self, starts: Iterable[tuple[Member, int]]) -> list[int]:
        find, digest_at = self.pool.find, self.snapshots.digest_at
        return [(position and find(digest_at(member, position))) or NO_SLOT for member, position in starts]

    def check_integrity(self, members: Iterable[Member]) -> None:
        """Verify all accounts of both pools. `AssertionError` if one is wrong."""
        members = [member for member in members if member.live is not None]
        away = [member for member in members if member.is_swapped]
        here = [member for member in members if not member.is_swapped]
        held = [snapshot.slot for snapshot in self.snapshots.pending]
        self.pool.check_integrity([*(_live(member).slots for member in here), held, self.snapshots.pins.blocks])
        if self.host is not None:
            self.host.check_integrity([_live(member).slots for member in away])
        elif away:
            raise AssertionError("states are swapped out, and the host has no room for any")
        for member in here:
            live = _live(member)
            if member.state is State.RUNNING and not live.rows and live.seen != member.computed:
                raise AssertionError(f"a state has seen {live.seen} tokens of {member.computed} that are computed")


def slots_of(members: Iterable[Member]) -> list[int]:
    """The slots that these sequences go on from, each once."""
    return [slot for slot in dict.fromkeys(_live(member).slot for member in members) if slot != NO_SLOT]


def _growth(group: Sequence[Member]) -> int:
    """Slots that sequences of one request may take beyond those that they have or get: each has one in the end. What
    they leave when they part is free only when the step has landed: one slot, or one for each two beams."""
    width = sum(member.width for member in group)
    held = {member if (live := member.live) is None else live.target or live.slot for member in group}
    together = width // 2 if group[0].request.beam is not None else int(width > len(held))
    return width - len(held) + together


def _live(member: Member) -> LiveState:
    assert member.live is not None, "a sequence without a state"
    return member.live
