"""Several workers under one command: what each is told, and that each is restarted by itself."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from queue_client import known_queue
from waiting import STALL_S, eventually

from octavo.queue import wire
from octavo.queue.keys import Keys
from octavo.terms.messages import JobStatus
from octavo_worker.assembly.replicas import ReplicasRefused, environments
from octavo_worker.assembly.settings import WorkerSettings


def told(**flags: Any) -> list[dict[str, str]]:
    return environments(WorkerSettings(**flags).options(), flags)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Twelve cores, four GPUs."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.delenv("OCTAVO_DEVICE", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("machine")
def test_each_gets_a_gpu_of_its_own() -> None:
    assert [each["CUDA_VISIBLE_DEVICES"] for each in told(replicas=3)] == ["0", "1", "2"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in told(devices="3, 1")] == ["3", "1"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in told(replicas=2, tensor_parallel=2)] == ["0,1", "2,3"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in told(devices="0,1,2,3", tensor_parallel=2)] == ["0,1", "2,3"]


@pytest.mark.usefixtures("machine")
def test_on_cpus_each_gets_its_share_of_the_cores() -> None:
    assert [each["OCTAVO_THREADS"] for each in told(replicas=3, device="cpu")] == ["4", "4", "4"]
    assert [each["OCTAVO_THREADS"] for each in told(replicas=3, device="cpu", tensor_parallel=2)] == ["2", "2", "2"]
    assert [each["OCTAVO_THREADS"] for each in told(replicas=2, device="cpu", threads=5)] == ["5", "5"]


@pytest.mark.usefixtures("machine")
def test_each_is_told_all_but_how_many_there_are() -> None:
    for each in told(replicas=2, model="folder", kv_memory=1.5, check_integrity=True, redis_url="redis://:secret@a"):
        given = {name.removeprefix("OCTAVO_").lower(): value for name, value in each.items() if value}
        settings = WorkerSettings(**{name: value for name, value in given.items() if name != "cuda_visible_devices"})
        assert (settings.model, settings.kv_memory, settings.check_integrity) == ("folder", 1.5, True)
        assert settings.redis_url == "redis://:secret@a"
        assert (settings.replicas, settings.devices) == (1, None)


@pytest.mark.usefixtures("machine")
def test_each_has_a_port_for_metrics_of_its_own() -> None:
    for flags in ({"device": "cpu"}, {}):
        ports = [each["OCTAVO_METRICS_PORT"] for each in told(replicas=3, metrics_port=9400, **flags)]
        assert ports == ["9400", "9401", "9402"]
    assert all(each.get("OCTAVO_METRICS_PORT", "0") == "0" for each in told(replicas=2))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"replicas": 5}, "--replicas 5 of 1 GPU each: there are 4; give fewer"),
        ({"replicas": 3, "tensor_parallel": 2}, "--replicas 3 of 2 GPUs each: there are 4; give fewer"),
        ({"devices": "0", "tensor_parallel": 2}, "--devices 0 is enough for 0 workers of 2 GPUs each"),
        ({"devices": "0,1", "replicas": 3}, "--devices 0,1 is enough for 2 workers of 1 GPU each, not for 3"),
        ({"devices": "0,1", "device": "cpu"}, "--devices names GPUs, but --device cpu uses none"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("machine")
def test_what_cannot_be_is_refused(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReplicasRefused, match=sentence):
        told(**flags)


def pids(connection: redis.Redis) -> set[int]:
    """Process ids of the workers that serve."""
    keys = Keys()
    data = [connection.get(keys.worker(worker.decode())) for worker in connection.zrange(keys.workers, 0, -1)]
    found = [wire.decode_worker(each) for each in data if each is not None]
    return {info.pid for info in found if psutil.pid_exists(info.pid)}


@pytest.mark.full
def test_one_is_killed_and_comes_back_and_the_other_notices_nothing(
    redis_url: str, redis_sync: redis.Redis, tmp_path: Path
) -> None:
    """Started in a model's folder, as people do: modules that lie there are not imported."""
    for name in ("torch.py", "msgspec.py", "redis.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise SystemExit(1)\n")
    flags = {"redis-url": redis_url, "device": "cpu", "replicas": 2, "num-blocks": 64, "lease": 1}
    command = [sys.executable, "-P", "-m", "octavo_worker", *(f"--{name}={value}" for name, value in flags.items())]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log, cwd=tmp_path) as replicas:
        eventually(lambda: len(pids(redis_sync)) == 2)
        first, second = sorted(pids(redis_sync))
        assert psutil.Process(first).ppid() == psutil.Process(second).ppid() == replicas.pid
        queue = known_queue(redis_sync)
        jobs = [queue.submit((5, 6, number), seed=number, sampling={"max_tokens": 90}) for number in range(12)]
        psutil.Process(first).kill()
        assert all(queue.wait(job).status is JobStatus.COMPLETED for job in jobs)
        eventually(lambda: len(pids(redis_sync) - {first}) == 2)
        assert second in pids(redis_sync)
        replicas.send_signal(signal.SIGTERM)
        assert replicas.wait(STALL_S) == 0
    assert not pids(redis_sync)
    ends = re.findall(rb"worker-\d ended with exit code (-?\d+); starting it again", (tmp_path / "log").read_bytes())
    assert ends == [b"-9"]
    assert not (tmp_path / "imported").exists()


@pytest.mark.full
def test_a_model_that_no_worker_can_load_ends_the_command(redis_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "octavo_worker", "--replicas=2", f"--redis-url={redis_url}", f"--model={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=STALL_S, check=False)
    assert ended.returncode == 1
    assert "no worker can be kept running" in ended.stderr
    assert "octavo worker:" in ended.stderr
