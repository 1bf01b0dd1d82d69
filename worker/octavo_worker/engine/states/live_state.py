"""The state of one sequence, and its part in a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_worker.contract.state import NO_SLOT, StateMove


@dataclass(slots=True, eq=False)
class LiveState:
    """The state of a sequence once all planned steps are computed: after `seen` tokens, in `slot` (0: none, it begins
    with zeros), to which the sequence has a reference. While the sequence is swapped out, the slot is the host's.

    `target` is a slot that it has in reserve: the next step writes there, as others may need what is in `slot`. `step`
    is the number of the last step that writes the slot. A step in flight that verifies drafts stores a state behind
    each of its rows in `rows`; `slot` and `seen` are those before it then. A prompt keeps a snapshot behind each of
    `junctions`, which count blocks.
    """

    slot: int = NO_SLOT
    seen: int = 0
    target: int = NO_SLOT
    step: int = 0
    rows: list[int] = field(default_factory=list)
    junctions: set[int] = field(default_factory=set)

    @property
    def slots(self) -> list[int]:
        """All slots that the sequence has a reference to."""
        return [slot for slot in (self.slot, self.target, *self.rows) if slot != NO_SLOT]


@dataclass(slots=True, eq=False)
class Move:
    """A `StateMove` in the making, over the tokens from `start` to `end`. `wanted` are the digests of boundaries to
    keep a snapshot at, by their position; they get slots when all else has its own."""

    read: int
    write: int
    start: int
    end: int
    keeps: list[tuple[int, int]] = field(default_factory=list)
    wanted: dict[int, bytes] = field(default_factory=dict)

    def seal(self) -> StateMove:
        return StateMove(self.read, self.write, tuple(self.keeps))
