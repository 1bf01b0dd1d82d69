"""Workers on the fake engine, whose every answer can be computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from queue_client import Queue, known_queue
from worker_process import WorkerProcess


@pytest.fixture
def queue(redis_url: str) -> Iterator[Queue]:
    with redis.Redis.from_url(redis_url) as connection:
        yield known_queue(connection)


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(redis_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Start a worker on the fake engine. The first argument is the fake's settings; flags follow by name."""
    with ExitStack() as stack:
        count = 0

        def start(fake: str = "step_seconds=0.002", *, url: str = redis_url, **flags: object) -> WorkerProcess:
            """`fake`: settings of the fake engine."""
            nonlocal count
            count += 1
            flags = {"lease": 1.0, **flags}
            return stack.enter_context(WorkerProcess(url, tmp_path / f"worker{count}.log", fake=fake, **flags))

        yield start
