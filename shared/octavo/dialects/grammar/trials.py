"""Grammars are tried in processes of their own. Needs the extra `grammar`.

The library's limits do not stop every explosion of time or memory, and only a process can be ended.
"""

from __future__ import annotations

import json
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import Any

from octavo.dialects.grammar.grammars import VALIDATION_S, Grammar, GrammarError, refused, source, too_slow

_LENGTH = struct.Struct(">I")
_USES = 200  # of a process, whose memory is limited in all


class _Ended(Exception):
    """The process ended instead of answering."""


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

    def attempt(self, text: bytes, limit_s: float) -> tuple[bool, list[str]]:
        """True if the grammar is refused, and the library's messages. Raises TimeoutError, _Ended."""
        self.uses += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_LENGTH.pack(len(text)) + text)
            self._process.stdin.flush()
        except (BrokenPipeError, ConnectionResetError):
            raise _Ended from None
        deadline = time.monotonic() + limit_s
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        refused, messages = json.loads(self._read(length, deadline))
        return refused, messages

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        read = b""
        while len(read) < count:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                raise TimeoutError
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
        self._lock = threading.Lock()

    def validate(self, grammar: Grammar, *, limit_s: float = VALIDATION_S) -> list[str]:
        """The library's warnings about a grammar; `GrammarError` if it does not compile, or not within the limit;
        `RuntimeError` if none can be tried here."""
        text = source(grammar).encode()
        failed, messages = self._attempt(text, limit_s)
        if failed:
            raise refused(grammar, messages[0])
        return messages

    def _attempt(self, text: bytes, limit_s: float) -> tuple[bool, list[str]]:
        while True:
            trial = self._take()
            try:
                answer = trial.attempt(text, limit_s)
            except TimeoutError:
                trial.close()
                raise too_slow(limit_s) from None
            except _Ended:
                status, said = trial.close()
                if status >= 0:
                    raise RuntimeError(f"no grammar can be tried: {said}") from None
                if trial.uses == 1:
                    raise GrammarError("the grammar took more memory than there is for one: make it simpler") from None
            else:
                self._give(trial)
                return answer

    def _take(self) -> Trial:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Trial()

    def _give(self, trial: Trial) -> None:
        if trial.uses >= _USES:
            trial.close()
            return
        with self._lock:
            self._idle.append(trial)

    def close(self) -> None:
        """End the idle ones. They end by themselves when this process does."""
        with self._lock:
            idle, self._idle = self._idle, []
        for trial in idle:
            trial.close()

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def validate(grammar: Grammar, **limits: Any) -> list[str]:
    """`Trials.validate`, once."""
    with Trials() as trials:
        return trials.validate(grammar, **limits)
