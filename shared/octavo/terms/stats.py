"""Counters of an engine, from its process to the metrics: one typed struct."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from octavo.terms.structs import Record


class Preemptions(Record, msgspec.Struct, array_like=True):
    """Preempted sequences, by what became of their memory and why. The titles are the words for people."""

    swapped_out: Annotated[int, msgspec.Meta(title="swapped out")] = 0
    recompute_cheaper: Annotated[int, msgspec.Meta(title="recomputed, cheaper")] = 0
    recompute_cached: Annotated[int, msgspec.Meta(title="recomputed, the cache keeps a part")] = 0
    recompute_host_full: Annotated[int, msgspec.Meta(title="recomputed, host memory full")] = 0
    recompute_no_swap: Annotated[int, msgspec.Meta(title="recomputed, no swapping here")] = 0
    recompute_no_choice: Annotated[int, msgspec.Meta(title="recomputed, nothing to swap")] = 0

    def reasons(self) -> dict[str, int]:
        """The counts by their names."""
        return {name: getattr(self, name) for name in PREEMPTION_REASONS}


PREEMPTION_REASONS: dict[str, str] = {
    field.name: get_args(field.type)[1].title for field in msgspec.structs.fields(Preemptions)
}
"""The names of the counts, with the words for people."""


class EngineStats(Preemptions, array_like=True):
    """The engine's state after a step: gauges, and counters since its start.

    Blocks: free (empty) + used (referenced) + cached (unreferenced, but the prefix cache may revive them) + quarantined
    (unreferenced, but a copy to the host still reads them) = all; `shared_blocks` of the used ones have several
    references, `pinned_blocks` one that keeps them resident. Of the `host_blocks` in CPU memory, `host_free_blocks` are
    free and `cold_blocks` hold what the device lacks of a running sequence that is longer than its memory. Tokens:
    `prompt_tokens` were asked for by admitted requests, `cached_tokens` of those came from the prefix cache,
    `recomputed_tokens` had been computed before a preemption and were computed again, `restored_tokens` came back from
    CPU memory. `preemptions` is the sum of all reasons. Seconds: spent planning, launching, waiting for and committing
    steps, and with requests while nothing was computed (`idle_s`). Tokens that the steps computed: `decoded_tokens`,
    one a sequence that decodes, and `prefilled_tokens` in chunks; beside them `drafted_tokens`, guesses that were
    verified, of which `accepted_tokens` were right.

    Slots for the states of recurrent layers, all 0 where a model has none: free, used, cached and quarantined ones make
    up all on the device, as blocks do. `stateless_tokens` are tokens of prompts whose keys and values were in the
    prefix cache, but no state to go on from: they were computed.

    Blocks of layers with a window, where they are a group of their own, all 0 elsewhere: as the others. Where both
    groups share memory, each counts those that it has at the moment. Keys and values of `windowless_tokens` were in the
    prefix cache, but for those of the window before their end: they were computed.
    """

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    used_blocks: int = 0
    cached_blocks: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    step_ms: float = 0.0
    swapped: int = 0
    shared_blocks: int = 0
    pinned_blocks: int = 0
    quarantined_blocks: int = 0
    host_blocks: int = 0
    host_free_blocks: int = 0
    cold_blocks: int = 0
    restored_tokens: int = 0
    plan_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    commit_s: float = 0.0
    idle_s: float = 0.0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    free_states: int = 0
    used_states: int = 0
    cached_states: int = 0
    quarantined_states: int = 0
    shared_states: int = 0
    pinned_states: int = 0
    host_states: int = 0
    host_free_states: int = 0
    stateless_tokens: int = 0
    free_windows: int = 0
    used_windows: int = 0
    cached_windows: int = 0
    quarantined_windows: int = 0
    shared_windows: int = 0
    pinned_windows: int = 0
    host_windows: int = 0
    host_free_windows: int = 0
    windowless_tokens: int = 0

    @property
    def total_windows(self) -> int:
        """All blocks on the device of layers with a window, where they have a group of their own."""
        return self.free_windows + self.used_windows + self.cached_windows + self.quarantined_windows

    @property
    def total_states(self) -> int:
        """All slots of states on the device."""
        return self.free_states + self.used_states + self.cached_states + self.quarantined_states

    @property
    def total_blocks(self) -> int:
        """All blocks of the device."""
        return self.free_blocks + self.used_blocks + self.cached_blocks + self.quarantined_blocks

    @property
    def used_share(self) -> float:
        """Share of the device's blocks that sequences use; 0 without blocks."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0

    def most_rows(self, max_running: int) -> int:
        """Sequences that run at most, of `max_running`: each has a slot for its state, and those of pins are taken."""
        return min(max_running, self.total_states - self.pinned_states - 1) if self.total_states else max_running

    def blocks(self) -> dict[str, int]:
        """Counts by state: the first four make up the device's memory, shared and pinned are among the used."""
        return {
            "free": self.free_blocks,
            "used": self.used_blocks,
            "cached": self.cached_blocks,
            "quarantined": self.quarantined_blocks,
            "shared": self.shared_blocks,
            "pinned": self.pinned_blocks,
            "host": self.host_blocks,
            "host_free": self.host_free_blocks,
            "cold": self.cold_blocks,
        }

    def states(self) -> dict[str, int]:
        """The same counts for slots of states; empty for a model without."""
        if not self.total_states:
            return {}
        return {
            "free": self.free_states,
            "used": self.used_states,
            "cached": self.cached_states,
            "quarantined": self.quarantined_states,
            "shared": self.shared_states,
            "pinned": self.pinned_states,
            "host": self.host_states,
            "host_free": self.host_free_states,
        }

    def windows(self) -> dict[str, int]:
        """The same counts for blocks of layers with a window; empty where all layers have one group of blocks."""
        if not self.total_windows:
            return {}
        return {
            "free": self.free_windows,
            "used": self.used_windows,
            "cached": self.cached_windows,
            "quarantined": self.quarantined_windows,
            "shared": self.shared_windows,
            "pinned": self.pinned_windows,
            "host": self.host_windows,
            "host_free": self.host_free_windows,
        }

    def seconds(self) -> dict[str, float]:
        """Where the engine's time went, by phase."""
        return {
            "plan": self.plan_s,
            "launch": self.launch_s,
            "wait": self.wait_s,
            "commit": self.commit_s,
            "idle": self.idle_s,
        }


class ScriptCalls(Record, msgspec.Struct):
    """Calls of one script on the queue's server that ended alike, and their seconds in all."""

    script: str
    outcome: str
    count: int
    seconds: float


class WorkerStats(EngineStats, array_like=False):
    """A heartbeat's figures: the engine's and the worker's own. Earlier workers leave some off, later add some."""

    jobs: int = 0
    num_blocks: int = 0
    max_running: int = 0
    kv_dtype: str = ""
    engine_pid: int = 0
    script_calls: tuple[ScriptCalls, ...] = ()
