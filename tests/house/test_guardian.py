"""Tests that are killed leave nothing behind, and one that hangs ends by its time limit whatever it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from guardian import HUNG
from waiting import STALL_S, eventually

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
ABANDONED = SUPPORT / "abandoned.py"


@contextmanager
def pytest_on(folder: Path, name: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Pytest on one of the tests, with the configuration and the conftest of all tests."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, f"{ABANDONED}::{name}"]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "THERE": str(folder / "there")}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("options", [[], pytest.param(["-n", "1"], marks=pytest.mark.full)], ids=["alone", "xdist"])
def test_what_killed_tests_have_started_ends(tmp_path: Path, number: signal.Signals, options: list[str]) -> None:
    with pytest_on(tmp_path, "test_that_waits_beside_its_processes", *options) as running:
        eventually(lambda: (tmp_path / "there").exists() or running.poll() is not None)
        assert running.poll() is None, running.communicate()
        family = psutil.Process(running.pid).children(recursive=True)
        assert len(family) >= 3, "the guardian, a process, and one that this started"
        running.send_signal(number)
        assert psutil.wait_procs(family, timeout=STALL_S)[1] == []


def test_a_test_that_no_exception_reaches_ends_by_its_limit(tmp_path: Path) -> None:
    with pytest_on(tmp_path, "test_that_no_exception_reaches", "--timeout=1", "-o", "guardian_grace=1") as running:
        said, _ = running.communicate(timeout=STALL_S)
    assert running.returncode == -signal.SIGABRT
    assert f"{HUNG}tests/support/abandoned.py::test_that_no_exception_reaches" in said
    assert 'abandoned.py", line' in said, "where it waits"
