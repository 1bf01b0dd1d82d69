"""Grammars are tried in processes of their own. Needs the extra `grammar`.

The library's limits do not stop every explosion of time or memory, and only a process can be ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from octavo.dialects.grammar.cpu_clock import clock_of_process
from octavo.dialects.grammar.grammars import VALIDATION_S, Grammar, GrammarError, refused, source, too_slow
from octavo.terms.errors import Busy

PATIENCE_S = 30.0
"""Seconds after which a process that was not given the time that a grammar may take tells nothing about the grammar."""

_LENGTH = struct.Struct(">I")
_LOOK_S = 0.05  # at how long a process has computed, and whether anyone still asks
_USES = 200  # of a process, whose memory is limited in all
_TRIES = 3  # of a grammar whose processes something else ended
_OUT_OF_MEMORY = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP)


class _Ended(Exception):
    """The process ended instead of answering."""


class NotWanted(Exception):
    """No request waits for the answer any more."""


def _wanted() -> bool:
    return True


class Trial:
    """A process of `octavo.dialects.grammar.trial`. Starting one takes 0.2 s, an answer milliseconds."""

    def __init__(self) -> None:
        self.uses = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.dialects.grammar.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdout is not None
        self._poll = select.poll()
        self._poll.register(self._process.stdout, select.POLLIN)
        self._computed = clock_of_process(self._process.pid)

    def attempt(
        self, text: bytes, limit_s: float, is_wanted: Callable[[], bool], patience_s: float
    ) -> tuple[bool, list[str]]:
        """True if the grammar is refused, and the library's messages. Raises TimeoutError where that took more than
        `limit_s` of a processor, Busy, NotWanted, _Ended."""
        self.uses += 1
        most, latest = self._computed() + limit_s, time.monotonic() + patience_s

        def check() -> None:
            if not is_wanted():
                raise NotWanted
            if self._computed() >= most:
                raise TimeoutError
            if time.monotonic() >= latest:
                raise Busy(f"no time was left in {patience_s:g} s to try the grammar: retry later")

        self._write(_LENGTH.pack(len(text)) + text, check)
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, check))
        refused, messages = json.loads(self._read(length, check))
        return refused, messages

    def _write(self, data: bytes, check: Callable[[], None]) -> None:
        assert self._process.stdin is not None
        pipe, room = self._process.stdin.fileno(), select.poll()
        os.set_blocking(pipe, False)
        room.register(pipe, select.POLLOUT)
        while data:
            while not room.poll(_LOOK_S * 1e3):
                check()
            try:
                data = data[os.write(pipe, data) :]
            except (BrokenPipeError, ConnectionResetError):
                raise _Ended from None

    def _read(self, count: int, check: Callable[[], None]) -> bytes:
        assert self._process.stdout is not None
        read = b""
        while len(read) < count:
            while not self._poll.poll(_LOOK_S * 1e3):
                check()
            piece = self._process.stdout.raw.read(count - len(read))  # type: ignore[attr-defined]
            if not piece:
                raise _Ended
            read += piece
        return read

    def close(self) -> tuple[int, str]:
        """End it. Its status, and what it said last."""
        if self._process.poll() is None and not self._has_ended():
            self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        self._errors.seek(0)
        with self._errors:
            return status, self._errors.read().decode(errors="replace")

    def _has_ended(self) -> bool:
        """True if it has closed its output, which is the last thing it does: its own status is wanted then."""
        assert self._process.stdout is not None
        return any(event & select.POLLHUP for _, event in self._poll.poll(0))


class Trials:
    """Tries grammars, in as many processes as there are threads that ask at once; idle ones wait for the next.

    Knows no vocabulary: names of special tokens are found out by a worker.
    """

    def __init__(self) -> None:
        self._idle: list[Trial] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def validate(
        self,
        grammar: Grammar,
        *,
        limit_s: float = VALIDATION_S,
        is_wanted: Callable[[], bool] = _wanted,
        patience_s: float = PATIENCE_S,
    ) -> list[str]:
        """The library's warnings about a grammar. Raises GrammarError if it does not compile, or takes more than
        `limit_s` of a processor; Busy if this machine cannot tell; RuntimeError if none can be tried here at all;
        NotWanted as soon as `is_wanted` says so."""
        text = source(grammar).encode()
        failed, messages = self._attempt(text, limit_s, is_wanted, patience_s)
        if failed:
            raise refused(grammar, messages[0])
        return messages

    def _attempt(
        self, text: bytes, limit_s: float, is_wanted: Callable[[], bool], patience_s: float
    ) -> tuple[bool, list[str]]:
        killed = 0
        while killed < _TRIES:
            trial = self._take()
            try:
                answer = trial.attempt(text, limit_s, is_wanted, patience_s)
            except TimeoutError:
                trial.close()
                raise too_slow(limit_s) from None
            except (Busy, NotWanted):
                trial.close()
                raise
            except _Ended:
                killed += _was_killed(trial)
            else:
                self._give(trial)
                return answer
        raise Busy("processes that try grammars are ended by something else here: retry later")

    def _take(self) -> Trial:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return Trial()
        except OSError as error:
            raise Busy(f"no process can be started to try the grammar: {error.strerror}: retry later") from None

    def _give(self, trial: Trial) -> None:
        with self._lock:
            if is_kept := trial.uses < _USES and not self._is_closed:
                self._idle.append(trial)
        if not is_kept:
            trial.close()

    def close(self) -> None:
        """End the idle ones, and others as soon as they have answered. All end by themselves when this process does."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for trial in idle:
            trial.close()

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _was_killed(trial: Trial) -> bool:
    """True if something else ended a process that ended at its first grammar. Raises GrammarError if that grammar did,
    RuntimeError if the process ended by itself."""
    status, said = trial.close()
    if status >= 0:
        raise RuntimeError(f"no grammar can be tried: {said}")
    if trial.uses == 1 and -status in _OUT_OF_MEMORY:
        raise GrammarError("the grammar took more memory than there is for one: make it simpler")
    return trial.uses == 1


def validate(grammar: Grammar, **limits: Any) -> list[str]:
    """`Trials.validate`, once."""
    with Trials() as trials:
        return trials.validate(grammar, **limits)
