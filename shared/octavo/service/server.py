"""The embedded server: a real Redis or Valkey of one's own, for one machine, development and tests.

Which one is used: `REDIS_URL` if set (then nothing is started), else the program that `octavo.service.server_program`
finds.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from octavo.service.ports import free_port
from octavo.service.server_program import find_binary
from octavo.terms.errors import ServerUnavailable

_START_TIMEOUT_S = 10.0
_LOCK_TIMEOUT_S = 3.0  # one that was killed may still be writing its file anew
_STOP_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1


@contextmanager
def server_url(*, port: int | None = None, data_dir: Path | None = None) -> Iterator[str]:
    """The address of a server to use: `REDIS_URL` if set, else an embedded one that lives as long as this context."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with EmbeddedServer(port=port, data_dir=data_dir) as server:
        yield server.url


class EmbeddedServer:
    """A server process on 127.0.0.1, started by `start()` or by entering the context.

    `port=None` takes a free one and keeps it over restarts. With a `data_dir` every write goes to an append-only
    file there (fsync once a second), so that a restart finds everything again; without, memory is all there is.
    On Linux the process dies with the thread that started it, even if that one is killed with SIGKILL.
    """

    def __init__(self, *, port: int | None = None, data_dir: Path | None = None, binary: Path | None = None) -> None:
        self._port = port
        self._data_dir = data_dir.resolve() if data_dir else None
        self._binary = binary or find_binary(self._data_dir)
        self._scratch: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:<port>/0`. Raises ServerUnavailable before the first start."""
        if self._port is None:
            raise ServerUnavailable("the embedded server was never started: call start() first")
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        """Id of the server's process. Raises `ServerUnavailable` before `start`."""
        if self._process is None:
            raise ServerUnavailable("the embedded server is not running: call start() first")
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it takes commands, however long it reads its append-only file. Raises ServerUnavailable
        with the server's own words if it does not."""
        if self._process is not None:
            return
        with self._open_lock() as lock:
            _lock(lock, self._directory())
            self._start_somewhere(lock)

    def _open_lock(self) -> BinaryIO:
        try:
            return (self._directory() / "lock").open("ab")
        except OSError as error:
            raise ServerUnavailable(
                f"the server cannot keep its data in {self._data_dir} ({error.strerror}): give it another folder"
            ) from error

    def _start_somewhere(self, lock: BinaryIO) -> None:
        attempts = 3 if self._port is None else 1  # another process may take a free port before the server does
        for attempt in range(attempts):
            port = self._port or free_port()
            try:
                self._spawn(port, lock)
            except ServerUnavailable:
                if attempt == attempts - 1:
                    raise
            else:
                self._port = port
                return

    def stop(self) -> None:
        """Shut down in order (an append-only file is written to the end). Does nothing if it is not running."""
        self._end(signal.SIGTERM)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def kill(self) -> None:
        """SIGKILL: what a crash of the machine's server looks like. `start()` brings it back."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """SIGKILL, then start again on the same port and data directory."""
        self.kill()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _spawn(self, port: int, lock: BinaryIO) -> None:
        directory = self._directory()
        log = directory / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._binary), *self._options(port, directory)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lock.fileno(),),  # it keeps the lock as long as it lives
                preexec_fn=die_with_parent(),
                start_new_session=True,  # Ctrl-C ends the parent, which then stops the server last
            )
        self._wait_until_it_serves(port, log)

    def _directory(self) -> Path:
        if self._data_dir is not None:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            return self._data_dir
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="octavo-server-"))
        return self._scratch

    def _options(self, port: int, directory: Path) -> list[str]:
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "save": "",
            "maxmemory-policy": "noeviction",
            "appendonly": "yes" if self._data_dir else "no",
            "appendfsync": "everysec",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _wait_until_it_serves(self, port: int, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        with redis.Redis(host="127.0.0.1", port=port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as probe:
            while self._process.poll() is None and time.monotonic() < deadline:
                try:
                    info = probe.info("server", "persistence")  # one of the few commands that loading does not refuse
                    if info["process_id"] == self._process.pid:
                        if not info["loading"]:
                            return
                        deadline = time.monotonic() + _START_TIMEOUT_S  # a long file is no reason to give up
                except (redis.RedisError, KeyError):
                    pass  # not listening yet
                time.sleep(0.01)
        self.kill()
        last_words = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise ServerUnavailable(f"{self._binary.name} did not start on port {port}: {last_words}")


def die_with_parent() -> Callable[[], None] | None:
    """The hook that the child runs before exec, so that no server survives a killed parent. None outside Linux."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec only plain calls are safe
    parent = os.getpid()

    def set_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal


def _lock(file: BinaryIO, directory: Path) -> None:
    """Two servers on one append-only file would lose each other's jobs. Raises ServerUnavailable."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ServerUnavailable(f"another server uses {directory}: stop that one first") from None
            time.sleep(0.05)
        else:
            return
