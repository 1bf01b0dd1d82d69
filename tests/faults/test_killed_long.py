"""A sequence longer than the device's memory, on real workers, and a kill in its middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import redis
from queue_client import Queue, known_queue
from waiting import eventually
from worker_process import WorkerProcess

from octavo import Client
from octavo.service.server import EmbeddedServer

BLOCKS = 21  # of 16 tokens, one of them the null block: a third of what the job needs
SAMPLING = {"max_tokens": 500, "ignore_eos": True, "temperature": 0.9}
PROMPT = tuple(range(100, 500))


def start(url: str, log: Path, **options: int) -> WorkerProcess:
    fixed = {"num_blocks": BLOCKS, "swap_memory": 0.1, "lease": 1.0}
    return WorkerProcess(url, log, model="demo", threads=1, **fixed | options)


@pytest.mark.full
@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_the_next_worker_goes_on_with_the_same_tokens(victim: str, tmp_path: Path):
    """In smaller blocks, on which no token depends."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as connection:
        queue: Queue = known_queue(connection)
        with start(server.url, tmp_path / "first.log") as first:
            first.wait_ready()
            undisturbed = queue.wait(queue.submit(PROMPT, seed=5, sampling=SAMPLING))
            job = queue.submit(PROMPT, seed=5, sampling=SAMPLING)
            eventually(lambda: queue.stored(job) > 50)
            with Client(server.url) as client:  # asked now: a heartbeat may be from before the job
                assert client.worker_memory(first.id).host["cold"] > 0, "nothing of it is on the host"
            os.kill(first.engine_pid if victim == "engine" else first.pid, signal.SIGKILL)
            stored = queue.stored(job)
            with start(server.url, tmp_path / "second.log", block_size=8, num_blocks=2 * BLOCKS):
                result = queue.wait(job)
        assert 50 < stored < SAMPLING["max_tokens"]
        assert int(queue.field(job, "crashes") or 0) == 1, "the kill hit nothing"
        assert len(result.token_ids) == SAMPLING["max_tokens"]
        assert (result.token_ids, result.text) == (undisturbed.token_ids, undisturbed.text)
