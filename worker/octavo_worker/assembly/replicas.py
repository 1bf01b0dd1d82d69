"""`octavo worker --replicas N`: several workers of one model under one command, each restarted by itself."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from octavo.service.children import Child, restart_delay
from octavo.service.console import err
from octavo.service.service import device_groups, gpus
from octavo.service.service_log import ServiceLog
from octavo_worker.contract.options import WorkerOptions

STEADY_S = 30.0
"""A worker that ran for so long did not fail at its start."""
MOST_FAILURES = 3
BEYOND_GRACE_S = 5.0


class ReplicasRefused(Exception):
    """The message says why there cannot be as many, and what to give."""


def environments(options: WorkerOptions, flags: Mapping[str, Any]) -> list[dict[str, str]]:
    """Environments of the replicas beside this process's own: the flags, GPUs, or a share of the cores. Raises
    `ReplicasRefused`."""
    given = {name: value for name, value in flags.items() if value is not None and name not in ("replicas", "devices")}
    shared = {f"OCTAVO_{name.upper()}": str(value) for name, value in given.items()}
    shared |= {"OCTAVO_REPLICAS": "1", "OCTAVO_DEVICES": ""}
    groups = _gpus_of_each(options)
    if groups:
        return _with_ports([shared | {"CUDA_VISIBLE_DEVICES": group} for group in groups], options.metrics_port)
    if options.engine.threads is None:
        cores = len(os.sched_getaffinity(0))
        shared["OCTAVO_THREADS"] = str(max(1, cores // (options.replicas * options.engine.tensor_parallel)))
    return _with_ports([dict(shared) for _ in range(options.replicas)], options.metrics_port)


def _with_ports(each: list[dict[str, str]], first: int) -> list[dict[str, str]]:
    """Each with a port for Prometheus of its own, if the first has one."""
    if not first:
        return each
    return [environment | {"OCTAVO_METRICS_PORT": str(first + place)} for place, environment in enumerate(each)]


def _gpus_of_each(options: WorkerOptions) -> list[str]:
    """Empty where there is none to share out."""
    ranks, asked = options.engine.tensor_parallel, options.replicas
    if options.engine.device == "cpu":
        if options.devices is not None:
            raise ReplicasRefused("--devices names GPUs, but --device cpu uses none; give --replicas instead.")
        return []
    named = gpus() if options.devices is None else [name.strip() for name in options.devices.split(",")]
    groups = device_groups([name for name in named if name], ranks)
    if options.devices is None:
        if named and asked > len(groups):
            raise ReplicasRefused(
                f"--replicas {asked} of {ranks} GPU{'s' * (ranks > 1)} each: there are {len(named)}; give fewer."
            )
        return groups[:asked]
    if not groups or (asked > 1 and asked != len(groups)):
        raise ReplicasRefused(
            f"--devices {options.devices} is enough for {len(groups)} worker{'s' * (len(groups) != 1)} of {ranks} "
            f"GPU{'s' * (ranks > 1)} each, not for {asked}; leave --replicas out, or name more GPUs."
        )
    return groups


class Replicas:
    """Workers as children. A worker that ends is started again, after a pause that grows with its failures; the others
    notice nothing of it but its jobs."""

    def __init__(self, environments: list[dict[str, str]], log: ServiceLog, grace_s: float) -> None:
        self._events: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._log, self._grace_s = log, grace_s
        command = [sys.executable, "-P", "-m", "octavo_worker"]
        self.workers = [
            Child(f"worker-{number}", command, environment, log=log, on_exit=self._events.put)
            for number, environment in enumerate(environments, 1)
        ]
        self._began = dict.fromkeys(self.workers, 0.0)
        self._failures = dict.fromkeys(self.workers, 0)
        self._due: dict[Child, float] = {}

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C, which workers answer by giving their jobs back; a second one kills them. Returns the
        exit status: 1 if no worker can be kept running."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        try:
            for worker in self.workers:
                self._start(worker)
            while not all(failures >= MOST_FAILURES for failures in self._failures.values()):
                self._wait()
            self._log.say("no worker can be kept running")
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            self._stop()

    def _start(self, worker: Child) -> None:
        self._began[worker] = time.monotonic()
        worker.start()

    def _wait(self) -> None:
        """For the end of a worker, or for the time to start one again."""
        now = time.monotonic()
        for worker in [worker for worker, due in self._due.items() if due <= now]:
            del self._due[worker]
            self._start(worker)
        try:
            ended = self._events.get(timeout=max(0.0, min(self._due.values()) - now) if self._due else None)
        except queue.Empty:
            return
        if ended.returncode is not None and ended not in self._due:
            self._ended(ended)

    def _ended(self, worker: Child) -> None:
        steady = time.monotonic() - self._began[worker] > STEADY_S
        self._failures[worker] = 1 if steady else self._failures[worker] + 1
        delay = restart_delay(self._failures[worker])
        self._log.say(f"{worker.name} ended with exit code {worker.returncode}; starting it again in {delay:.0f} s")
        self._due[worker] = time.monotonic() + delay

    def _stop(self) -> None:
        try:
            for worker in self.workers:
                worker.terminate()
            for worker in self.workers:
                worker.wait(self._grace_s + BEYOND_GRACE_S)
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.kill()


def run_replicas(options: WorkerOptions, flags: Mapping[str, Any]) -> int:
    """The exit status. Raises `ReplicasRefused`."""
    told = environments(options, flags)
    log = ServiceLog(err, "worker")
    if options.log_format == "auto":
        told = [each | {"OCTAVO_LOG_FORMAT": log.format} for each in told]
    return Replicas(told, log, options.grace).run()
