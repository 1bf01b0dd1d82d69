"""Threads run the calls of their owners in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable

from waiting import STALL_S, eventually

from octavo.dialects.grammar.deep_threads import DeepThreads


def test_owners_take_turns_and_the_calls_of_each_keep_their_order() -> None:
    go_on, ran = threading.Event(), list[str]()
    with DeepThreads(1) as threads:
        first = threads.submit(lambda: go_on.wait(STALL_S), "a")
        eventually(first.running)

        def call(name: str) -> Callable[[], None]:
            return lambda: ran.append(name)

        futures = [threads.submit(call(name), name[0]) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]
        futures[1].cancel()
        go_on.set()
        for future in futures:
            if not future.cancelled():
                future.result(STALL_S)
    assert ran == ["a1", "b1", "c1", "b2", "a3"] or ran == ["a1", "b1", "c1", "a3", "b2"]


def test_no_owner_holds_all_threads() -> None:
    go_on = threading.Event()
    with DeepThreads(3) as threads:
        many = [threads.submit(lambda: go_on.wait(STALL_S), "many") for _ in range(5)]
        eventually(lambda: sum(future.running() for future in many) == 2)
        assert threads.submit(lambda: "at once", "other").result(STALL_S) == "at once"
        assert sum(future.running() for future in many) == 2
        go_on.set()
        assert all(future.result(STALL_S) for future in many)


def test_a_call_that_fails_harms_no_other() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with DeepThreads(1) as threads:
        assert isinstance(threads.submit(fail).exception(STALL_S), KeyboardInterrupt)
        assert threads.submit(lambda: 1).result(STALL_S) == 1


def test_closed_threads_end_behind_what_was_submitted() -> None:
    before = threading.active_count()
    threads = DeepThreads(2)
    futures = [threads.submit(lambda: 1) for _ in range(4)]
    threads.close()
    assert [future.result(STALL_S) for future in futures] == [1] * 4
    eventually(lambda: threading.active_count() <= before)
