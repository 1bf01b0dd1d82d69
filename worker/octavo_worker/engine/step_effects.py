"""What a step does to the memory, for the day that it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_worker.engine.sequence import Sequence


@dataclass(slots=True)
class StepEffects:
    """What a step, once it is computed, will have done to the memory; `number` grows by one a step.

    `published` blocks it fills. `evicted` sequences lost their memory when it was planned. They come back in a later
    step: what this one copies to the host it does not copy back, and a token or scores of their prompt that the step
    before it still computes are known then.
    """

    number: int
    published: list[int] = field(default_factory=list)
    evicted: set[Sequence] = field(default_factory=set)
