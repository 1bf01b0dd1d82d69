"""Costs of a preemption: moving blocks over the link, or computing tokens again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from octavo_worker.memory.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class Victim:
    """A preempted request: the `blocks` that a swap would move, and the `tokens` that would have to be computed again;
    other sequences or the prefix cache keep `kept` tokens. `states` are the slots of states that would move, too, and
    `windows` blocks of the second group."""

    blocks: int
    tokens: int
    kept: int = 0
    states: int = 0
    windows: int = 0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Measured at start-up, for one device and one model.

    A swap moves every block, of either group, and state twice, out now and back later: t = 2 * (latency + bytes /
    `link`). A recomputation takes tokens / `prefill`; its attention, which grows with the square of the length, is left
    out, so long victims are recomputed a little too readily. Bytes, bytes a second, tokens a second, seconds.
    """

    block_bytes: int
    link: float
    prefill: float
    latency: float = 50e-6
    state_bytes: int = 0
    window_bytes: int = 0

    def swap_seconds(self, victim: Victim) -> float:
        moved = victim.blocks * self.block_bytes + victim.states * self.state_bytes
        moved += victim.windows * self.window_bytes
        return 2 * (self.latency + moved / self.link)

    def recompute_seconds(self, victim: Victim) -> float:
        return victim.tokens / self.prefill

    def choose(self, victim: Victim) -> Decision:
        swap = self.swap_seconds(victim)
        if swap < self.recompute_seconds(victim):
            return Decision.SWAP
        alone = replace(victim, tokens=victim.tokens + victim.kept)
        return Decision.CACHED if swap < self.recompute_seconds(alone) else Decision.CHEAPER


class Decision(StrEnum):
    """The fate of a victim's memory, and its reason. The names are those of the counters in `EngineStats`.

    A victim is swapped, or recomputed for one of five reasons: it is cheaper even if no block is kept; it is cheaper
    because other sequences or the prefix cache keep some; the host's pool is full; this worker never swaps; or there
    was nothing to swap or no step to carry the copies.
    """

    SWAP = "swapped_out"
    CHEAPER = "recompute_cheaper"
    CACHED = "recompute_cached"
    HOST_FULL = "recompute_host_full"
    NO_SWAP = "recompute_no_swap"
    NO_CHOICE = "recompute_no_choice"


Mode = Literal["auto", "swap", "recompute"]


class PreemptionPolicy:
    """Swaps a victim where that is cheaper than computing it again.

    `mode` "swap" and "recompute" overrule the costs. Without `costs`, "auto" swaps: over any link in use today, moving
    a token's keys and values is cheaper than computing them.
    """

    def __init__(self, mode: Mode = "auto", costs: CostModel | None = None) -> None:
        self._mode = mode
        self._costs = costs

    @property
    def swaps(self) -> bool:
        """True if any victim is ever swapped."""
        return self._mode != "recompute"

    def decide(self, victim: Victim, host: BlockPool | None) -> Decision:
        """`host` is the pool in CPU memory that a swap would take blocks from."""
        if host is None or self._mode == "recompute":
            return Decision.NO_SWAP
        if victim.blocks == 0:
            return Decision.NO_CHOICE
        if victim.blocks > host.available:
            return Decision.HOST_FULL
        return self._costs.choose(victim) if self._mode == "auto" and self._costs else Decision.SWAP
