"""Full memory, connections that fall silent, a server that is away for long."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from contextlib import suppress

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from waiting import STALL_S, eventually

from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo_worker.agent.heartbeat import Heartbeat

PROMPT = (7, 8, 9)


def sampling(max_tokens, **fields):
    return {"max_tokens": max_tokens, "ignore_eos": True, **fields}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("when", ["start", "engine"])
def test_a_full_memory_drains(queue, start_worker, when):
    job = queue.submit(PROMPT, sampling=sampling(300))
    worker = None
    if when == "engine":
        worker = start_worker("step_seconds=0.01").wait_ready()
        eventually(lambda: queue.stored(job) > 5)
    queue.connection.config_set("maxmemory", 1)
    try:
        if worker is None:
            start_worker("step_seconds=0.01")
        else:
            os.kill(worker.engine_pid, signal.SIGKILL)
        queue.wait(job)
    finally:
        queue.connection.config_set("maxmemory", 0)


class Proxy:
    """Passes bytes on. The first connection with `word` in a request goes dead: open, and silent for ever."""

    def __init__(self, url, word):
        self.server, self.word = int(url.rsplit(":", 1)[1].split("/")[0]), word
        self.dead = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}/0"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()

    def serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self.server)) as server, suppress(ConnectionError):
            self.pass_on(client, server)

    def pass_on(self, client, server):
        dead = False
        while True:
            for one, other in ((client, server), (server, client)):
                if select.select([one], [], [], 0.001)[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    if one is client and self.word in data and not self.dead.is_set():
                        dead = True
                        self.dead.set()
                    if not dead:
                        other.sendall(data)


@pytest.mark.full
def test_a_takeover_survives_a_connection_that_goes_dead(queue, redis_url, start_worker):
    first = start_worker("step_seconds=0.01").wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(300))
    eventually(lambda: queue.stored(job) > 10)
    first.send(signal.SIGKILL)
    proxy = Proxy(redis_url, b"XRANGE")
    start_worker("step_seconds=0.01", url=proxy.url)
    assert proxy.dead.wait(STALL_S)
    queue.wait(job)


@pytest.mark.full
def test_a_worker_starts_beside_a_connection_that_goes_dead(queue, redis_url, start_worker):
    proxy = Proxy(redis_url, b"HGETALL")
    start_worker("step_seconds=0.01", url=proxy.url, watchdog=5).wait_ready()
    assert proxy.dead.wait(STALL_S)
    queue.wait(queue.submit(PROMPT, sampling=sampling(30)))


def test_after_an_outage_the_next_beat_comes_before_the_reaper_has_lost_patience():
    """Which is three seconds, however long a lease is."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    pauses: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return super().wait(0.01)

    heartbeat = Heartbeat(
        lambda: redis.Redis(port=port, retry=Retry(NoBackoff(), 0)),
        Cell(Keys()),
        "w",
        lease_s=60.0,
        holding=tuple,
        info=bytes,
        answered=lambda *_: None,
        silent=lambda: None,
    )
    heartbeat._stopping = Stopping()
    heartbeat.start()
    try:
        eventually(lambda: len(pauses) >= 3)
    finally:
        heartbeat.stop()
    assert max(pauses) < 3
