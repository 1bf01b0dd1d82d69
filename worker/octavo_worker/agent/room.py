"""How much more the engine can take on, counted in blocks of its KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.contract.messages import EngineStats, Ready

GROWTH_BLOCKS = 4
"""Blocks that a running sequence is expected to need before another one ends and frees its own."""


@dataclass(frozen=True)
class Room:
    """Sequences and tokens of prompts that fit in now, and whether nothing runs at all."""

    sequences: int
    tokens: int
    idle: bool


def room_for(jobs: Iterable[ActiveJob], limits: Ready, stats: EngineStats) -> Room | None:
    """None if there is none. What was claimed but is not yet in the engine's own figures counts by its prompt; a
    prompt that is not tokenised yet has, for once, no size and counts as growth only."""
    open_sequences = on_the_way = 0
    for job in jobs:
        if not job.is_over:
            open_sequences += job.open_sequences
            if not job.is_computed:
                on_the_way += min(-(-len(job.prompt) // limits.block_size), limits.enough_blocks)
    idle = open_sequences == 0
    reusable = limits.num_blocks if idle else stats.free_blocks + stats.cached_blocks
    free = reusable - on_the_way - open_sequences * GROWTH_BLOCKS
    sequences = min(limits.max_running - open_sequences, free // (GROWTH_BLOCKS + 1))
    if idle:
        sequences = max(1, sequences)  # however small the pool, the engine itself says what it cannot hold
    if sequences <= 0:
        return None
    tokens = free * limits.block_size
    if free >= limits.enough_blocks:
        tokens = max(tokens, limits.max_model_len)
    return Room(sequences=sequences, tokens=tokens, idle=idle)
