"""A victim's memory moves or is given up, by cost; the reason is counted."""

from __future__ import annotations

import pytest

from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.cost import CostModel, Decision, PreemptionPolicy, Victim

# An 8B model on an H100: 128 KiB a token, PCIe 5 at 50 GB/s, 38,000 prompt tokens/s.
FAST_LINK = CostModel(block_bytes=2 << 20, link=50e9, prefill=38_000)
SLOW_LINK = CostModel(block_bytes=2 << 20, link=1e9, prefill=38_000)


def host(free: int) -> BlockPool:
    return BlockPool(free + 1)


@pytest.mark.parametrize(
    ("costs", "victim", "decision"),
    [
        (FAST_LINK, Victim(100, 1600), Decision.SWAP),
        (SLOW_LINK, Victim(100, 1600), Decision.CHEAPER),
        (FAST_LINK, Victim(100, 16, kept=1584), Decision.CACHED),  # others keep all but one block: they are found again
        (FAST_LINK, Victim(100, 0, kept=1600), Decision.CACHED),
        (SLOW_LINK, Victim(100, 16, kept=1584), Decision.CHEAPER),
        (None, Victim(100, 1600), Decision.SWAP),
    ],
)
def test_the_cheaper_way(costs, victim, decision):
    assert PreemptionPolicy("auto", costs).decide(victim, host(1000)) is decision


def test_latency_makes_tiny_victims_cheaper_to_recompute():
    slow_start = CostModel(block_bytes=2 << 20, link=50e9, prefill=38_000, latency=1e-3)
    assert PreemptionPolicy("auto", slow_start).decide(Victim(1, 16), host(9)) is Decision.CHEAPER
    assert PreemptionPolicy("auto", slow_start).decide(Victim(50, 800), host(99)) is Decision.SWAP


@pytest.mark.parametrize("mode", ["auto", "swap"])
def test_no_room_on_the_host(mode):
    policy = PreemptionPolicy(mode, FAST_LINK)
    assert policy.decide(Victim(10, 160), host(9)) is Decision.HOST_FULL
    assert policy.decide(Victim(10, 160), host(10)) is Decision.SWAP
    assert policy.decide(Victim(10, 160), None) is Decision.NO_SWAP
    assert policy.decide(Victim(0, 0), host(9)) is Decision.NO_CHOICE


def test_forced_recomputation():
    assert PreemptionPolicy("recompute", FAST_LINK).decide(Victim(10, 160), host(99)) is Decision.NO_SWAP


def test_a_swap_goes_both_ways():
    costs = CostModel(block_bytes=100, link=1000.0, prefill=10.0, latency=0.25)
    assert costs.swap_seconds(Victim(5, 80)) == 2 * (0.25 + 0.5)


def test_a_victim_needs_room_in_what_is_free_on_the_host():
    pool = host(5)
    taken = pool.allocate(3)
    assert PreemptionPolicy("swap").decide(Victim(3, 48), pool) is Decision.HOST_FULL
    pool.release(taken)
    assert PreemptionPolicy("swap").decide(Victim(3, 48), pool) is Decision.SWAP


def test_a_state_that_moves_makes_a_swap_dearer():
    costs = CostModel(block_bytes=1 << 16, link=1e9, prefill=1e4, state_bytes=50 << 20)
    assert costs.choose(Victim(10, 160)) is Decision.SWAP
    assert costs.choose(Victim(10, 160, states=1)) is Decision.CHEAPER
    assert costs.choose(Victim(100, 1600, states=1)) is Decision.SWAP
    assert costs.swap_seconds(Victim(0, 0, states=2)) == pytest.approx(2 * (50e-6 + 2 * (50 << 20) / 1e9))
