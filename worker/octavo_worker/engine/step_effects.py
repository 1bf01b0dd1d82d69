"""What a step does to the memory, for the day that it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_worker.engine.sequence import Sequence


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
