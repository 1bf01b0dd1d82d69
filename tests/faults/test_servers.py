"""A job outlives its worker, and the server it was on, on every kind of server that octavo runs on."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from queue_client import MODEL, expected, known_queue
from server_kinds import Servers, kinds, started
from typer.testing import CliRunner
from waiting import STALL_S, eventually
from worker_process import WorkerProcess

from octavo import Client
from octavo.cli.app import build_app
from octavo.client.blocking import Job
from octavo.queue.connection import connect_sync
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobRequest

LONG = 150
FAKE = "step_seconds=0.01"


@pytest.fixture(params=kinds())
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    with started(request.param, tmp_path / "servers") as running:
        yield running


class Reader:
    """Follows a job in a thread."""

    def __init__(self, job: Job) -> None:
        self.tokens: list[int] = []
        self.end: JobStatus | None = None
        self._thread = threading.Thread(target=self._read, args=(job,), daemon=True)
        self._thread.start()

    def _read(self, job: Job) -> None:
        for event in job.events():
            self.tokens += event.token_ids
            if event.end is not None:
                self.end = event.end.status

    def wait(self) -> None:
        self._thread.join(STALL_S)


def follow(client: Client) -> list[Reader]:
    requests = [
        JobRequest(model=MODEL, prompt=[10 + number, 5], sampling={"max_tokens": LONG, "ignore_eos": True, "seed": 1})
        for number in range(4)
    ]
    jobs = client.submit_many(requests)
    assert all(isinstance(job, Job) for job in jobs), jobs
    return [Reader(job) for job in jobs]


def assert_undisturbed(readers: list[Reader]) -> None:
    for number, reader in enumerate(readers):
        reader.wait()
        assert reader.end is JobStatus.COMPLETED
        assert reader.tokens == expected([10 + number, 5], LONG)


@pytest.mark.full
def test_a_killed_workers_jobs_go_on_elsewhere(servers: Servers, tmp_path: Path) -> None:
    with connect_sync(servers.url) as connection, Client(servers.url) as client, ExitStack() as stack:
        known_queue(connection)
        first, second = (
            stack.enter_context(WorkerProcess(servers.url, tmp_path / f"{name}.log", fake=FAKE, lease=10.0))
            for name in ("first", "second")
        )
        first.wait_ready()
        readers = follow(client)
        eventually(lambda: all(len(reader.tokens) > 10 for reader in readers))
        first.send(signal.SIGKILL)
        second.wait_ready()
        assert_undisturbed(readers)


@pytest.mark.full(but=1)
def test_doctor_looks_at_what_it_talks_to(servers: Servers) -> None:
    found = diagnose(servers.url)
    assert {found[name]["state"] for name in ("redis", "safety", "rights")} == {"ok"}
    for node in servers.nodes[1:]:  # a replica; a node of a cluster, as if it were alone
        refused = diagnose(node.url, code=1)["redis"]
        assert refused["state"] == "error"
        assert "redis+sentinel://" in refused["next_step"] or "redis+cluster://" in refused["next_step"]


def diagnose(url: str, code: int = 0) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(build_app(), ["doctor", "--json", "--redis-url", url])
    assert result.exit_code == code, result.output
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


@pytest.mark.full
@pytest.mark.parametrize("servers", [kind for kind in kinds() if not kind.startswith("alone")], indirect=True)
def test_jobs_outlive_the_server_that_they_were_on(servers: Servers, tmp_path: Path) -> None:
    assert servers.fail_over is not None
    with connect_sync(servers.url) as connection, Client(servers.url) as client:
        known_queue(connection)
        with WorkerProcess(servers.url, tmp_path / "worker.log", fake=FAKE, lease=10.0) as worker:
            worker.wait_ready()
            readers = follow(client)
            eventually(lambda: all(len(reader.tokens) > 10 for reader in readers))
            servers.fail_over()
            assert_undisturbed(readers)
            assert worker.process.poll() is None
        # Readers hear from where tokens are stored now: `PUBLISH` in a script reaches a node's own connections.
        with connect_sync(servers.nodes[1].url) as successor:
            eventually(lambda: successor.pubsub_channels("*:n:*"))
