"""octavo's engine. usage: octavo_engine.py MODEL_DIR THREADS"""

from __future__ import annotations

import sys

from octavo_worker.bench.engine import EngineBench
from octavo_worker.bench.workloads import Work
from octavo_worker.engine.options import ModelOptions
from octavo_worker.model import load_runner
from peers.base import serve

options = ModelOptions(model=sys.argv[1], dtype="bfloat16", device="cpu", threads=int(sys.argv[2]), max_model_len=2048)
bench = EngineBench(load_runner(options), options)


def run(work: list[Work]) -> int:
    return bench.run(work).generated


serve(run, bench.vocab_size)
