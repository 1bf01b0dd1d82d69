"""The octavo command as people run it: processes of their own, a state directory of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import Forked, light_server
from waiting import STALL_S

OCTAVO = Path(__file__).parent / "octavo_program.py"


@dataclass(frozen=True)
class Cli:
    """Runs `octavo ...` against the service whose state lies in `state_dir`."""

    state_dir: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "OCTAVO_REDIS_URL")}
        return kept | {"OCTAVO_STATE_DIR": str(self.state_dir), "OCTAVO_LEASE": "1"}

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """As people start it."""
        command = [sys.executable, "-c", "from octavo.cli import main; main()", *arguments]
        return subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __call__(self, *arguments: str, code: int = 0, timeout: float = STALL_S) -> str:
        """Standard output. Fails unless the exit code is `code`."""
        out, err = self._run(*arguments, code=code, timeout=timeout)
        return out if code == 0 else out + err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self._run(*arguments, "--json", code=code)[0])

    def _run(self, *arguments: str, code: int, timeout: float = STALL_S) -> tuple[str, str]:
        """As a fork, which starts in milliseconds. Its output and its errors."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            words, streams = [str(OCTAVO), *arguments], {"out": out.fileno(), "err": err.fileno()}
            process = Forked(light_server().address, words, environment=self.environment, **streams)
            try:
                process.wait(timeout)
            finally:
                process.kill()
            said = out.seek(0) or out.read(), err.seek(0) or err.read()
        assert process.returncode == code, f"exit code {process.returncode}\n{said[0]}\n{said[1]}"
        return said


@dataclass(frozen=True)
class Up:
    """A running `octavo up`."""

    cli: Cli
    process: subprocess.Popen[str]
    port: int

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=STALL_S)
        assert not any("AssertionError" in stream for stream in said), said
        return self.process.returncode


def start_up(cli: Cli, workers: int = 2, flags: Sequence[str] = ()) -> Up:
    """`octavo up`, ready for jobs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = cli.start("up", "--port", str(port), "--workers", str(workers), *flags, start_new_session=True)
    deadline = time.monotonic() + STALL_S
    while not (cli.state_dir / "up.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"octavo up did not start:\n{process.communicate()}")
        time.sleep(0.1)
    return Up(cli, process, port)
