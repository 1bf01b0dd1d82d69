"""Each of the paper's tables as a function from lengths to figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paper.workload import MAX_LEN, MEMORY_TOKENS, Lengths, Memory, Simulation, mean, measure

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def waste(seen: Sequence[Memory]) -> float:
    """Slots that hold no token, of those that are taken."""
    return round(1 - mean(seen, lambda m: m.stored / m.slots), 4)


def saved(seen: Sequence[Memory]) -> float:
    """Blocks that sharing saves, of those that it would take without (figure 15)."""
    return round(1 - sum(m.blocks for m in seen) / max(1, sum(m.unshared_blocks for m in seen)), 4)


def paged(lengths: Sequence[Lengths], block_size: int = 16, *, n: int = 1, beam: bool = False) -> list[Memory]:
    simulation = Simulation(block_size)
    for number, request in enumerate(lengths):
        simulation.add(str(number), request, n=n, beam=beam)
    return measure(simulation)


# Figures 2 and 13: contiguous reservation as in Orca


def _next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


RESERVATIONS: dict[str, Callable[[Lengths], int]] = {
    "orca_max": lambda r: MAX_LEN,
    "orca_pow2": lambda r: min(MAX_LEN, r.prompt + _next_power_of_two(r.output)),
    "orca_oracle": lambda r: r.prompt + r.output,
}


def reserved(lengths: Sequence[Lengths], reserve: Callable[[Lengths], int]) -> list[Memory]:
    """Every request holds its reservation from its first step to its last. Nothing is lost between reservations, which
    favours them: a real allocator fragments."""
    waiting, running, seen = list(reversed(lengths)), [], []
    free = MEMORY_TOKENS
    while waiting:
        while waiting and reserve(waiting[-1]) <= free:
            request = waiting.pop()
            running.append([request, 0])
            free -= reserve(request)
        for entry in running:
            entry[1] += 1
        stored = sum(request.prompt + done for request, done in running)
        taken = sum(reserve(request) for request, _ in running)
        if waiting:
            seen.append(Memory(len(running), len(running), len(running), stored, taken))
        free += sum(reserve(request) for request, done in running if done == request.output)
        running = [entry for entry in running if entry[1] < entry[0].output]
    return seen


def batches(lengths: Sequence[Lengths]) -> dict[str, Any]:
    """Mean batch and waste at saturation, by policy."""
    by_policy = {name: reserved(lengths, reserve) for name, reserve in RESERVATIONS.items()}
    by_policy["paged"] = paged(lengths)
    return {
        name: {"mean_batch": round(mean(seen, lambda m: m.running), 2), "waste": waste(seen)}
        for name, seen in by_policy.items()
    }


# Figure 15: sharing


def sharing(lengths: Sequence[Lengths], widths: Sequence[int] = (2, 4, 6)) -> dict[str, Any]:
    return {
        kind: {n: saved(paged(lengths, n=n, beam=kind == "beam_search")) for n in widths}
        for kind in ("parallel_sampling", "beam_search")
    }


# Figure 18: block size


def block_sizes(lengths: Sequence[Lengths]) -> dict[int, Any]:
    figures = {}
    for size in BLOCK_SIZES:
        single, parallel = paged(lengths, size), paged(lengths, size, n=4)
        figures[size] = {
            "waste": waste(single),
            "mean_batch": round(mean(single, lambda m: m.running), 2),
            "saved_by_sharing_n4": saved(parallel),
        }
    return figures
