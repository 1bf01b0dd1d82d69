"""One step, from the beginning of its planning to its end."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from octavo_worker.contract.step import Launched, SequenceStep, StepPlan
from octavo_worker.contract.windows import NO_MOVES, BlockMoves
from octavo_worker.engine.scheduling.time_share import TimeSlice
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.states.live_state import Move
from octavo_worker.engine.step_log import StepRecord

_NOTHING = StepPlan((), 0)


@dataclass(slots=True, eq=False)
class GroupMoves:
    """Moves of a step in one group of blocks beside what it reads and writes there: the `BlockMoves` in the making,
    and the blocks that it fills and that were `published`."""

    copies: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    published: list[int] = field(default_factory=list)

    @property
    def are_none(self) -> bool:
        return not (self.swap_out or self.swap_in or self.copies)

    def seal(self) -> BlockMoves:
        if self.are_none:
            return NO_MOVES
        return BlockMoves(tuple(self.copies), tuple(self.swap_out), tuple(self.swap_in))


@dataclass(slots=True, eq=False)
class StepInFlight:
    """A step from its planning to its end: its parts, the plan made of them, and the engine's notes.

    `number` grows by one a step. `sequences` are those of `steps`, in their order. `drafts` counts those of all of
    them. Of a decode with drafts and a grammar the first `masked_rows` have masks; the other samples are void.
    `moves` say of each sequence what happens to its state, if the model keeps any. `blocks` and `windows` are moves of
    the first and second group of blocks; None: there is one. The `evicted` sequences lost their memory when it was
    planned. They come back in a later step: what this one copies to the host it does not copy back, and a token or
    scores of their prompt that the step before it still computes are known then.

    `plan` is the value that the runner gets, `launched` the runner's handle of it.
    """

    number: int
    steps: list[SequenceStep] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    num_decodes: int = 0
    drafts: int = 0
    blocks: GroupMoves = field(default_factory=GroupMoves)
    windows: GroupMoves | None = None
    state_out: list[tuple[int, int]] = field(default_factory=list)
    state_in: list[tuple[int, int]] = field(default_factory=list)
    moves: dict[Sequence, Move] = field(default_factory=dict)
    masked_rows: dict[Sequence, int] = field(default_factory=dict)
    evicted: set[Sequence] = field(default_factory=set)
    plan: StepPlan = _NOTHING
    time_slice: TimeSlice | None = None  # None where no sequence is ever oversized
    launched: Launched | None = None
    record: StepRecord = field(default_factory=StepRecord)

    @property
    def is_empty(self) -> bool:
        if self.steps or self.state_in or not self.blocks.are_none:
            return False
        return self.windows is None or self.windows.are_none

    @property
    def has_prompts(self) -> bool:
        return len(self.steps) > self.num_decodes

    @property
    def prompt_rows(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.steps[self.num_decodes :])

    def add(self, sequence: Sequence, step: SequenceStep) -> None:
        self.steps.append(step)
        self.sequences.append(sequence)

    def draft(self, place: int, drafts: Tokens[int]) -> None:
        """Let the decode at `place` verify drafts, whose blocks are in its table."""
        self.steps[place] = self.sequences[place].verify(self.steps[place], drafts)
        self.drafts += len(drafts)

    def seal(self, groups: list[int], prefix_lens: list[int]) -> StepPlan:
        """Planning is over. Returns the plan."""
        self.plan = StepPlan(
            tuple(self.steps),
            self.num_decodes,
            tuple(self.blocks.copies),
            tuple(self.blocks.swap_out),
            tuple(self.blocks.swap_in),
            tuple(groups),
            tuple(prefix_lens),
            tuple(self.state_out),
            tuple(self.state_in),
            NO_MOVES if self.windows is None else self.windows.seal(),
        )
        return self.plan
