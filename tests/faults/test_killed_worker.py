"""The promise itself, with nothing faked: two workers on the bundled model, 200 jobs, and a kill in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import redis
from gpus import has_gpu
from queue_client import Answers, Queue, answers, known_queue
from tiers import is_full
from tiny_folders import write_hybrid
from waiting import STALL_S, eventually
from worker_process import KNOWN_SPEEDS, WorkerProcess

from octavo.service.server import EmbeddedServer

# with room for all jobs at once, the worker that is not killed could take every one, or end them before the kill
FLAGS = {
    "engine": KNOWN_SPEEDS, "model": "demo", "num_blocks": 2048, "max_running": 16, "threads": 1, "token_budget": 512,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A scene: flags of its workers, its jobs, and how long they are. A GPU would end the jobs of the others while
    they are submitted; what is said greedily repeats itself after a while. With `has_states` the model keeps some."""

    flags: dict[str, object]
    jobs: int = 200
    times_as_long: int = 1
    has_states: bool = False


DRAFTS = {"device": "cpu", "speculate": "suffix"}
KINDS: dict[str, Kind] = {
    "cpu-few": Kind(DRAFTS, jobs=50),
    "cpu": Kind({"device": "cpu"}),
    "cpu-int8": Kind({"device": "cpu", "kv_dtype": "int8"}, jobs=100),
    "cpu-drafts": Kind(DRAFTS, jobs=100, times_as_long=2),
    "cpu-states": Kind({"device": "cpu"}, times_as_long=2, has_states=True),
    "cuda": Kind({"device": "cuda"}, times_as_long=8),
    "cuda-drafts": Kind({"device": "cuda", "speculate": "suffix"}, times_as_long=8),
    "cuda-states": Kind({"device": "cuda"}, times_as_long=8, has_states=True),
}


def submit_all(queue: Queue, tenant: str, kind: Kind) -> list[str]:
    """Greedy and seeded, alone and in twos, of many lengths; for every tenant the same."""
    return [
        queue.submit(
            f"KING RICHARD {number}:\nWhat say you, my lord of {'abcdefgh'[number % 8] * (number % 23)}",
            seed=number,
            tenant=tenant,
            sampling={
                "max_tokens": kind.times_as_long * (40 + number % 50),
                "temperature": (0.0, 0.9)[number % 2],
                "top_p": 0.95,
                "n": 2 if number % 10 == 3 else 1,
                "stop": ["What", "\n\n"] if number % 4 == 0 else [],
            },
        )
        for number in range(kind.jobs)
    ]


@dataclass
class Scene:
    """Two real workers, the queue they serve, and what they answered undisturbed; with drafts: what another worker
    answered without."""

    kind: Kind
    queue: Queue
    workers: list[WorkerProcess]
    undisturbed: Answers


def kind_of(name: str) -> Any:
    marks = [pytest.mark.gpu, pytest.mark.beyond_plain] if name.startswith("cuda") else []
    return pytest.param(name, marks=[*marks, *([pytest.mark.full] if name != "cpu-few" else [])])


@pytest.fixture(scope="module", params=[kind_of(name) for name in KINDS if has_gpu() or not name.startswith("cuda")])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    kind = KINDS[request.param]
    folder = tmp_path_factory.mktemp("killed")
    flags = {**FLAGS, **kind.flags}
    if kind.has_states:
        flags |= write_hybrid(folder / "hybrid", flags["device"])
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as connection, ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("OCTAVO_DETERMINISTIC", "1")
        queue = known_queue(connection)
        undisturbed: Answers | None = None
        if "speculate" in flags:
            with WorkerProcess(server.url, folder / "plain.log", **{**flags, "speculate": "off"}) as plain:
                plain.wait_ready()
                undisturbed = answers([queue.wait(job) for job in submit_all(queue, "plain", kind)])
        workers = [
            stack.enter_context(WorkerProcess(server.url, folder / f"worker{number}.log", own_start=is_full(), **flags))
            for number in range(2)
        ]
        for worker in workers:
            worker.wait_ready()
            info = worker.info()
            assert info is not None
            if is_full():
                assert '"check_integrity":true' in " ".join(psutil.Process(worker.engine_pid).cmdline())
            assert info.stats.kv_dtype == flags.get("kv_dtype", "bfloat16")
            assert ("state-f32" in info.numerics) == kind.has_states
            assert ("deterministic" in info.numerics) == request.param.startswith("cuda")
        results = [queue.wait(job) for job in submit_all(queue, "undisturbed", kind)]
        assert (sum(result.usage.accepted_tokens for result in results) > 0) == ("speculate" in flags)
        yield Scene(kind, queue, workers, undisturbed or answers(results))


def serves(worker: WorkerProcess) -> bool:
    """Its engine has loaded: also after a kill."""
    info = worker.info()
    return info is not None and info.stats.free_blocks != 0


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_a_kill_in_mid_run_changes_no_byte_of_any_stream(scene: Scene, victim: str, record_property):
    queue, worker = scene.queue, scene.workers[0]
    eventually(lambda: serves(worker))
    pid = worker.engine_pid if victim == "engine" else worker.pid
    jobs, hit = queue.in_mid_run(worker.id, lambda: submit_all(queue, victim, scene.kind), wanted=8)
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    orphans = {job: queue.stored(job) for job in hit if not queue.status(job).is_terminal}
    first = last = 0.0
    waiting = set(orphans)
    while waiting:
        waiting -= {job for job in waiting if queue.stored(job) > orphans[job] or queue.status(job).is_terminal}
        last = time.monotonic() - killed_at
        first = first or (last if len(waiting) < len(orphans) else 0.0)
        assert last < STALL_S, f"{len(waiting)} jobs do not go on"
        time.sleep(0.002)
    record_property("seconds_from_kill_to_next_token", {"first": first, "last": last, "jobs": len(orphans)})
    print(f"\nSIGKILL of the {victim}: {len(orphans)} jobs go on after {first:.2f} to {last:.2f} s")
    assert answers([queue.wait(job) for job in jobs]) == scene.undisturbed
    assert sum(int(queue.field(job, "crashes") or 0) for job in jobs) > 0, "the kill hit nothing"
