"""The loop every peer process runs: a workload's name comes in on stdin, its seconds go out on stdout.

Peers stay resident and idle while others run, so that a driver can interleave them and a drift of the machine's speed
hits all alike.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from octavo_worker.bench.workloads import Work, workload

WARM_PROMPT, WARM_OUTPUT = 512, 8
"""Tokens of each request's warm-up: enough for every shape of batch, a fraction of the time."""


class Ran(NamedTuple):
    """Tokens generated, and seconds from the first request to the last token."""

    generated: int
    seconds: float


def timed(generate: Callable[[list[Work]], int]) -> Callable[[list[Work]], Ran]:
    def run(work: list[Work]) -> Ran:
        started = time.perf_counter()
        generated = generate(work)
        return Ran(generated, time.perf_counter() - started)

    return run


def serve(
    run: Callable[[list[Work]], Ran],
    vocab_size: int,
    family: str = "cpu",
    *,
    about: dict[str, Any] | None = None,
    figures: Callable[[list[Work]], dict[str, Any]] = lambda work: {},
) -> None:
    """Answer each line of stdin with one JSON line. `run` generates; what it does so that a run begins like any other,
    with an empty cache, is not in its seconds. `figures` says more about the run that just ended.

    The first line says `about` and comes when a first token was generated. The first time a workload is named, it also
    runs once shortened, as a warm-up that is not counted.
    """
    warm: set[str] = set()
    run([Work([token % vocab_size for token in range(10, 42)], 1)])
    print(json.dumps({"ready": True, **(about or {})}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        work = workload(family, name, vocab_size)
        if name not in warm:
            run([Work(w.prompt[:WARM_PROMPT], min(w.max_tokens, WARM_OUTPUT)) for w in work])
            warm.add(name)
        generated, seconds = run(work)
        expected = sum(w.max_tokens for w in work)
        if generated != expected:
            refuse(f"{name}: {generated} tokens generated where {expected} were asked for")
        print(json.dumps({"workload": name, "seconds": seconds, **figures(work)}), flush=True)


def refuse(reason: str) -> NoReturn:
    """Tell the driver why this peer cannot go on, and end."""
    print(json.dumps({"error": reason}), flush=True)
    raise SystemExit(1)
