"""How `octavo up` spreads workers over what the machine has."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from octavo.queue import local
from octavo.queue.local import LocalService
from octavo.service.ports import is_free
from octavo.service.service import Plan, Service, gpus
from octavo.terms.errors import OctavoError

PLAN = Plan("demo", 3, "127.0.0.1", 8000, None)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OCTAVO_DEVICE", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_each_worker_gets_one_gpu_in_turn() -> None:
    workers = Service(PLAN, "redis://localhost", None).workers
    assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "1", "0"]


@pytest.mark.usefixtures("two_gpus")
def test_the_gpus_that_were_chosen_are_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert gpus() == ["5", "7"]
    monkeypatch.setenv("OCTAVO_DEVICE", "cpu")
    assert gpus() == []


def test_without_a_gpu_the_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_DEVICE", "cpu")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    workers = Service(PLAN, "redis://localhost", None).workers
    assert [worker.environment["OCTAVO_THREADS"] for worker in workers] == ["4", "4", "4"]
    assert all("CUDA_VISIBLE_DEVICES" not in worker.environment for worker in workers)


def test_each_worker_has_a_port_for_metrics_beside_that_of_the_clerk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_DEVICE", "cpu")
    assert all("OCTAVO_METRICS_PORT" not in each.environment for each in Service(PLAN, "redis://x", None).workers)
    monkeypatch.setenv("OCTAVO_METRICS_PORT", "9400")
    workers = Service(PLAN, "redis://localhost", None).workers
    assert [worker.environment["OCTAVO_METRICS_PORT"] for worker in workers] == ["9401", "9402", "9403"]


@pytest.mark.usefixtures("two_gpus")
def test_ranks_of_a_worker_get_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,4,5,6")
    workers = Service(replace(PLAN, tensor_parallel=2), "redis://localhost", None).workers
    assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0,1", "4,5", "0,1"]
    assert {worker.environment["OCTAVO_TENSOR_PARALLEL"] for worker in workers} == {"2"}


def test_ranks_share_their_worker_s_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_DEVICE", "cpu")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    workers = Service(replace(PLAN, tensor_parallel=2), "redis://localhost", None).workers
    assert [worker.environment["OCTAVO_THREADS"] for worker in workers] == ["2", "2", "2"]


def test_how_to_guess_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command, plans = import_module("octavo.cli.up"), list[Plan]()

    def interrupted(plan: Plan, log: object) -> None:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "service", interrupted)
    monkeypatch.setattr(local, "running", lambda: None)
    for speculate in (None, "draft:demo-draft"):
        command.up(model="demo", workers=1, host="127.0.0.1", port=8000, speculate=speculate, data_dir=tmp_path)
    given = [Service(plan, "redis://localhost", None).workers[0].environment for plan in plans]
    assert given[1]["OCTAVO_SPECULATE"] == "draft:demo-draft"
    assert given[0].get("OCTAVO_SPECULATE") == os.environ.get("OCTAVO_SPECULATE")


def test_workers_may_all_be_elsewhere() -> None:
    assert Service(replace(PLAN, workers=0), "redis://localhost", None).workers == []


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_the_address_is_one_that_a_client_can_ask(host: str, url: str) -> None:
    assert replace(PLAN, host=host).api_url == url


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_port_is_free_until_somebody_listens(host: str, family: socket.AddressFamily) -> None:
    try:
        taken = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = taken.getsockname()[1]
    with taken:
        assert not is_free(host, port)
    assert is_free(host, port)


def test_a_state_file_of_another_process_with_that_number_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_STATE_DIR", str(tmp_path))
    mine = LocalService(pid=os.getpid(), redis_url="redis://x", api_url="http://x", model="demo")
    local.publish(mine)
    found = local.running()
    assert found is not None
    (tmp_path / "up.json").write_text(found.model_copy(update={"born": "before the last boot 17"}).model_dump_json())
    assert local.running() is None


def test_without_a_place_for_its_state_octavo_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    service = LocalService(pid=os.getpid(), redis_url="redis://x", api_url="http://x", model="demo")
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(OctavoError, match=r"Not a directory.*OCTAVO_STATE_DIR"):
        local.publish(service)
    for name in ("OCTAVO_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", classmethod(nowhere))
    with pytest.raises(OctavoError, match="OCTAVO_STATE_DIR"):
        local.publish(service)
    assert local.running() is None
