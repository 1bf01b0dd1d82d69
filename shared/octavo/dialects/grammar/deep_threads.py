"""Threads for calls into native code that recurses with its input and may take long."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

STACK_BYTES = 1 << 29  # address space, of which only what is touched takes memory

_Call = tuple[Future[Any], Callable[[], Any]]


class DeepThreads:
    """`count` threads that run calls. Their owners take turns, and none of several holds all threads; the calls of one
    run in the order of submission. A call whose future is cancelled before its turn does not run.

    They are daemons, unlike those of `ThreadPoolExecutor`: a call that never returns holds its thread, but not the end
    of the process.
    """

    def __init__(self, count: int) -> None:
        self._most = max(1, count - 1)  # calls of one owner at a time
        self._waiting: OrderedDict[Hashable, deque[_Call]] = OrderedDict()
        self._running: Counter[Hashable] = Counter()
        self._changed = threading.Condition()
        self._is_closed = False
        before = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(count):
                threading.Thread(target=self._serve, daemon=True, name="deep").start()
        finally:
            threading.stack_size(before)

    def submit(self, call: Callable[[], T], owner: Hashable = "") -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._waiting.setdefault(owner, deque()).append((future, call))
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """End each thread after what was submitted before. Does not wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __enter__(self) -> DeepThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while self._run_one():
            pass

    def _run_one(self) -> bool:
        """Run the call whose turn it is. False: none will come. Nothing of it stays here, as a result may be large."""
        turn = self._next_turn()
        if turn is None:
            return False
        owner, (future, call) = turn
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # a panic of Rust code is none of Exception
                future.set_exception(error)
        with self._changed:
            self._running[owner] -= 1
            self._running += Counter()  # without owners that have none
            self._changed.notify_all()
        return True

    def _next_turn(self) -> tuple[Hashable, _Call] | None:
        with self._changed:
            while (owner := self._next_owner()) is None:
                if self._is_closed and not self._waiting:
                    return None
                self._changed.wait()
            calls = self._waiting.pop(owner)
            call = calls.popleft()
            if calls:
                self._waiting[owner] = calls  # behind all others
            self._running[owner] += 1
            return owner, call

    def _next_owner(self) -> Hashable | None:
        return next((owner for owner in self._waiting if self._running[owner] < self._most), None)
