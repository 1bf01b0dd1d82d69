"""Cost of the scheduler alone in a step: plan and commit, no model.

    python benchmarks/scheduler.py [--out benchmarks/results/scheduler.json]

256 sequences decode while others wait; contexts are long, so anything that costs the length of a context shows. Their
lengths differ, so that in every step one in sixteen fills a block and takes another. Reports microseconds at p50 and
p99, one step after the other and one step ahead, for an empty and a long waiting queue, and where the time goes. Then
what holds up the first steps when 256 prompts behind a common beginning come at once: reading them from the socket,
taking them in, planning, in milliseconds.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import socket
import statistics
import threading
import time
from array import array
from pathlib import Path
from typing import Any

from octavo_worker.bench.report import report, write
from octavo_worker.contract.channel import EngineChannel, encode_frame
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.step import Sampled, SequenceResult, StepPlan, StepResult
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.scheduler import Scheduler

STEPS = 400
ARRIVALS = 5


def empty_scheduler(blocks: int, max_running: int, token_budget: int) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            num_blocks=blocks + 2,
            block_size=16,
            max_model_len=1 << 20,
            vocab_size=1 << 16,
            token_budget=token_budget,
            max_running=max_running,
        )
    )


def make_scheduler(running: int, waiting: int, prompt_len: int) -> Scheduler:
    """A scheduler with `running` decoding sequences and `waiting` requests that find no slot."""
    blocks_each = (prompt_len + 2 * STEPS + 64) // 16 + 1
    scheduler = empty_scheduler(running * blocks_each, running, token_budget=1 << 15)
    for i in range(running + waiting):
        prompt = [(i * 31 + k * 7) % 60_000 for k in range(prompt_len + i % 16)]
        scheduler.add(
            AddRequest(str(i), array("I", prompt), [SequenceInput(0)], EngineSampling(seed=i, max_tokens=1 << 18))
        )
    while scheduler.stats().running < running or scheduler.stats().generated_tokens < running:
        step(scheduler)
    return scheduler


def answer(plan: StepPlan) -> StepResult:
    return StepResult([SequenceResult([Sampled(5) for _ in step.samples]) for step in plan.sequences])


def step(scheduler: Scheduler) -> tuple[float, float]:
    """Seconds for plan, and for commit with taking the output."""
    began = time.perf_counter()
    plan = scheduler.plan()
    planned = time.perf_counter()
    assert plan is not None
    result = answer(plan)
    answered = time.perf_counter()
    scheduler.commit(plan, result)
    scheduler.take_output()
    return planned - began, time.perf_counter() - answered


def step_ahead(scheduler: Scheduler, under_way: StepPlan) -> tuple[StepPlan, float, float]:
    """The next plan, made before the one under way is committed; seconds as in `step`."""
    result = answer(under_way)
    began = time.perf_counter()
    plan = scheduler.plan()
    planned = time.perf_counter()
    assert plan is not None
    scheduler.commit(under_way, result)
    scheduler.take_output()
    return plan, planned - began, time.perf_counter() - planned


def percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_us": round(cuts[49] * 1e6, 1), "p99_us": round(cuts[98] * 1e6, 1)}


def measure(running: int, waiting: int, prompt_len: int) -> dict[str, Any]:
    scheduler = make_scheduler(running, waiting, prompt_len)
    gc.collect()
    gc.freeze()
    times = [step(scheduler) for _ in range(STEPS)]
    plan, ahead = scheduler.plan(), []
    assert plan is not None
    for _ in range(STEPS):
        plan, *seconds = step_ahead(scheduler, plan)
        ahead.append(seconds)
    scheduler.check_integrity()
    return {
        "running": running,
        "waiting": waiting,
        "prompt_tokens": prompt_len,
        "plan": percentiles([plan for plan, _ in times]),
        "commit": percentiles([commit for _, commit in times]),
        "plan_ahead": percentiles([plan for plan, _ in ahead]),
        "commit_behind": percentiles([commit for _, commit in ahead]),
    }


def receive(requests: list[AddRequest]) -> tuple[list[AddRequest], float]:
    """The requests as an engine's end of the socket gives them, and in how many seconds."""
    ours, theirs = socket.socketpair()
    frames = b"".join(map(encode_frame, requests))
    with ours, theirs:
        channel, received = EngineChannel(ours), []
        sender = threading.Thread(target=theirs.sendall, args=(frames,))
        began = time.perf_counter()
        sender.start()
        while len(received) < len(requests):
            received += channel.receive(wait=True)
        seconds = time.perf_counter() - began
        sender.join()
    return received, seconds


def arrive(count: int, common: int, own: int) -> dict[str, list[float]]:
    """Seconds of receiving, of taking in and of each step's plan, until all prompts are computed."""
    beginning, sampling = array("I", range(common)), EngineSampling(seed=1, max_tokens=128)
    prompts = [beginning + array("I", ((i * 31 + k * 7) % 60_000 for k in range(own))) for i in range(count)]
    requests, received = receive(
        [AddRequest(str(i), prompt, [SequenceInput(0)], sampling) for i, prompt in enumerate(prompts)]
    )
    scheduler = empty_scheduler((common + count * (own + 256)) // 16, count, token_budget=1 << 13)
    began = time.perf_counter()
    for request in requests:
        scheduler.add(request)
    taken_in, plans = time.perf_counter() - began, []
    while scheduler.stats().generated_tokens < count:
        plans.append(step(scheduler)[0])
    return {"received": [received], "taken_in": [taken_in], "plans": plans}


def arrival(common: int, own: int = 64, count: int = 256) -> dict[str, Any]:
    gc.collect()
    gc.freeze()
    rounds = [arrive(count, common, own) for _ in range(ARRIVALS)]
    medians = {
        f"{key}_ms": [round(statistics.median(same) * 1e3, 2) for same in zip(*(r[key] for r in rounds), strict=True)]
        for key in rounds[0]
    }
    return {"arriving": count, "common_tokens": common, "own_tokens": own, **medians}


def profile(running: int, prompt_len: int) -> list[dict[str, Any]]:
    """The functions in which planning and committing spend most, by their own time."""
    scheduler = make_scheduler(running, 0, prompt_len)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(100):
        step(scheduler)
    profiler.disable()
    rows = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    top = sorted(rows, key=lambda row: row[1][2], reverse=True)[:10]
    total = sum(row[1][2] for row in rows)
    return [
        {"function": name[2], "share": round(row[2] / total, 3), "calls_per_step": row[1] / 100} for name, row in top
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    arguments = parser.parse_args()
    cases = [measure(256, waiting, length) for waiting, length in [(0, 128), (1000, 128), (0, 1024)]]
    cases += [arrival(common) for common in (0, 2048, 8192)]
    for case in cases:
        print(case)
    if arguments.out is not None:
        write(report("scheduler", cases, steps=STEPS, profile_256=profile(256, 128)), arguments.out)


if __name__ == "__main__":
    main()
