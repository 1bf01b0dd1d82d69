"""Records of steps on request, and their form as a Chrome trace."""

from __future__ import annotations

import json
from itertools import pairwise

from engine_driver import Driver, make_request

from octavo_worker.contract.messages import EngineStats
from octavo_worker.engine.step_log import StepLog, chrome_trace


def driven(log: StepLog | None) -> Driver:
    driver = Driver.create(61, 4)
    driver.pipeline.log = log
    driver.add(make_request("a", range(10), max_tokens=3))
    driver.add(make_request("b", range(20, 26), max_tokens=2))
    driver.run()
    return driver


def test_batches_are_counted_without_a_log():
    stats = EngineStats()
    driven(None).pipeline.times.report(stats)
    assert stats.prefilled_tokens == 16
    assert stats.decoded_tokens == 2 + 1  # the first token of each comes with its prompt


def test_a_log_says_what_each_step_did():
    log = StepLog()
    driven(log)
    assert [(step.decodes, step.chunks, step.prefilled) for step in log.steps] == [(0, 2, 16), (2, 0, 0), (1, 0, 0)]
    for step in log.steps:
        times = [step.began, step.planned, step.left, step.waited, step.landed, step.committed]
        assert times == sorted(times)


def test_a_log_ends_at_its_limit():
    log = StepLog(limit=2)
    driven(log)
    assert log.is_full
    assert [step.prefilled for step in log.steps] == [16, 0]


def test_a_chrome_trace_has_every_phase_of_every_step():
    log = StepLog()
    driven(log)
    events = json.loads(json.dumps(chrome_trace(log)))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert sorted(event["name"] for event in spans) == sorted(
        ["plan", "launch", "wait", "commit"] * 3 + ["step 0", "step 1", "step 2"]
    )
    assert min(event["ts"] for event in spans) == 0 <= min(event["dur"] for event in spans)
    steps = [event for event in spans if event["name"].startswith("step")]
    assert [step["args"]["prompt tokens"] for step in steps] == [16, 0, 0]
    for before, after in pairwise(steps):
        assert after["ts"] >= before["ts"] + before["dur"] - 0.2  # rounded to 0.1 us each
    assert [event["args"]["decodes"] for event in events if event["ph"] == "C"] == [0, 2, 1]


def test_a_trace_of_nothing_is_valid():
    assert all(event["ph"] == "M" for event in chrome_trace(StepLog())["traceEvents"])
