"""The benchmark's own service: what happens when it does not start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from octavo_worker.bench import service as bench


def test_a_worker_that_cannot_start_ends_the_benchmark_at_once_and_says_why(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        pytest.raises(bench.ServiceFailed, match=r"(?s)the agent ended with status 1:.*nosuch"),
        bench.service(tmp_path / "nosuch", []),
    ):
        pass
    assert time.monotonic() - began < bench.START_TIMEOUT_S / 4
