"""Threads for calls into native code that recurses with its input and may take long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

STACK_BYTES = 1 << 29  # address space, of which only what is touched takes memory


class DeepThreads:
    """`count` threads that run calls in the order of submission.

    They are daemons, unlike those of `ThreadPoolExecutor`: a call that never returns holds its thread, but not the end
    of the process.
    """

    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        before = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(count):
                threading.Thread(target=_serve, args=(self._calls,), daemon=True, name="deep").start()
        finally:
            threading.stack_size(before)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """End each thread after what was submitted before. Does not wait."""
        for _ in range(self._count):
            self._calls.put(None)

    def __enter__(self) -> DeepThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        future, call = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:  # a panic of Rust code is none of Exception
            future.set_exception(error)
        del item, future, call  # else the last result lives until the next call
