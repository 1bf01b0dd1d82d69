"""Waiting for something that happens elsewhere."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first truthy value of `condition`, which may be a coroutine function. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.02)
