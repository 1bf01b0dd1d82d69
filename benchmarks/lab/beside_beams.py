"""Plain requests with a beam search beside them, with as many plain requests more, and alone.

    python benchmarks/lab/beside_beams.py [--device cuda] [--model qwen3-0.6b] [--workload batch32] [--width 2]
    [--rounds 5] [--out benchmarks/results/beside_beams.json]

Random weights, one runner, the kinds of runs in turns; medians. The search lasts as long as the plain requests, whose
output tokens are counted. So do the requests in its place: they show what a batch of more rows costs. `ahead` is the
share of steps that were launched while another one was in flight.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from array import array
from pathlib import Path

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import GPU_WORKLOADS, Work
from octavo_worker.contract.messages import AddRequest, BeamOptions, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for
from octavo_worker.engine.step_log import StepLog

BESIDE = ("nothing", "plain", "search")


def company(beside: str, work: list[Work], width: int) -> list[AddRequest]:
    prompt, limit = array("I", work[0].prompt[::-1]), max(w.max_tokens for w in work)
    if beside == "search":
        sampling = EngineSampling(seed=0, max_tokens=limit, beam=BeamOptions(width))
        return [AddRequest("beside", prompt, [SequenceInput(i) for i in range(width)], sampling)]
    plain = EngineSampling(seed=0, max_tokens=limit, temperature=1.0)
    return [AddRequest(f"beside {i}", prompt, [SequenceInput(0)], plain) for i in range(width) if beside == "plain"]


def run(runner: ModelRunner, options: ModelOptions, work: list[Work], more: list[AddRequest]) -> tuple[float, float]:
    """Output tokens a second of `work`, and the share of steps launched ahead."""
    scheduler = scheduler_for(runner, options)
    pipeline = Pipeline(runner, scheduler, ahead=options.overlap)
    pipeline.log = StepLog()
    for seed, w in enumerate(work):
        sampling = EngineSampling(seed=seed, max_tokens=w.max_tokens, temperature=1.0)
        scheduler.add(AddRequest(str(seed), array("I", w.prompt), [SequenceInput(0)], sampling))
    for request in more:
        scheduler.add(request)
    left, began = len(work), time.perf_counter()
    while left and pipeline.advance():
        output = scheduler.take_output()
        left -= sum(token.finish_reason is not None for token in output.tokens if token.id.isdigit())
    seconds = time.perf_counter() - began
    for request in more:
        scheduler.abort(request.id)
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
    short = [Work(w.prompt, 8) for w in work]
    for beside in BESIDE:
        run(runner, options, short, company(beside, short, arguments.width))  # warm-up
    taken: dict[str, list[tuple[float, float]]] = {beside: [] for beside in BESIDE}
    for _ in range(arguments.rounds):
        for beside, runs in taken.items():
            runs.append(run(runner, options, work, company(beside, work, arguments.width)))
    rows = [
        {
            "beside": beside,
            "tokens_per_s": round(statistics.median(speed for speed, _ in runs), 1),
            "min_max": [round(edge(speed for speed, _ in runs), 1) for edge in (min, max)],
            "ahead": round(statistics.median(ahead for _, ahead in runs), 3),
        }
        for beside, runs in taken.items()
    ]
    for row in rows[1:]:
        row["share"] = round(row["tokens_per_s"] / rows[0]["tokens_per_s"], 3)
    for row in rows:
        print(row)
    if arguments.out is not None:
        facts = {"model": arguments.model, "workload": arguments.workload, "width": arguments.width}
        write(report("beside_beams", rows, **facts), arguments.out)


if __name__ == "__main__":
    main()
