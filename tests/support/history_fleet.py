"""A fleet of worker processes for fault tests, which are killed and paused."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import history_worker
from history import Accepted

from octavo.service.server import die_with_parent


@dataclass
class Fleet:
    """Real worker processes, and what was done to them."""

    url: str
    folder: Path
    options: tuple[str, ...] = ()
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0
    kills: int = 0
    pauses: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def start(self) -> None:
        self.started += 1
        name = f"w{self.started}"
        command = [sys.executable, history_worker.__file__, self.url, name, str(self.folder / f"{name}.log")]
        self.processes.append(subprocess.Popen([*command, *self.options], preexec_fn=die_with_parent()))

    def kill_one(self) -> None:
        process = self.processes.pop(random.randrange(2))  # one of the oldest: it has work
        process.kill()
        process.wait()
        self.kills += 1
        self.start()

    async def pause_one(self) -> None:
        """Long enough to lose every lease; then it wakes up and goes on writing."""
        process = self.processes[0]
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * history_worker.LEASE_MS / 1000)
        process.send_signal(signal.SIGCONT)
        self.pauses += 1

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def writes(self) -> list[Accepted]:
        """Writes that the workers saw accepted; a killed one may have left half a line."""
        lines = [
            line for log in self.folder.glob("*.log") for line in log.read_text().splitlines() if line.endswith("]")
        ]
        return [Accepted(*json.loads(line)) for line in lines]


@asynccontextmanager
async def fleet_of(url: str, folder: Path, size: int, *options: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(url, folder, options)
    try:
        for _ in range(size):
            fleet.start()
        yield fleet
    finally:
        fleet.stop()
