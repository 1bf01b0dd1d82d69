"""Proof of life from a thread and a connection of its own, so that a busy event loop cannot cost the leases."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from redis import Redis
from redis.exceptions import RedisError

from octavo.queue.calls import run_sync
from octavo.queue.protocol import Cell, HeartbeatReply

log = logging.getLogger(__name__)

Holding = tuple[tuple[str, str], ...]
"""(job id, claim token) of every job that this worker holds."""

BEATS_A_LEASE = 4
_RETRY_S = 1.0  # below what the reaper grants owners after a restart of the server
SAFE_SHARE = 0.8
"""Share of the lease, by our own monotonic clock, for which a beat is trusted."""


class Heartbeat:
    """Beats four times a lease until stopped.

    `holding` and `info` are called in the thread; so are `answered`, with what was held and the reply, and `silent`,
    once when the last successful beat is so old that the leases may run out: from then on nothing may be written or
    claimed until `answered` comes again.
    """

    def __init__(
        self,
        connect: Callable[[], Redis],
        cell: Cell,
        worker_id: str,
        *,
        lease_s: float,
        holding: Callable[[], Holding],
        info: Callable[[], bytes],
        answered: Callable[[Holding, HeartbeatReply], object],
        silent: Callable[[], object],
    ) -> None:
        self._connect = connect
        self._cell = cell
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._holding = holding
        self._info = info
        self._answered = answered
        self._silent = silent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread; waits for a beat that is under way."""
        self._stopping.set()
        self._thread.join(self._lease_s)

    def _run(self) -> None:
        trusted = time.monotonic()
        fenced = False
        with self._connect() as connection:
            while not self._stopping.is_set():
                began = time.monotonic()
                pause = self._lease_s / BEATS_A_LEASE
                if self._beat(connection):
                    trusted, fenced = began, False
                elif not fenced and time.monotonic() - trusted > SAFE_SHARE * self._lease_s:
                    fenced = True
                    log.warning("no heartbeat got through: nothing is written until one does")
                    self._silent()
                if trusted != began:
                    pause = min(pause, _RETRY_S)
                self._stopping.wait(max(0.0, began + pause - time.monotonic()))

    def _beat(self, connection: Redis) -> bool:
        holding = self._holding()
        lease_ms = round(self._lease_s * 1000)
        try:
            call = self._cell.heartbeat(self._worker_id, holding, lease_ms=lease_ms, info=self._info())
            self._answered(holding, run_sync(connection, call))
        except (RedisError, OSError) as error:
            log.debug("heartbeat failed: %s", type(error).__name__)
            return False
        return True
