"""Registration of this worker and its model with the server, kept up to date."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from copy import copy

import msgspec
import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from octavo.queue.calls import Transition, run
from octavo.queue.connection import answered, connect_sync, outage, refusal
from octavo.queue.fleet import describe_mix, live_workers, mixed_models
from octavo.queue.protocol import Cell
from octavo.queue.roles import lacking
from octavo.terms.stats import EngineStats, ScriptCalls, WorkerStats
from octavo.terms.workers import ModelCard, PinOutcome, WorkerInfo
from octavo_worker.agent.ends import Ends
from octavo_worker.contract.messages import Ready

log = logging.getLogger(__name__)

_CONNECT_RETRY_S = 3.0
_KNOWN_EVERY_S = 1.0
_REAP_EVERY_S = 0.25  # what a takeover waits beyond the lease


class ScriptCallCounts:
    """Script calls since the worker's start, by script and outcome. Any thread may add: heartbeats have their own."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], ScriptCalls] = {}
        self._lock = threading.Lock()

    def add(self, transition: Transition) -> None:
        """A call is over."""
        script, outcome = transition.script, transition.outcome
        with self._lock:
            calls = self._sums.setdefault((script, outcome), ScriptCalls(script, outcome, 0, 0.0))
            calls.count += 1
            calls.seconds += transition.seconds

    def sums(self) -> tuple[ScriptCalls, ...]:
        """As they stand now."""
        with self._lock:
            return tuple(map(copy, self._sums.values()))


class Membership:
    """The worker's place in the fleet: its model's card, its heartbeat's content, and its share of reaping."""

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        cell: Cell,
        redis_url: str,
        model: str,
        *,
        has_tokenizer: bool,
        switches: tuple[str, ...],
    ) -> None:
        """`model` is the name that jobs ask for, `switches` are variables of thinking that its template reads."""
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._connection = connection
        self._cell = cell
        self._redis_url = redis_url
        self._model = model
        self._has_tokenizer = has_tokenizer
        self._switches = switches
        self._started_at = time.time()
        self._limits: Ready | None = None
        self._told = ""
        self.digest = ""

    def info(
        self,
        stats: EngineStats,
        *,
        jobs: int,
        engine_pid: int | None,
        pins: dict[str, PinOutcome],
        script_calls: tuple[ScriptCalls, ...],
    ) -> WorkerInfo:
        """Content of a heartbeat."""
        limits = self._limits
        counts = WorkerStats(
            **msgspec.structs.asdict(stats),
            jobs=jobs,
            num_blocks=0 if limits is None else limits.num_blocks,
            max_running=0 if limits is None else limits.max_running,
            kv_dtype="" if limits is None else limits.kv_dtype,
            engine_pid=engine_pid or 0,
            script_calls=script_calls,
        )
        return WorkerInfo(
            id=self.worker_id,
            model=self._model,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            stats=counts,
            pins=pins,
            numerics="" if limits is None else limits.numerics,
            digest=self.digest,
        )

    async def reach_server(self) -> None:
        """Wait until the server answers."""
        while True:
            try:
                async with answered():
                    await self._connection.ping()
            except (RedisError, OSError) as error:
                log.warning("trying again: %s", outage(self._redis_url, error))
                await asyncio.sleep(_CONNECT_RETRY_S)
            else:
                return

    async def register(self, limits: Ready, digest: str) -> None:
        """Make the model known: jobs for it are accepted from now on."""
        self._limits, self.digest = limits, digest
        card = self._card(limits)
        while True:
            try:
                await run(self._connection, self._cell.register_model(card))
            except (RedisError, OSError) as error:
                self._complain(error)
                await asyncio.sleep(_KNOWN_EVERY_S)
                await self.reach_server()
            else:
                return

    async def _check_rights(self) -> None:
        """Say at once what would show only with the first job. Raises redis-py's errors."""
        if missing := await asyncio.to_thread(_lacking, self._redis_url):
            log.error(
                "this worker's user on the server lacks %s: jobs wait, or readers hear of tokens late; "
                "docs/protocol.md has a rule for it",
                ", ".join(missing),
            )

    def _complain(self, error: Exception) -> None:
        """Logs a refusal, once. `reach_server` tells of a lost server."""
        told = refusal(self._redis_url, error)
        if told != self._told and isinstance(error, ResponseError):
            log.error("this worker cannot announce its model: %s", told)
        self._told = told

    async def stay_known(self) -> None:
        """For ever: a server that came back without its data refuses jobs for a model until it is registered again."""
        checked = False
        while True:
            await asyncio.sleep(_KNOWN_EVERY_S)
            if self._limits is None:
                continue
            try:
                if not checked:
                    await self._check_rights()
                    checked = True
                async with answered():
                    known = await self._connection.hexists(self._cell.keys.models, self._model)
                if not known:
                    await run(self._connection, self._cell.register_model(self._card(self._limits)))
                    log.warning("the server has forgotten the model %s: told it again", self._model)
            except (RedisError, OSError) as error:
                self._complain(error)

    async def compare(self, own: WorkerInfo) -> None:
        """Warn when workers of this model serve something else; the worker that starts last says it."""
        with contextlib.suppress(RedisError, OSError):
            workers = [*await live_workers(self._connection, self._cell.keys), own]
            if served := mixed_models(workers).get(self._model):
                log.warning(describe_mix(self._model, served))

    async def reap(self, ends: Ends) -> None:
        """For ever: free what dead workers hold, end what is late, and tell a server that came back of `ends`."""
        while True:
            await asyncio.sleep(_REAP_EVERY_S)
            try:
                reaped = await run(self._connection, self._cell.reap())
                if reaped.jobs:
                    log.info("%d jobs of lost workers or past their deadline cleared up", reaped.jobs)
                await ends.answered_by(reaped.server)
            except (RedisError, OSError):
                log.debug("the reaper cannot reach the server")

    async def withdraw(self) -> None:
        """The worker leaves: its heartbeat is no sign of life any more."""
        with contextlib.suppress(RedisError, OSError):
            await self._connection.delete(self._cell.keys.worker(self.worker_id))
            await self._connection.zrem(self._cell.keys.workers, self.worker_id)

    def _card(self, limits: Ready) -> ModelCard:
        return ModelCard(
            name=self._model,
            max_model_len=limits.max_model_len,
            vocab_size=limits.vocab_size,
            has_tokenizer=self._has_tokenizer,
            created_at=time.time(),
            quantization=limits.quantization,
            switches=self._switches,
        )


def _lacking(url: str) -> list[str]:
    with connect_sync(url) as connection:
        return lacking(connection, "worker")["worker"]
