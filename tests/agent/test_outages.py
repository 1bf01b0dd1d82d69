"""Full memory, connections that fall silent, a server that is away for long."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time

import pytest
import redis
from killable_server import killable_server
from queue_client import known_queue, until

PROMPT = (7, 8, 9)


def sampling(max_tokens, **fields):
    return {"max_tokens": max_tokens, "ignore_eos": True, **fields}


@pytest.mark.parametrize("when", ["start", "engine"])
def test_a_full_memory_drains(queue, start_worker, when):
    job = queue.submit(PROMPT, sampling=sampling(300))
    worker = None
    if when == "engine":
        worker = start_worker("step_seconds=0.01").wait_ready()
        until(lambda: queue.stored(job) > 5)
    queue.connection.config_set("maxmemory", 1)
    try:
        if worker is None:
            start_worker("step_seconds=0.01")
        else:
            os.kill(worker.engine_pid, signal.SIGKILL)
        queue.wait(job, 20)
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
        server, dead = socket.create_connection(("127.0.0.1", self.server)), False
        while True:
            for one, other in ((client, server), (server, client)):
                if select.select([one], [], [], 0.001)[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        client.close()
                        server.close()
                        return
                    if one is client and self.word in data and not self.dead.is_set():
                        dead = True
                        self.dead.set()
                    if not dead:
                        other.sendall(data)


def test_a_takeover_survives_a_connection_that_goes_dead(queue, redis_url, start_worker):
    first = start_worker("step_seconds=0.01").wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(300))
    until(lambda: queue.stored(job) > 10)
    proxy = Proxy(redis_url, b"XRANGE")
    start_worker("step_seconds=0.01", url=proxy.url).wait_ready()
    first.send(signal.SIGKILL)
    assert proxy.dead.wait(20)
    queue.wait(job, 25)


def test_a_worker_starts_beside_a_connection_that_goes_dead(queue, redis_url, start_worker):
    proxy = Proxy(redis_url, b"HGETALL")
    start_worker("step_seconds=0.01", url=proxy.url, watchdog=5).wait_ready()
    assert proxy.dead.wait(20)
    queue.wait(queue.submit(PROMPT, sampling=sampling(30)), 30)


def test_an_outage_longer_than_a_long_lease_is_nobodys_crash(tmp_path, start_worker):
    with killable_server(tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        queue = known_queue(connection)
        worker, _ = (start_worker("step_seconds=0.1", url=server.url, lease=16.0).wait_ready() for _ in range(2))
        job = queue.submit(PROMPT, sampling=sampling(500))
        until(lambda: queue.stored(job) > 5)
        server.kill()
        time.sleep(17)
        failed = worker.log.count("heartbeat failed")
        until(
            lambda: worker.log.count("heartbeat failed") > failed, 10
        )  # the next one would come after a quarter of a lease
        server.start()
        time.sleep(6)
        assert queue.field(job, "crashes") == "0"
