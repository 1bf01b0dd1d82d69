"""Plain requests with a beam search beside them, and the same requests alone.

    python benchmarks/beside_beams.py [--device cuda] [--model qwen3-0.6b] [--workload batch32] [--width 2]
    [--rounds 5] [--out benchmarks/results/beside_beams.json]

Random weights, one runner, both kinds of runs in turns; medians. The search lasts as long as the plain requests, whose
output tokens are counted. `ahead` is the share of steps that were launched while another one was in flight.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from array import array
from pathlib import Path

from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import GPU_WORKLOADS, Work
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for
from octavo_worker.engine.step_log import StepLog
from octavo_worker.messages import AddRequest, BeamOptions, EngineSampling, SequenceInput
from octavo_worker.model import load_runner


def run(runner: ModelRunner, options: ModelOptions, work: list[Work], width: int) -> tuple[float, float]:
    """Output tokens a second of the plain requests, and the share of steps launched ahead. `width` 0: no search."""
    scheduler = scheduler_for(runner, options)
    pipeline = Pipeline(runner, scheduler, ahead=options.overlap)
    pipeline.log = StepLog()
    for seed, w in enumerate(work):
        sampling = EngineSampling(seed=seed, max_tokens=w.max_tokens, temperature=1.0)
        scheduler.add(AddRequest(str(seed), array("I", w.prompt), [SequenceInput(0)], sampling))
    if width:
        prompt, limit = work[0].prompt[::-1], max(w.max_tokens for w in work)
        sampling = EngineSampling(seed=0, max_tokens=limit, beam=BeamOptions(width))
        scheduler.add(AddRequest("beams", array("I", prompt), [SequenceInput(i) for i in range(width)], sampling))
    left, began = len(work), time.perf_counter()
    while left and pipeline.advance():
        output = scheduler.take_output()
        left -= sum(token.finish_reason is not None for token in output.tokens if token.id != "beams")
    seconds = time.perf_counter() - began
    scheduler.abort("beams")
    while pipeline.advance():
        scheduler.take_output()
    ahead = statistics.mean(step.ahead for step in pipeline.log.steps)
    return sum(w.max_tokens for w in work) / seconds, ahead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--model", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--workload", choices=GPU_WORKLOADS, default="batch32")
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    work = GPU_WORKLOADS[arguments.workload]()
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape(arguments.model, Path(folder)))
        options = ModelOptions(model=model, load_format="dummy", device=arguments.device, max_model_len=2048)
        runner = load_runner(options)
    run(runner, options, [Work(w.prompt, 8) for w in work], arguments.width)  # warm-up
    taken = {width: [] for width in (0, arguments.width)}
    for _ in range(arguments.rounds):
        for width, runs in taken.items():
            runs.append(run(runner, options, work, width))
    rows = [
        {
            "beam_width": width,
            "tokens_per_s": round(statistics.median(speed for speed, _ in runs), 1),
            "min_max": [round(edge(speed for speed, _ in runs), 1) for edge in (min, max)],
            "ahead": round(statistics.median(ahead for _, ahead in runs), 3),
        }
        for width, runs in taken.items()
    ]
    rows[1]["share"] = round(rows[1]["tokens_per_s"] / rows[0]["tokens_per_s"], 3)
    for row in rows:
        print(row)
    if arguments.out is not None:
        write(report("beside_beams", rows, model=arguments.model, workload=arguments.workload), arguments.out)


if __name__ == "__main__":
    main()
