"""Seeded request sets, so that every engine and every peer gets the same work.

Two families: `cpu` is small enough for two cores, `gpu` is the set that the published peer figures were measured
with (`mixed256` is the public benchmark of nano-vllm: 256 requests, lengths uniform in 100..1024).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Lengths = list[tuple[int, int]]


@dataclass(frozen=True)
class Work:
    """One request: prompt token ids and the number of tokens to generate, end-of-sequence ignored."""

    prompt: list[int]
    max_tokens: int


def _mixed32() -> Lengths:
    rng = random.Random(0)
    return [(rng.randint(16, 256), rng.randint(16, 256)) for _ in range(32)]


CPU_LENGTHS: dict[str, Callable[[], Lengths]] = {
    "single": lambda: [(128, 128)],
    "batch8": lambda: [(128, 128)] * 8,
    "batch32": lambda: [(128, 128)] * 32,
    "mixed32": _mixed32,
    "prefill": lambda: [(512, 1)] * 4,
}


def cpu_workload(name: str, vocab_size: int) -> list[Work]:
    """Prompts are uniform over the vocabulary, drawn one after the other from one generator."""
    rng = random.Random(1)
    return [Work([rng.randrange(vocab_size) for _ in range(n_in)], n_out) for n_in, n_out in CPU_LENGTHS[name]()]


def _work(rng: random.Random, n_in: int, n_out: int, prefix: list[int] | None = None) -> Work:
    return Work((prefix or []) + [rng.randrange(10, 30_000) for _ in range(n_in)], n_out)


def _equal(seed: int, count: int, n_in: int, n_out: int) -> list[Work]:
    rng = random.Random(seed)
    return [_work(rng, n_in, n_out) for _ in range(count)]


def _mixed256() -> list[Work]:
    rng = random.Random(0)
    return [_work(rng, rng.randint(100, 1024), rng.randint(100, 1024)) for _ in range(256)]


def _shared_prefix(prefix_len: int) -> list[Work]:
    rng = random.Random(3)
    prefix = [rng.randrange(10, 30_000) for _ in range(prefix_len)]
    return [_work(rng, 64, 128, prefix) for _ in range(256)]


GPU_WORKLOADS: dict[str, Callable[[], list[Work]]] = {
    "single": lambda: _equal(1, 1, 128, 256),
    "batch32": lambda: _equal(2, 32, 256, 256),
    "batch256": lambda: _equal(2, 256, 256, 256),
    "mixed256": _mixed256,
    "shared_prefix256": lambda: _shared_prefix(2048),
    "shared_prefix256_8k": lambda: _shared_prefix(8192),
    "prefill16x8k": lambda: _equal(4, 16, 8192, 1),
    "prefill1x8k": lambda: _equal(4, 1, 8192, 1),
}

LONG_WORKLOADS: dict[str, Callable[[], list[Work]]] = {"prefill1x32k": lambda: _equal(4, 1, 32_768, 1)}
"""More of them, for a context that has to be asked for."""


def workload(family: str, name: str, vocab_size: int) -> list[Work]:
    """The named request set. Raises ValueError that lists the known names."""
    gpu = GPU_WORKLOADS | LONG_WORKLOADS
    known = CPU_LENGTHS if family == "cpu" else gpu
    if name not in known:
        raise ValueError(f"unknown workload {name!r}: the {family} family has {', '.join(known)}")
    return cpu_workload(name, vocab_size) if family == "cpu" else gpu[name]()
