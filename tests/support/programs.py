"""Programs of other languages, as processes of a test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from waiting import STALL_S


@asynccontextmanager
async def run_program(
    *words: str, folder: Path | None = None, inherits: bool = True, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """It has pipes for its output and errors, and ends with the block. Without `inherits`, the variables are all of its
    environment."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=(dict(os.environ) if inherits else {}) | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        async with asyncio.timeout(STALL_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
