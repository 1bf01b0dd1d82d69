"""octavo's engine. usage: octavo_engine.py OPTIONS [FAMILY [TEMPERATURE [SKEW]]], OPTIONS being `ModelOptions` as JSON

A workload comes at once, so its requests are of the class batch: the longest goes first.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.engine import EngineBench, Timing
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.messages import BATCH
from octavo_worker.contract.options import ModelOptions
from peers.base import Ran, serve

options = ModelOptions.from_json(sys.argv[1])
family = sys.argv[2] if len(sys.argv) > 2 else "cpu"
temperature = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
bench = EngineBench(load_runner(options), options, temperature)
if len(sys.argv) > 4:
    bench.skew_routing(float(sys.argv[4]))
last = Timing()


def run(work: list[Work]) -> Ran:
    global last
    last = bench.run(work, priority=BATCH)
    return Ran(last.generated, last.seconds)


def figures(work: list[Work]) -> dict[str, Any]:
    return {
        "floor_s": bench.floor(work),
        "ceilings": bench.ceilings and bench.ceilings.to_json(),
        "idle_share": round(last.idle / last.seconds, 4),
        "preemptions": last.stats.preemptions,
        "steps": last.stats.steps,
    }


device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
about = {
    "device": device,
    "torch": torch.__version__,
    "ranks": options.tensor_parallel,
    "weight_bytes": bench.weight_bytes,
    "experts_hit": bench.experts_hit,
    "kv_tokens": bench.kv_tokens,
    "numerics": bench.numerics,
    "priority": "batch",
}
serve(run, bench.vocab_size, family, about=about, figures=figures)
