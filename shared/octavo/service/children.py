"""Child processes of `octavo up`: their logs with a name in front, their end as an event."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from octavo.service.server import die_with_parent
from octavo.service.service_log import ServiceLog

_RESTART_DELAY_S = (1.0, 30.0)


def restart_delay(failures: int) -> float:
    """Seconds before a child that has ended so many times in a row, once at least, is started again."""
    least, most = _RESTART_DELAY_S
    return min(most, least * 2.0 ** min(failures - 1, 10))


class Child:
    """A process that can be started again. `on_exit` is called from another thread when it has ended."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: ServiceLog | None,
        on_exit: Callable[[Child], None] | None = None,
    ) -> None:
        self.name = name
        self.starts = 0
        self.last_lines: deque[str] = deque(maxlen=20)
        self._command = list(command)
        self.environment = dict(environment)
        self._log = log
        self._on_exit = on_exit
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id, 0 if it was never started."""
        return self._process.pid if self._process else 0

    @property
    def returncode(self) -> int | None:
        """None while it runs, and before the first start."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        self.starts += 1
        self._process = subprocess.Popen(
            self._command,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent(),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops everything in order
        )
        for work in (self._copy_log, self._await_end):
            threading.Thread(target=work, args=(self._process,), name=self.name, daemon=True).start()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Until it has ended; after `timeout_s` seconds it is killed."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _copy_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.last_lines.append(line.rstrip())
            if self._log is not None:
                self._log.child(self.name, line.rstrip())

    def _await_end(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if self._on_exit is not None:
            self._on_exit(self)
