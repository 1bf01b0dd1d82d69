"""Waiting for something that happens elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

STALL_S = 300.0
"""Ends a test that hangs. It measures nothing: no wait takes so long, even on a machine with much else to do."""


async def until(condition: Callable[[], Any], seconds: float = STALL_S) -> Any:
    """The first truthy value of `condition`, which may be a coroutine function. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.02)


def eventually(condition: Callable[[], Any], seconds: float = STALL_S, message: str = "it never happened") -> Any:
    """The first truthy value of `condition`, for tests without an event loop. Raises AssertionError."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, message
        time.sleep(0.01)
    return value
