"""How many slots of recurrent states there are."""

from __future__ import annotations

from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.state import StateLayout
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.errors import ModelError

LIVE = 2
"""Slots of each running sequence: its own, and one more where it leaves what another reads."""
SNAPSHOT_SHARE = 0.25
"""Bytes of snapshots for the prefix cache, of those that keys and values have."""
MOST_SHARE = 0.5
"""Share of all memory for caches that slots take at most."""
LEAST = 2


def slot_bytes(model: CausalModel) -> int:
    """Bytes of a state of one rank; 0: the model keeps none."""
    return StateLayout.of(model.states).slot_bytes


def state_slots(options: ModelOptions, model: CausalModel, cache_bytes: int) -> int:
    """Slots on each rank, slot 0 included, of which `cache_bytes` are for keys, values and states together: enough for
    `max_running` sequences and for snapshots, if half of the memory is. 0: the model keeps no states. Raises
    `ModelError` where fewer than two sequences have room."""
    each = slot_bytes(model)
    if not each:
        return 0
    if options.state_slots is not None:
        return options.state_slots + 1
    wanted = LIVE * options.max_running + int(cache_bytes * SNAPSHOT_SHARE) // each
    slots = min(wanted, int(cache_bytes * MOST_SHARE) // each)
    if slots < LEAST:
        raise ModelError(
            f"states of this model are {each >> 20} MiB a sequence, and {cache_bytes >> 20} MiB for caches have no "
            f"room for {LEAST} beside keys and values; give more with --kv-memory, or --state-slots."
        )
    return slots + 1


def host_slots(options: ModelOptions, each: int) -> int:
    """Slots of `each` bytes in the host's memory, slot 0 included: one for each of `max_running` sequences, if half of
    the memory there is enough. 0: the model keeps no states, or the host has no room for them."""
    if not each:
        return 0
    slots = min(options.max_running, int(options.host_cache_bytes * MOST_SHARE) // each)
    return slots + 1 if slots else 0
