"""`octavo up` and the files that it leaves behind, and `octavo demo` where there is no terminal."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from cli_driver import Cli, start_up
from waiting import STALL_S


@pytest.mark.full
def test_ctrl_c_ends_every_process_and_the_next_start_finds_the_jobs(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    first = start_up(cli, workers=1)
    family = psutil.Process(first.process.pid).children(recursive=True)
    assert len(family) >= 4, "server, gateway, agent and engine"
    result = cli.json("run", "ROMEO:", "--seed", "5", "--max-tokens", "10")
    assert first.stop() == 0
    assert psutil.wait_procs(family, timeout=STALL_S)[1] == []
    assert not (tmp_path / "up.json").exists()
    second = start_up(cli, workers=1)
    try:
        tail = cli("jobs", "tail", result["id"])
        assert tail == result["sequences"][0]["text"] + "\n"
    finally:
        second.stop()


@pytest.mark.full
def test_killing_up_takes_everything_with_it(tmp_path: Path) -> None:
    running = start_up(Cli(tmp_path), workers=1)
    family = psutil.Process(running.process.pid).children(recursive=True)
    running.process.kill()
    running.process.communicate()
    assert psutil.wait_procs(family, timeout=STALL_S)[1] == []
    assert "cannot reach" in Cli(tmp_path)("workers", code=3), "a state file of a dead process counts for nothing"


@pytest.mark.full
def test_demo_kills_a_worker_and_shows_that_nothing_is_lost(tmp_path: Path) -> None:
    said = Cli(tmp_path)("demo")
    assert "SIGKILL worker-" in said
    assert len(re.findall(r"400 tokens, no gap, no repeat, identical to an undisturbed run", said)) == 3
    assert re.search(r"cut at token \d+, worker-\d went on \d", said)
    assert "curl -N http://127.0.0.1:" in said
