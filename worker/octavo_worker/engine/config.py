"""Everything that a scheduler is built from, as one value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.step import SharedReading
from octavo_worker.contract.windows import WindowBlocks, blocks_for_one
from octavo_worker.engine.drafts import Speculation
from octavo_worker.engine.scheduling.admission import FEATURES
from octavo_worker.engine.scheduling.policy import PriorityPolicy, SchedulingPolicy
from octavo_worker.engine.states.states import StateSizes
from octavo_worker.memory.cost import PreemptionPolicy


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Sizes of the memory and of a step, and the policies of a scheduler.

    `scheduling` decides between requests; `aging_s` are the seconds of waiting after which it may promote one. `policy`
    decides whether the memory of a preempted sequence moves to the host, or is given up and computed again, helped by
    what the prefix cache still holds. Admission keeps `watermark` of the pool free for running sequences.
    `mask_threads` compute masks of grammars. With `shared_reading`, plans say which sequences have leading blocks in
    common; with `speculation`, decodes may have drafts. Requests that ask for more than the `features` of the runner
    are refused. `clock` gives seconds since the epoch, as deadlines are given;
    `timer` seconds that never go back. The ids of host blocks begin at `first_host_block` (None: right after those of
    the device). `states` are the slots of a model that keeps states, `windows` the second group of blocks. Up to
    `abreast` prompts share a step.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    token_budget: int = 2048
    max_running: int = 256
    watermark: float = 0.01
    num_host_blocks: int = 0
    first_host_block: int | None = None
    states: StateSizes | None = None
    windows: WindowBlocks | None = None
    window: int = 0
    reads_host: bool = False
    features: frozenset[str] = FEATURES
    abreast: int = 1
    policy: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    scheduling: SchedulingPolicy = field(default_factory=PriorityPolicy)
    shared_reading: SharedReading | None = None
    speculation: Speculation | None = None
    mask_threads: int = 1
    aging_s: float = 30.0
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter

    @property
    def capacity(self) -> Capacity:
        """Blocks that one sequence can have on the device and, without the null block, on the host."""
        host = max(0, self.num_host_blocks - 1) if self.reads_host else 0
        device = blocks_for_one(self.num_blocks, None if self.windows is None else self.windows.slabs)
        return Capacity(device, self.block_size, host, self.window)
