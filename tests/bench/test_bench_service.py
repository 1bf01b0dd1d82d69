"""The benchmark's own service: what happens when it does not start."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import STALL_S

from octavo_worker.bench import service as bench

RUNNING = """
import time
from octavo_worker.bench.service import service
from octavo_worker.contract.files import model_folder
with service(model_folder("demo"), ["--num-blocks=80"]):
    print("running", flush=True)
    time.sleep(3600)
"""


def test_a_worker_that_cannot_start_ends_the_benchmark_at_once_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "START_TIMEOUT_S", float("inf"))  # it would wait until the test's own limit
    with (
        pytest.raises(bench.ServiceFailed, match=r"(?s)the agent ended with status 2:.*nosuch"),
        bench.service(tmp_path / "nosuch", []),
    ):
        pass


@pytest.mark.full
def test_a_benchmark_that_is_asked_to_end_leaves_nobody_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", RUNNING], stdout=subprocess.PIPE, text=True) as benchmark:
        try:
            assert benchmark.stdout is not None
            assert benchmark.stdout.readline() == "running\n"
            everybody = psutil.Process(benchmark.pid).children(recursive=True)
            assert len(everybody) >= 4  # server, gateway, agent, engine
        finally:
            benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(STALL_S) == 128 + signal.SIGTERM
    assert psutil.wait_procs(everybody, timeout=STALL_S)[1] == []
