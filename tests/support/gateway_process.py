"""A gateway as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from waiting import until


class GatewayProcess:
    """`python -m octavo_gateway`. Leaving the context kills it."""

    def __init__(self, redis_url: str, log: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "octavo_gateway", "--port", "0", "--redis-url", redis_url, *flags]
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stderr=output, stdout=output, env={**os.environ})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def url(self) -> str:
        def found() -> str | None:
            assert self.process.poll() is None, self._log.read_text()
            return next(iter(re.findall(r"http://127.0.0.1:\d+", self._log.read_text())), None)

        return await until(found)

    async def stop(self, seconds: float = 10) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, seconds)
