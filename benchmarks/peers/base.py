"""The loop every peer process runs: a workload's name comes in on stdin, its seconds go out on stdout.

Peers stay resident and idle while others run, so that a driver can interleave them and a drift of the machine's speed
hits all alike.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from octavo_worker.bench.workloads import Work, cpu_workload


def serve(run: Callable[[list[Work]], int], vocab_size: int) -> None:
    """Answer each line of stdin with one JSON line. `run` generates and returns the number of tokens generated.

    The first time a workload is named, it also runs once shortened, as a warm-up that is not counted.
    """
    warm: set[str] = set()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        work = cpu_workload(name, vocab_size)
        if name not in warm:
            run([Work(w.prompt, min(w.max_tokens, 8)) for w in work])
            warm.add(name)
        started = time.perf_counter()
        generated = run(work)
        seconds = time.perf_counter() - started
        expected = sum(w.max_tokens for w in work)
        if generated != expected:
            raise SystemExit(f"{name}: {generated} tokens generated where {expected} were asked for")
        print(json.dumps({"workload": name, "seconds": seconds}), flush=True)
