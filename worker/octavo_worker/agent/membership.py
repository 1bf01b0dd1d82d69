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
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import msgspec
import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from octavo.queue import wire
from octavo.queue.calls import Transition, run
from octavo.queue.connection import answered, connect_sync, outage, refusal
from octavo.queue.fleet import describe_mix, live_workers, mixed_models
from octavo.queue.protocol import Cell
from octavo.queue.roles import lacking
from octavo.terms.errors import NameTaken
from octavo.terms.sampling import SamplingDefaults
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


@dataclass(frozen=True)
class Served:
    """A model as it is announced: the names that jobs may ask for, that of its queue first, its default sampling,
    whether it has a tokenizer, and the switches of thinking that its template reads."""

    names: tuple[str, ...]
    sampling: SamplingDefaults
    has_tokenizer: bool
    switches: tuple[str, ...] = ()


class Membership:
    """The worker's place in the fleet: its model's card, its heartbeat's content, and its share of reaping."""

    def __init__(
        self, connection: redis.asyncio.Redis, cell: Cell, redis_url: str, served: Served, *, lease_ms: int
    ) -> None:
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._connection = connection
        self._cell = cell
        self._redis_url = redis_url
        self._served = served
        self._model, *self._aliases = served.names
        self._lease_ms = lease_ms
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

    async def register(self, limits: Ready, digest: str, describe: Callable[[], WorkerInfo]) -> None:
        """Make the model known: jobs for it are accepted from now on. Raises NameTaken."""
        self._limits, self.digest = limits, digest
        while True:
            try:
                await self._register(describe)
            except (RedisError, OSError) as error:
                self._complain(error)
                await asyncio.sleep(_KNOWN_EVERY_S)
                await self.reach_server()
            else:
                return

    async def _register(self, describe: Callable[[], WorkerInfo]) -> None:
        assert self._limits is not None
        call = self._cell.register_model(
            self._card(self._limits),
            worker_id=self.worker_id,
            lease_ms=self._lease_ms,
            info=wire.encode_worker(describe()),
        )
        await run(self._connection, call)

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
        if isinstance(error, ResponseError):
            self._say_once(f"this worker cannot announce its model: {told}")
        else:
            self._told = told

    def _say_once(self, problem: str) -> None:
        if problem != self._told:
            log.error("%s", problem)
        self._told = problem

    async def stay_known(self, describe: Callable[[], WorkerInfo]) -> None:
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
                if not await self._is_known():
                    await self._register(describe)
                    log.warning("the server has forgotten the model %s: told it again", self._model)
            except NameTaken as error:  # while this worker was away
                self._say_once(f"this worker cannot announce its model: {error.message}")
            except (RedisError, OSError) as error:
                self._complain(error)

    async def _is_known(self) -> bool:
        """Raises redis-py's errors."""
        keys = self._cell.keys
        pipeline = self._connection.pipeline(transaction=False)
        pipeline.hexists(keys.models, self._model)
        pipeline.hexists(keys.traits, self._model)
        if self._aliases:
            pipeline.hmget(keys.aliases, self._aliases)
        async with answered():
            found = await pipeline.execute(raise_on_error=False)
        model, traits, *rest = found  # an error is what stands in the place of a key: registering mends it
        announced = rest[0] if rest and isinstance(rest[0], list) else [None] * len(self._aliases)
        own = self.worker_id.encode()
        return model == traits == 1 and all(own in (words or b"").split()[1:] for words in announced)

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
            has_tokenizer=self._served.has_tokenizer,
            created_at=time.time(),
            quantization=limits.quantization,
            sampling=self._served.sampling,
            aliases=tuple(self._aliases),
            switches=self._served.switches,
        )


def _lacking(url: str) -> list[str]:
    with connect_sync(url) as connection:
        return lacking(connection, "worker")["worker"]
