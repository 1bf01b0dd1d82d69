"""Retries of clients that are refused by a bucket, at the time that they were told: how many are accepted.

    python benchmarks/lab/retry_times.py

A model of the bucket, without a server: eight clients, each with its next request once the last was accepted, one tenant
with 600 requests a minute. `one time`: every refused request is told when the bucket has room for one. `one behind the
other`: as `lib/charging.lua` tells them. Ways between client and bucket take as long as stated on average, exponentially.
"""

from __future__ import annotations

import heapq
import random

CLIENTS, SLOT_MS, CAPACITY, MINUTES = 8, 100.0, 600, 3


def simulate(way_ms: float, one_behind_the_other: bool, seed: int = 1) -> tuple[int, int, float]:
    """Retries, those that were accepted, and what was admitted of limit and capacity."""
    chance = random.Random(seed)
    level, at, told, until = float(CAPACITY), 0.0, 0.0, MINUTES * 60_000
    coming = [(chance.random() * 10, client, False) for client in range(CLIENTS)]
    heapq.heapify(coming)
    retries = accepted = admitted = 0
    while coming:
        now, client, is_retry = heapq.heappop(coming)
        if now > until:
            continue
        level, at = min(CAPACITY, level + (now - at) / SLOT_MS), now
        retries += is_retry
        back_and_forth = chance.expovariate(1 / way_ms) + chance.expovariate(1 / way_ms)
        if level + 1e-6 >= 1:
            level -= 1
            admitted += 1
            accepted += is_retry
            heapq.heappush(coming, (now + back_and_forth, client, False))
            continue
        ready = now + (1 - level) * SLOT_MS
        if one_behind_the_other:
            told = ready = max(ready, min(told, now + CAPACITY * SLOT_MS) + SLOT_MS)
        heapq.heappush(coming, (ready + back_and_forth, client, True))
    return retries, accepted, admitted / (CAPACITY + until / SLOT_MS)


for way_ms in (1, 5, 20, 50):
    for how in (False, True):
        retries, accepted, share = simulate(way_ms, how)
        print(
            f"{way_ms:3} ms a way, told {'one behind the other' if how else 'one time':21}: {retries:6} retries, "
            f"{accepted / retries:6.1%} accepted, {share:.2%} of limit and capacity admitted"
        )
