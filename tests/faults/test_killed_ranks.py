"""A model on two ranks: whichever process is killed or stopped, its worker's engine ends, and every job goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis
import torch
from gpus import devices
from queue_client import Answers, Queue, answers, known_queue
from tiers import is_full, size
from two_gpus import TWO_GPUS, on_two_gpus
from waiting import eventually
from worker_process import WorkerProcess

from octavo.service.server import EmbeddedServer

JOBS = size(40, quick=20)
FLAGS = {
    "model": "demo",
    "tensor_parallel": 2,
    "threads": 1,
    "num_blocks": 512,
    "max_running": size(16, quick=8),
    "swap_memory": 0.01,
}
DEVICES = {
    "cpu": {"dtype": "float32"},
    "cuda": {"dtype": "bfloat16", "deterministic": True},
}


def submit_all(queue: Queue, tenant: str) -> list[str]:
    """Greedy and seeded, alone and in twos; for every tenant the same."""
    return [
        queue.submit(
            f"KING RICHARD {number}:\nWhat say you, my lord of {'abcdefgh'[number % 8] * number}",
            seed=number,
            tenant=tenant,
            sampling={
                "max_tokens": 60 + number,
                "temperature": (0.0, 0.9)[number % 2],
                "top_p": 0.95,
                "n": 2 if number % 10 == 3 else 1,
            },
        )
        for number in range(JOBS)
    ]


@dataclass
class Scene:
    queue: Queue
    workers: list[WorkerProcess]
    undisturbed: Answers


@pytest.fixture(scope="module", params=devices(*TWO_GPUS))
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("ranks")
    flags = {**FLAGS, "device": request.param, **DEVICES[request.param]}
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as connection, ExitStack() as stack:
        workers = [
            stack.enter_context(WorkerProcess(server.url, folder / f"worker{number}.log", own_start=is_full(), **flags))
            for number in range(2)
        ]
        for worker in workers:
            info = worker.wait_ready().info()
            assert info is not None
            assert info.numerics.endswith(" tp2")
        queue = known_queue(connection)
        undisturbed = [queue.wait(job) for job in submit_all(queue, "undisturbed")]
        yield Scene(queue, workers, answers(undisturbed))


def processes(worker: WorkerProcess) -> list[psutil.Process]:
    """The engine, which is rank 0, and rank 1, once the worker serves."""
    found: list[psutil.Process] = []

    def is_whole() -> bool:
        info = worker.info()
        if info is None or info.stats.free_blocks == 0 or not psutil.pid_exists(info.stats.engine_pid):
            return False
        engine = psutil.Process(info.stats.engine_pid)
        found[:] = [engine, *engine.children()]
        return len(found) == 2

    eventually(is_whole)
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two
        return True


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("victim", [0, 1])
def test_the_loss_of_a_rank_changes_no_byte_of_any_stream(scene: Scene, victim: int, number: signal.Signals) -> None:
    queue, worker = scene.queue, scene.workers[0]
    ranks, worker_id = processes(worker), worker.id
    jobs, _ = queue.in_mid_run(worker_id, lambda: submit_all(queue, f"{victim} {number}"), wanted=4)
    os.kill(ranks[victim].pid, number)
    lost_at = time.monotonic()
    eventually(lambda: all(map(is_gone, ranks)))
    print(f"\n{number.name} of rank {victim}: both are gone after {time.monotonic() - lost_at:.2f} s")
    assert answers([queue.wait(job) for job in jobs]) == scene.undisturbed
    assert sum(int(queue.field(job, "crashes") or 0) for job in jobs) > 0, "nothing was hit"
    assert not {process.pid for process in processes(worker)} & {process.pid for process in ranks}


TAKEN = 256 << 20
"""Bytes of a GPU: a rank takes more, and others on the same machine hardly as many meanwhile."""


def free() -> list[int]:
    return [torch.cuda.mem_get_info(index)[0] for index in range(2)]


@on_two_gpus
@pytest.mark.parametrize("victim", [0, 1])
def test_the_memory_of_all_gpus_is_free_again(victim: int, tmp_path: Path) -> None:
    """Also of the one whose kernels wait for the rank that is killed."""
    before = free()
    flags = {**FLAGS, "device": "cuda", "num_blocks": 20_000}
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        connection = stack.enter_context(redis.Redis.from_url(server.url))
        worker = stack.enter_context(WorkerProcess(server.url, tmp_path / "worker.log", **flags)).wait_ready()
        queue, ranks = known_queue(connection), processes(worker)
        assert all(left < at_first - TAKEN for left, at_first in zip(free(), before, strict=True))
        jobs = submit_all(queue, "memory")
        eventually(lambda: any(int(n or 0) > 5 for (n,) in queue.fields(jobs, "n")))
        worker.send(signal.SIGSTOP)  # it would start another engine
        ranks[victim].kill()
        eventually(lambda: all(map(is_gone, ranks)))
        eventually(lambda: all(left > at_first - TAKEN for left, at_first in zip(free(), before, strict=True)))
