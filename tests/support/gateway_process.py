"""A gateway as a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from forked import Forked, light_server
from waiting import STALL_S, until


class GatewayProcess:
    """`python -m octavo_gateway`, a fork of a server that has imported it; with `own_start` as in production. Leaving
    the context kills it."""

    def __init__(self, redis_url: str, log: Path, *flags: str, own_start: bool = False) -> None:
        words = ["-m", "octavo_gateway", "--port", "0", "--redis-url", redis_url, *flags]
        self._log = log
        self.process: Forked | subprocess.Popen[bytes]
        with log.open("wb") as output:
            if own_start:
                self.process = subprocess.Popen([sys.executable, *words], stdout=output, stderr=output)
            else:
                self.process = Forked(light_server().address, words, out=output.fileno(), err=output.fileno())

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

    async def stop(self, seconds: float = STALL_S) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, seconds)
