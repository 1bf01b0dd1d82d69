"""Run in an agent: its engines become forks too, or are other programs.

Arguments: the address of a fork server or "-", a program in the place of the engine's or "-", and what to run.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from asyncio.subprocess import PIPE, Process
from functools import partial
from typing import Any

from forked import Forked

start_any = asyncio.create_subprocess_exec


class ForkedEngine:
    """The part of `asyncio.subprocess.Process` that `octavo_worker.agent.child` takes."""

    def __init__(self, forked: Forked, stderr: asyncio.StreamReader) -> None:
        self.pid = forked.pid
        self.stderr = stderr
        self._forked = forked
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(forked.status, self._end, loop, forked.status)

    def _end(self, loop: asyncio.AbstractEventLoop, status: int) -> None:
        loop.remove_reader(status)
        self._forked.wait()
        self._ended.set()

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


async def start(address: str, engine: str, *command: str, **options: Any) -> Process | ForkedEngine:
    program, *words = command
    if program != sys.executable or options.get("stderr") != PIPE:
        return await start_any(*command, **options)
    if words[0] == "-P":  # a fork has its path already
        words = words[1:]
    if engine != "-" and words[:2] == ["-m", "octavo_worker.assembly.engine_process"]:
        words[:2] = [engine]
    if address == "-":
        return await start_any(program, *words, **options)
    ours, theirs = os.pipe()
    try:
        forked = Forked(
            address, words, err=theirs, others=options["pass_fds"], own_session=options["start_new_session"]
        )
    finally:
        os.close(theirs)
    reader = asyncio.StreamReader(limit=options["limit"])
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(ours, "rb"))
    return ForkedEngine(forked, reader)


def main() -> None:
    _, address, engine, *words = sys.argv
    asyncio.create_subprocess_exec = partial(start, address, engine)  # type: ignore[assignment]
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    run = runpy.run_module if is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__", **({"alter_sys": True} if is_module else {}))


main()
