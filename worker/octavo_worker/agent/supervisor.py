"""A worker's life: connect, load, serve, survive its engine, and leave without losing anything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import redis
import redis.asyncio
from pydantic import TypeAdapter, ValidationError
from redis.exceptions import RedisError

from octavo.queue import wire
from octavo.queue.address import parse_address
from octavo.queue.connection import connect, connect_sync
from octavo.queue.protocol import Cell
from octavo.terms.errors import NameTaken, ServerUnavailable
from octavo.terms.fields import ModelName
from octavo.terms.sampling import SamplingDefaults
from octavo.terms.workers import DIGEST_SHOWN, WorkerInfo
from octavo_worker.agent.agent import Agent
from octavo_worker.agent.child import EngineProcess
from octavo_worker.agent.claims.claimer import Claimer
from octavo_worker.agent.claims.overflow import Overflow
from octavo_worker.agent.digest import files_digest, served_digest
from octavo_worker.agent.failures import WorkerFailed, WrongSetting
from octavo_worker.agent.heartbeat import BEATS_A_LEASE, Heartbeat
from octavo_worker.agent.inbox import Inbox
from octavo_worker.agent.membership import Membership, ScriptCallCounts, Served
from octavo_worker.agent.memory import MemoryDesk
from octavo_worker.agent.pins import Pins
from octavo_worker.agent.prompts.tokens import Prompts
from octavo_worker.agent.sampling import sampling_defaults
from octavo_worker.agent.telemetry.port import serve_metrics
from octavo_worker.agent.telemetry.traces import trace_jobs
from octavo_worker.agent.tokenizing import TokenizerDesk
from octavo_worker.contract.files import ModelNotFound, model_folder, served_name
from octavo_worker.contract.lifetime import in_words
from octavo_worker.contract.messages import (
    BlockReport,
    MemoryReport,
    Ready,
    Refused,
    Shutdown,
    StepOutput,
)
from octavo_worker.contract.options import WorkerOptions

if TYPE_CHECKING:
    from octavo.service.tracing.tracing import Tracing

log = logging.getLogger(__name__)

ENGINE_PROGRAM = "octavo_worker.assembly.engine_process"

_FLUSH_S = 1.0
_ENGINE_EXIT_S = 3.0
_RESTART_PAUSE_S = 1.0  # loading is heavy: workers beside this one take over its jobs first
_MOST_FAILURES = 3
MOST_NAMES = 32


async def serve(options: WorkerOptions, *, engine_command: Sequence[str] | None = None) -> None:
    """Run a worker until SIGTERM or SIGINT. Raises WorkerFailed. `engine_command` replaces the engine (tests)."""
    names = _public_names(options)
    try:
        parse_address(options.redis_url)
    except ServerUnavailable as error:
        raise WrongSetting(f"--redis-url: {error}") from None
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `run`, as SIGTERM: a download's threads would be waited for
    try:
        folder = await asyncio.to_thread(model_folder, options.engine.model)
    except ModelNotFound as error:
        raise WrongSetting(str(error)) from error
    engine_options = msgspec.structs.replace(options.engine, model=str(folder)).to_json()
    program = [sys.executable, "-P", "-m", ENGINE_PROGRAM]  # -P: not from the folder that it was started in
    command = engine_command or [*program, "--options", engine_options]
    engine = await EngineProcess.start(command)  # it loads while the tokenizer does
    try:
        prompts = await asyncio.to_thread(Prompts, folder)
        is_read = options.generation_config == "auto"
        sampling = sampling_defaults(folder) if is_read else SamplingDefaults()
        served = Served(names, sampling, prompts.tokenizer is not None, prompts.switches)
    except BaseException as error:
        engine.kill()
        if isinstance(error, Exception):  # tokenizers raises nothing more special
            raise WorkerFailed(f"the tokenizer in {folder} cannot be read: {error}") from error
        raise
    async with connect(options.redis_url) as connection:
        read_files = partial(files_digest, folder, load_format=options.engine.load_format, seed=options.engine.seed)
        await Supervisor(options, served, connection, prompts, command, engine, read_files).run()


def _public_names(options: WorkerOptions) -> tuple[str, ...]:
    """The model's names in jobs, that of its queue first. Raises WorkerFailed."""
    told = options.served_name.split(",") if options.served_name else [served_name(options.engine.model)]
    names = tuple(dict.fromkeys(name.strip() for name in told))
    if len(names) > MOST_NAMES:
        raise WrongSetting(f"--served-name has {len(names)} names, of which {MOST_NAMES} are allowed")
    for name in names:
        try:
            TypeAdapter(ModelName).validate_python(name)
        except ValidationError as error:
            raise WrongSetting(
                f"no job can ask for a model called {name!r}: give a --served-name of letters, digits and . _ : / @ + -"
                ", or several of them with commas between"
            ) from error
    return names


class Supervisor:
    """Keeps one engine running and everything around it: leases, claims, publishing, the fleet's reaper."""

    _tracing: Tracing | None = None

    def __init__(
        self,
        options: WorkerOptions,
        served: Served,
        connection: redis.asyncio.Redis,
        prompts: Prompts,
        command: Sequence[str],
        engine: EngineProcess,
        read_files: Callable[[], bytes],
    ) -> None:
        """`command` starts another engine when `engine` has died. `read_files` gives the digest of the model's
        files."""
        self._options = options
        self._command = command
        self._read_files = read_files
        self._calls = ScriptCallCounts()
        self._cell = Cell(watch=self._calls.add)
        self._model = served.names[0]
        lease_ms = round(options.lease * 1000)
        self._membership = Membership(connection, self._cell, options.redis_url, served, lease_ms=lease_ms)
        worker_id = self._membership.worker_id
        self._changed, self._leave, self._leave_now = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._engine: EngineProcess | None = engine
        self._limits: Ready | None = None
        self._agent = Agent(connection, self._cell, prompts, changed=self._changed.set)
        self._agent.defaults = served.sampling
        serve_metrics(options, self._model, self._agent, self._calls, lambda: self._tracing is not None)
        loop = asyncio.get_running_loop()
        self._heartbeat = Heartbeat(
            self._heartbeat_connection,
            self._cell,
            worker_id,
            lease_s=options.lease,
            holding=self._agent.holding,
            info=lambda: wire.encode_worker(self._info()),
            answered=lambda held, reply: loop.call_soon_threadsafe(self._agent.on_heartbeat, held, reply),
            silent=lambda: loop.call_soon_threadsafe(self._agent.on_silence),
        )
        self._claimer = Claimer(
            connection,
            self._cell,
            model=self._model,
            worker_id=worker_id,
            lease_ms=lease_ms,
            digest=lambda: self._membership.digest,
            room=self._agent.room,
            changed=self._changed,
            take=self._agent.take,
        )
        self._overflow = Overflow(connection, self._cell.keys, self._agent, own=self._info, pause_s=options.lease)
        self._memory = MemoryDesk(worker_id, self._model, self._serving)
        self._pins = Pins(connection, self._cell.keys, prompts, self._model)
        self._tokenizer_desk = TokenizerDesk(connection, self._cell.keys, self._model, prompts)
        self._inbox = Inbox(
            connection,
            self._cell.keys,
            worker_id,
            answers=(self._memory.describe, self._memory.map_blocks),
            pins_changed=self._pins.sync,
        )

    def _serving(self) -> tuple[EngineProcess, Ready] | None:
        """The engine and its limits, once it has loaded."""
        return None if self._engine is None or self._limits is None else (self._engine, self._limits)

    async def run(self) -> None:
        """Serve until a signal asks to leave. Raises WorkerFailed if no engine can be kept running."""
        self._tracing = trace_jobs(self._options, self._model, self._membership.worker_id, self._agent)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        leaving = asyncio.create_task(self._leave.wait())
        claiming = asyncio.create_task(self._claimer.run())
        chores = [
            asyncio.create_task(chore)
            for chore in (
                self._keep_engine(),
                self._agent.publisher.run(),
                self._agent.progress.run(),
                self._membership.reap(self._agent.ends),
                self._membership.stay_known(self._info),
                self._watch(),
                self._inbox.run(),
                self._tokenizer_desk.run(),
                self._overflow.run(),
            )
        ]
        try:
            await _first_of(leaving, claiming, *chores)
            self._claimer.stop()
            await claiming
            await _first_of(asyncio.create_task(self._drain()), *chores)
        finally:
            await _cancel(leaving, claiming, *chores)
            await self._shut_down()

    def _on_signal(self) -> None:
        if self._leave.is_set():
            log.info("asked again: giving all jobs back now")
            self._leave_now.set()
        else:
            log.info("leaving: running jobs get %.0f s to finish", self._options.grace)
            self._leave.set()

    # The engine

    async def _keep_engine(self) -> None:
        """Start the engine again whenever it dies. Returns while leaving; raises WorkerFailed if it is hopeless."""
        reached = asyncio.create_task(self._membership.reach_server())  # a model is refused without a server, too
        try:
            await self._restart_engine(reached)
        finally:
            await _cancel(reached)

    async def _restart_engine(self, reached: asyncio.Task[None]) -> None:
        failures = 0
        while not self._leave.is_set():
            self._engine = engine = self._engine or await EngineProcess.start(self._command)
            began = time.monotonic()
            was_ready, refused = False, None
            reading = asyncio.create_task(asyncio.to_thread(self._read_files))  # while the engine loads
            reading.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # without an engine nothing asks for it
            try:
                ready = await engine.receive()
                if isinstance(ready, Refused):
                    refused = ready
                    raise EOFError
                assert isinstance(ready, Ready)
                await reached
                was_ready = True
                await self._serve_engine(engine, ready, self._digest(await _read(reading), ready))
            except EOFError:
                self._pins.detach()
                await self._agent.detach(crashed=await engine.crashed())
            status = await engine.ended(patience_s=_ENGINE_EXIT_S)  # it may still be writing why
            self._engine = None
            failures = 0 if was_ready else failures + 1
            if failures and ((self._limits is None and (refused or status > 0)) or failures == _MOST_FAILURES):
                raise WorkerFailed(_reason(refused, status, engine.last_words))
            log.error(
                "the engine died after %.1f s (%s), starting it again", time.monotonic() - began, in_words(status)
            )
            await asyncio.sleep(max(failures, _RESTART_PAUSE_S))

    def _digest(self, files: bytes, ready: Ready) -> str:
        length, defaults = self._options.engine.max_model_len, self._agent.defaults
        return served_digest(files, ready.numerics, ready.grammars, max_model_len=length, sampling=str(defaults))

    async def _serve_engine(self, engine: EngineProcess, ready: Ready, digest: str) -> None:
        """Raises EOFError when the engine dies."""
        if self._membership.digest not in ("", digest):  # the tokenizer is still the old one
            raise WorkerFailed(
                f"the files of {self._model} are others than at the start of this worker: start it again"
            )
        is_first, self._limits = self._limits is None, ready
        try:
            await self._membership.register(ready, digest, self._info)
        except NameTaken as error:
            if is_first:  # later its jobs go before its names: it says that one is gone, and serves on
                raise WorkerFailed(error.message) from None
        if not self._heartbeat.is_alive:
            self._heartbeat.start()
        if is_first:
            weights = f"weights in {ready.quantization}, " if ready.quantization else ""
            defaults = f", sampling by default {self._agent.defaults}" if self._agent.defaults.given() else ""
            log.info(
                "serving %s (%s): %s%d blocks of %d tokens in %s%s (%.1f s)",
                self._model, digest[:DIGEST_SHOWN], weights, ready.num_blocks, ready.block_size, ready.kv_dtype,
                defaults, ready.load_seconds,
            )  # fmt: skip
            await self._membership.compare(self._info())
        self._agent.attach(engine, ready)
        self._pins.attach(engine, ready)
        with contextlib.suppress(RedisError, OSError):  # the inbox tries again
            await self._pins.sync()
        while True:
            message = await engine.receive()
            if isinstance(message, StepOutput):
                self._agent.on_step(message)
                self._pins.on_step(message)
            elif isinstance(message, MemoryReport | BlockReport):
                self._memory.take(message)

    async def _watch(self) -> None:
        """Kill an engine that hangs; its death does the rest."""
        while True:
            await asyncio.sleep(min(1.0, self._options.watchdog / 4))
            silence = self._agent.silence()
            if silence > self._options.watchdog and self._engine is not None:
                log.error("the engine has work but said nothing for %.0f s: killing it", silence)
                self._engine.kill_hung()
                await asyncio.sleep(self._options.watchdog)

    # The server

    def _heartbeat_connection(self) -> redis.Redis:
        timeout = self._options.lease / BEATS_A_LEASE  # a server that hangs must not hide that the lease runs out
        return connect_sync(self._options.redis_url, answer_s=timeout, retries=0)

    def _info(self) -> WorkerInfo:
        return self._membership.info(
            self._agent.stats,
            jobs=len(self._agent.holding()),
            engine_pid=None if self._engine is None else self._engine.pid,
            pins=self._pins.outcomes(),
            script_calls=self._calls.sums(),
        )

    # The end

    async def _drain(self) -> None:
        """Let running jobs finish within the grace period, give back the rest."""
        ended, now = asyncio.create_task(self._agent.ended()), asyncio.create_task(self._leave_now.wait())
        try:
            await asyncio.wait([ended, now], timeout=self._options.grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(ended, now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await self._agent.publisher.sent()
        await self._agent.release()

    async def _shut_down(self) -> None:
        if self._heartbeat.is_alive:
            await asyncio.to_thread(self._heartbeat.stop)
            await self._membership.withdraw()
        if self._engine is not None:
            self._engine.send(Shutdown())
            await self._engine.ended(patience_s=_ENGINE_EXIT_S if self._limits is not None else 0.0)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)


def _reason(refused: Refused | None, status: int, last_words: str) -> str:
    """A sentence on an engine that does not start. The status of one that said why may be that of our own kill."""
    if refused is None:
        return f"the engine did not start ({in_words(status)}): {last_words}"
    return f"the engine did not start: {refused.reason}" if refused.is_fault else refused.reason


async def _read(digest: asyncio.Task[bytes]) -> bytes:
    try:
        return await digest
    except (OSError, ValueError) as error:
        raise WorkerFailed(f"the model's files cannot be read: {error}") from error


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Wait until one is done, and raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
