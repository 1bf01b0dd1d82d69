"""The whole service on one machine: an embedded server, a gateway, workers, each its own process."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from octavo.service.children import Child, restart_delay
from octavo.service.controls import Owned, controls
from octavo.service.fleet import live_workers
from octavo.service.ports import refusal
from octavo.service.server import server_url
from octavo.service.service_log import ServiceLog
from octavo.terms.errors import OctavoError

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 25.0
_BEYOND_GRACE_S = 5.0


class ServiceError(OctavoError):
    """The service cannot start."""

    code = "service_error"


class WrongSetting(ServiceError):
    """It cannot start as it was asked to: a process of it refused its settings."""


_WRONG_SETTING = 2  # how a process ends that refuses them


@dataclass(frozen=True)
class Plan:
    """The processes to start. `data_dir=None`: nothing outlives the service. The secret is the gateway's alone."""

    model: str
    workers: int
    host: str
    port: int
    data_dir: Path | None
    environment: dict[str, str] = field(default_factory=dict)
    tensor_parallel: int = 1
    secret_file: Path | None = None
    controls: Path | None = None

    @property
    def api_url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class Service:
    """Running processes. Made by `service()`; ends with it."""

    def __init__(self, plan: Plan, redis_url: str, log: ServiceLog | None) -> None:
        self.plan = plan
        self.redis_url = redis_url
        self._events: queue.SimpleQueue[Child] = queue.SimpleQueue()
        shared = {"REDIS_URL": redis_url, "OCTAVO_REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1", **plan.environment}
        if log is not None:
            shared["OCTAVO_LOG_FORMAT"] = log.format
        gateway = {"OCTAVO_HOST": plan.host, "OCTAVO_PORT": str(plan.port)}
        if plan.secret_file is not None:
            gateway["OCTAVO_SECRET_FILE"] = str(plan.secret_file)
        if plan.controls is not None:
            gateway["OCTAVO_CONTROLS"] = str(plan.controls)
        worker = {
            "OCTAVO_MODEL": plan.model,
            "OCTAVO_THREADS": str(_threads(plan.workers * plan.tensor_parallel)),
            "OCTAVO_TENSOR_PARALLEL": str(plan.tensor_parallel),
            "OCTAVO_REPLICAS": "1",  # each is a child of this process
            "OCTAVO_DEVICES": "",
        }
        self._devices = device_groups(gpus(), plan.tensor_parallel)
        self._environment = worker | shared
        self._paused: set[int] = set()
        self._log = log
        self.gateway = self._child("gateway", "octavo_gateway", shared | gateway)
        self.workers = [self._new_worker(number) for number in range(1, plan.workers + 1)]

    def _new_worker(self, number: int) -> Child:
        devices = self._devices
        device = {"CUDA_VISIBLE_DEVICES": devices[(number - 1) % len(devices)]} if devices else {}
        return self._child(f"worker-{number}", "octavo_worker", self._environment | device | _metrics_port(number))

    def _child(self, name: str, module: str, environment: dict[str, str]) -> Child:
        command = [sys.executable, "-P", "-m", module]  # without the folder that it was started in
        return Child(name, command, environment, log=self._log, on_exit=self._events.put)

    def owned(self) -> list[Owned]:
        """The workers that run, or are stopped."""
        running = [worker for worker in list(self.workers) if worker.pid and worker.returncode is None]
        return [Owned(worker.name, worker.pid, worker.pid in self._paused) for worker in running]

    def add_worker(self) -> None:
        """Start one more, which counts as the others do from then on."""
        child = self._new_worker(len(self.workers) + 1)
        self.workers.append(child)
        child.start()

    def kill_worker(self, pid: int) -> None:
        """SIGKILL to all of its processes; it is started again as after any death. Raises LookupError."""
        self._signal(pid, signal.SIGKILL)
        self._paused.discard(pid)

    def pause_worker(self, pid: int) -> None:
        """Stop its processes where they are. Raises LookupError."""
        self._signal(pid, signal.SIGSTOP)
        self._paused.add(pid)

    def resume_worker(self, pid: int) -> None:
        """Let them go on. Raises LookupError."""
        self._signal(pid, signal.SIGCONT)
        self._paused.discard(pid)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if all(worker.pid != pid for worker in self.owned()):
            raise LookupError(pid)
        os.killpg(pid, number)  # a worker leads a session of its own

    @property
    def children(self) -> list[Child]:
        return [*self.workers, self.gateway]

    def start(self) -> None:
        """Start all and wait until jobs can run. Raises ServiceError with a child's last words if one ends."""
        for child in self.children:
            child.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._ready():
            for child in self.children:
                if child.returncode is not None:
                    words = "\n".join(child.last_lines)
                    kind = WrongSetting if child.returncode == _WRONG_SETTING else ServiceError
                    raise kind(f"{child.name} ended with exit code {child.returncode}:\n{words}")
            if time.monotonic() > deadline:
                raise ServiceError(f"the service was not ready within {_START_TIMEOUT_S:.0f} s: see its log above")
            time.sleep(0.2)

    def _ready(self) -> bool:
        if not self.workers:  # others come from elsewhere, when they like
            return _answers(f"{self.plan.api_url}/livez")
        pids = {worker.pid for worker in asyncio.run(live_workers(self.redis_url))}
        return all(child.pid in pids for child in self.workers) and _answers(f"{self.plan.api_url}/readyz")

    def name_of(self, pid: int) -> str:
        """Name of the child with this process id, or the id itself."""
        return next((child.name for child in self.children if child.pid == pid), f"process {pid}")

    def supervise(self, log: ServiceLog) -> None:
        """Restart every child that ends. Returns never: KeyboardInterrupt ends it."""
        while True:
            child = self._events.get()
            if child.returncode is None:
                continue  # the end of an earlier start
            delay = restart_delay(child.starts)
            log.say(f"{child.name} ended with exit code {child.returncode}; starting it again in {delay:.0f} s")
            time.sleep(delay)
            child.start()

    def stop(self) -> None:
        """Workers first, so that they hand their jobs back; the gateway last. A second Ctrl-C kills them."""
        try:
            for group in (self.workers, [self.gateway]):
                for pid in self._paused.copy():  # what is stopped hears nothing
                    with suppress(LookupError):
                        self.resume_worker(pid)
                for child in group:
                    child.terminate()
                for child in group:
                    child.wait(_stop_timeout_s())
        except KeyboardInterrupt:
            for child in self.children:
                child.kill()


@contextmanager
def service(plan: Plan, log: ServiceLog | None) -> Iterator[Service]:
    """The service, ready for jobs; stopped in order at the end. SIGTERM counts as Ctrl-C. Raises `ServiceError` for a
    port that is taken."""
    if (why := refusal(plan.host, plan.port)) is not None:
        raise ServiceError(why)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        with server_url(data_dir=plan.data_dir) as redis_url:
            running = Service(plan, redis_url, log)
            try:
                running.start()
                with nullcontext() if plan.controls is None else controls(plan.controls, running):
                    yield running
            finally:
                running.stop()
    finally:
        signal.signal(signal.SIGTERM, previous)


def gpus() -> list[str]:
    """The CUDA devices that workers may use, one each. Empty without a GPU and with OCTAVO_DEVICE=cpu."""
    if os.environ.get("OCTAVO_DEVICE") == "cpu":
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [device for device in visible.split(",") if device]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    return [str(n) for n, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def device_groups(devices: list[str], ranks: int) -> list[str]:
    """Devices of each worker of `ranks` ranks, as CUDA_VISIBLE_DEVICES names them. Left-over devices are in no
    group."""
    return [",".join(devices[at : at + ranks]) for at in range(0, len(devices) - ranks + 1, ranks)]


def _metrics_port(place: int) -> dict[str, str]:
    """A worker's port for Prometheus: `place` beyond the one that the environment gives to the gateway's clerk."""
    first = os.environ.get("OCTAVO_METRICS_PORT", "")
    return {"OCTAVO_METRICS_PORT": str(int(first) + place)} if first.isdigit() and int(first) else {}


def _threads(processes: int) -> int:
    """Threads of each process of an engine: the cores shared out, so that they do not fight over them."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, processes))


def _stop_timeout_s() -> float:
    """Seconds that a child has to end: more than the grace that workers have been told to give their jobs."""
    try:
        return max(_STOP_TIMEOUT_S, float(os.environ.get("OCTAVO_GRACE", 0)) + _BEYOND_GRACE_S)
    except ValueError:
        return _STOP_TIMEOUT_S


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
