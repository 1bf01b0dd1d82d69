"""How much more the engine can take on, counted in blocks of its KV cache and in slots for states, for each class of
jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octavo.queue.protocol import ClassRoom
from octavo_worker.agent.claims.memory import NOTHING, Memory, Need, reusable, total
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.contract.messages import PRIORITIES, EngineStats, Ready


@dataclass(frozen=True)
class Room:
    """Room for each class, the highest first, and whether nothing runs at all.

    The room of a class counts what of it and of higher ones is there: all else would give way to it.
    """

    classes: tuple[ClassRoom, ...]
    idle: bool

    def of(self, rank: int) -> ClassRoom:
        """Room of one class."""
        return self.classes[min(rank, len(self.classes) - 1)]

    def offers(self, before: Room) -> bool:
        """True if there is room for a class that had none before."""
        return any(then.is_none and not now.is_none for then, now in zip(before.classes, self.classes, strict=True))


@dataclass
class _Load:
    """Load of one class: rows of the batch that run or will, memory that those have, that others will take, and that
    all of them grow into. Preempted jobs have none and will take as much as they had."""

    rows: int = 0
    held: Need = NOTHING
    to_come: Need = NOTHING
    waiting: bool = False  # something was preempted
    running: Counter[str] = field(default_factory=Counter)  # rows by tenant, without preempted ones
    held_by: dict[str, Need] = field(default_factory=dict)
    unseated: set[str] = field(default_factory=set)  # tenants of which something has yet to run

    def add(self, job: ActiveJob, memory: Memory) -> None:
        need, tenant = memory.of(job), job.claim.tenant
        self.rows += job.open_sequences
        self.to_come = self.to_come.plus(memory.growth(job))
        if job.preempted_at is None:
            self.running[tenant] += job.open_sequences
        if job.is_computed and job.preempted_at is None:
            self.held = self.held.plus(need)
            self.held_by[tenant] = self.held_by.get(tenant, NOTHING).plus(need)
        else:
            self.to_come = self.to_come.plus(need)
            self.unseated.add(tenant)
            self.waiting = self.waiting or job.preempted_at is not None


def room_for(jobs: Iterable[ActiveJob], limits: Ready, stats: EngineStats) -> Room | None:
    """None if there is none. What was claimed but is not yet in the engine's own figures counts by its prompt; a
    prompt that is not tokenised yet has, for once, no size and counts as growth only."""
    loads, memory = [_Load() for _ in PRIORITIES], Memory(limits)
    for job in jobs:
        if not job.is_over:
            loads[job.rank if limits.gives_way else 0].add(job, memory)
    kinds = range(len(PRIORITIES)) if limits.gives_way else (0,)
    classes = tuple(_class_room(loads, kind, limits, memory, stats) for kind in kinds)
    if all(room.is_none for room in classes):
        return None
    return Room(classes, idle=not any(load.rows for load in loads))


def _class_room(loads: Sequence[_Load], kind: int, limits: Ready, memory: Memory, stats: EngineStats) -> ClassRoom:
    staying, giving = loads[: kind + 1], loads[kind + 1 :]
    rows = sum(load.rows for load in staying)
    free = memory.all if rows == 0 else reusable(stats, total(load.held for load in giving))
    free = free.minus(total(load.to_come for load in staying))
    prompts, tokens = memory.prompts(free, any_first=rows == 0)
    jobs = min(stats.most_rows(limits.max_running) - rows, memory.jobs(free), prompts)
    if rows == 0:
        jobs = max(1, jobs)  # however small the pool, the engine itself says what it cannot hold
    guests, displaced, sated = _guests(loads[kind]) if limits.gives_way else (0, NOTHING, ())
    most, guest_tokens = memory.prompts(free.plus(displaced)) if guests else (0, 0)
    return ClassRoom(max(0, jobs), tokens, rows == 0, min(guests, most), guest_tokens, sated)


def _guests(load: _Load) -> tuple[int, Need, tuple[str, ...]]:
    """Jobs that tenants with less than others may have beyond the room, memory that would be freed for them, and the
    tenants that may have none: those that run as much as others, or wait with something already.

    Where jobs wait that gave way, every tenant may have one more, which runs when one of its own ends. What gave way
    would otherwise come back in between, to give way again.
    """
    most = max(load.running.values(), default=0)
    if most < 2:
        return 0, NOTHING, ()
    sated = set(load.unseated)
    if not load.waiting or len(load.running) == 1:
        sated |= {tenant for tenant, rows in load.running.items() if rows > most - 2}
    richest = {tenant: rows for tenant, rows in load.running.items() if rows >= most - 1}
    displaced = total(load.held_by.get(tenant, NOTHING).share(rows - 1, rows) for tenant, rows in richest.items())
    return most - 1, displaced, tuple(sorted(sated))
