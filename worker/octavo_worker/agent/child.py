"""The engine as a child process: how it is started, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from octavo_worker.contract.channel import AgentChannel
from octavo_worker.contract.lifetime import die_with, state_of
from octavo_worker.contract.messages import ToAgent, ToEngine

_LAST_LINES = 20
_LINE_LIMIT = 1 << 20
_EXIT_S = 1.0  # longer takes only one that writes its memory down: its jobs need not wait for that


class EngineProcess:
    """A running engine and the socket to it.

    It dies with this process, even if that is killed, and lives in a session of its own, so that Ctrl-C reaches only
    the agent. What it writes to stderr goes on to ours; the last lines are kept for the error message.
    """

    def __init__(self, process: Process, channel: AgentChannel) -> None:
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._process = process
        self._channel = channel
        self._is_hung = False
        self._oom_kills = _oom_kills()
        self._stderr = asyncio.create_task(self._forward_stderr())

    @classmethod
    async def start(cls, command: Sequence[str]) -> Self:
        """Start `command`, which learns the number of its socket's file descriptor from a last argument `--fd=N`."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                f"--fd={theirs.fileno()}",
                stdin=DEVNULL,
                stderr=PIPE,
                pass_fds=(theirs.fileno(),),
                preexec_fn=die_with(os.getpid()),
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
        return cls(process, await AgentChannel.open(ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last thing it said on stderr."""
        return next((line for line in reversed(self.last_lines) if line.strip()), "it said nothing")

    def send(self, message: ToEngine) -> None:
        """Never blocks. Messages to an engine that has just died vanish; `receive` tells of its death."""
        with contextlib.suppress(ConnectionError):
            self._channel.send_soon(message)

    async def receive(self) -> ToAgent:
        """Raises EOFError when the engine is gone."""
        return await self._channel.receive()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def kill_hung(self) -> None:
        """Its death counts as a crash, unless something has merely stopped it."""
        self._is_hung = not _is_stopped(self.pid)
        self.kill()

    async def crashed(self) -> bool:
        """True if an engine that is gone died of what it computed, and not because something killed it. The
        kernel does so for want of memory, which is the engine's own doing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                await self._process.wait()
        is_killed = self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
        return not is_killed or self._is_hung or _oom_kills() > self._oom_kills

    async def ended(self, *, patience_s: float) -> int:
        """The exit status, negative for the signal that killed it: ours, if it does not exit within `patience_s`.
        All of stderr has been read by then."""
        try:
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        status = await self._process.wait()
        await self._stderr
        self._channel.close()
        return status

    async def _forward_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line beyond the limit
                continue
            if not line:
                return
            text = line.decode(errors="replace")
            self.last_lines.append(text.rstrip())
            with contextlib.suppress(OSError):  # its reader is gone: the engine must not wait for us
                sys.stderr.write(text)
                sys.stderr.flush()


def _oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _is_stopped(pid: int) -> bool:
    """By a signal or a debugger."""
    with contextlib.suppress(OSError):
        return state_of(pid) in "Tt"
    return False
