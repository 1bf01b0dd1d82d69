"""The Celery task over a real RabbitMQ: every type of exchange, two queues on one, priorities."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import fake_worker as fake
import pytest
from rabbitmq import rabbitmq
from waiting import STALL_S

from octavo.queue.connection import connect
from octavo.service.server import EmbeddedServer, die_with_parent

pytest.importorskip("celery")
pytestmark = pytest.mark.rabbitmq

ROUTES = [
    {},
    {"queue": "media", "routing_key": "media.text"},
    {"queue": "media", "routing_key": "media.video"},
    {"queue": "news"},
    {"queue": "ranked"},
    {"queue": "ranked", "priority": 7},
]
SUBMIT = """
import json, sys
from celery_app import app
from octavo.celery import generate
routes = json.loads(sys.argv[1])
sent = [generate.apply_async((f"p{n}",), {"model": "toy", "max_tokens": 20, "seed": n}, **route)
        for n, route in enumerate(routes)]
print(json.dumps([task.get(timeout=float(sys.argv[2]))["token_ids"] for task in sent]))
"""


@pytest.mark.full
def test_a_task_ends_whatever_exchange_it_goes_through(tmp_path: Path) -> None:
    with rabbitmq(tmp_path) as broker, EmbeddedServer() as server:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        env = {**os.environ, "PYTHONPATH": path, "TEST_REDIS": server.url.removesuffix("/0"), "TEST_BROKER": broker}
        ready, stop = threading.Event(), threading.Event()

        async def serve() -> None:
            async with connect(server.url) as connection, fake.fake_worker(connection, delay=0.02):
                ready.set()
                await asyncio.to_thread(stop.wait)

        serving = threading.Thread(target=lambda: asyncio.run(serve()))
        serving.start()
        ready.wait(STALL_S)
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--concurrency=1", "--loglevel=WARNING"],
            env=env,
            preexec_fn=die_with_parent(),
        )
        try:
            command = [sys.executable, "-c", SUBMIT, json.dumps(ROUTES), str(STALL_S)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * STALL_S, check=False)
        finally:
            worker.terminate()
            worker.wait(STALL_S)
            stop.set()
            serving.join()
    assert done.returncode == 0, done.stderr[-1000:]
    expected = [fake.expected(f"p{number}", number, 20) for number in range(len(ROUTES))]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
