"""The engine's life: take messages, run steps while there is work, sleep on the socket when there is none."""

from __future__ import annotations

import time

from octavo_worker.contract.channel import EngineChannel
from octavo_worker.contract.messages import (
    Abort,
    AddRequest,
    DescribeBlocks,
    DescribeMemory,
    PinPrefix,
    Ready,
    Shutdown,
    ToEngine,
    UnpinPrefix,
)
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.grammar import Preparation
from octavo_worker.engine.kv.block_report import block_report
from octavo_worker.engine.kv.memory_report import memory_report
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.scheduler import Scheduler

_LOOK_S = 0.005  # at grammars that are being compiled, where nothing else is to do


class EngineLoop:
    """Serves one agent until it says `Shutdown` or closes its end.

    Messages are taken between steps, so an abort or a deadline acts before the step after the next: the results of an
    aborted request in steps in flight are dropped. A request with a grammar joins the others once that is compiled.
    A step that one sequence provably spoiled (`StepError`) costs that request. After any other error no state can be
    trusted: it leaves `run` and ends the process, and the agent hands all jobs to other workers.
    """

    def __init__(
        self,
        channel: EngineChannel,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        preparation: Preparation,
        overlap: bool = True,
        check_integrity: bool = False,
    ) -> None:
        self._channel = channel
        self._runner = runner
        self._scheduler = scheduler
        self._preparation = preparation
        self._pipeline = Pipeline(runner, scheduler, ahead=overlap)
        self._check_integrity = check_integrity
        self._stopping = False
        self._is_news = False  # an abort changed the state that the agent has seen

    def run(self, *, load_seconds: float = 0.0) -> None:
        """Announce the model, then serve. Returns when the agent is gone or wants the engine gone."""
        try:
            self._channel.send(self._ready(load_seconds))
            while not self._stopping:
                self._receive()
                self._step()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the agent is gone

    def _ready(self, load_seconds: float) -> Ready:
        limits = self._scheduler.limits
        runner = self._runner
        return Ready(
            max_model_len=limits.max_model_len,
            vocab_size=limits.vocab_size,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            kv_dtype=runner.kv_dtype,
            max_running=limits.max_running,
            enough_blocks=self._scheduler.kv.enough_blocks,
            load_seconds=load_seconds,
            numerics=runner.numerics,
            quantization=runner.quantization,
            grammars=self._preparation.library,
            gives_way=self._scheduler.gives_way,
            windows=self._scheduler.kv.window_limits,
        )

    def _receive(self) -> None:
        idle = self._pipeline.is_empty and not self._scheduler.has_requests
        if idle and self._check_integrity:
            self._scheduler.check_integrity()
        for message in self._channel.receive(wait=idle, timeout_s=_LOOK_S if len(self._preparation) else None):
            self._handle(message)
        self._take_prepared()

    def _take_prepared(self) -> None:
        if not len(self._preparation):
            return
        ready, failed = self._preparation.take()
        for message, matchers in ready:
            self._scheduler.add(message, matchers)
        for failure in failed:
            self._scheduler.refuse(failure)

    def _handle(self, message: ToEngine) -> None:
        match message:
            case AddRequest(grammar=None):
                self._scheduler.add(message)
            case AddRequest():
                if (failure := self._preparation.start(message)) is not None:
                    self._scheduler.refuse(failure)
            case Abort():
                self._abort(message)
            case PinPrefix():
                self._scheduler.pin(message)
            case UnpinPrefix():
                self._scheduler.kv.pinned.unpin(message.name)
            case DescribeMemory():
                self._channel.send(memory_report(self._scheduler, message.cells))
            case DescribeBlocks():
                self._channel.send(block_report(self._scheduler))
            case Shutdown():
                self._stopping = True

    def _abort(self, message: Abort) -> None:
        if not self._preparation.drop(message.id, message.index):
            self._scheduler.abort(message.id, message.index)
            self._is_news = True

    def _step(self) -> None:
        began = time.perf_counter()
        if self._pipeline.advance() or self._is_news or self._scheduler.has_output:
            self._is_news = False
            output = self._scheduler.take_output()
            output.stats.step_ms = (time.perf_counter() - began) * 1e3
            self._pipeline.times.report(output.stats)
            self._channel.send(output)
