"""Keys that are pressed while a command draws."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


class Keys:
    """Keys in the order in which they were pressed; none where there is no terminal."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()

    async def wait(self, seconds: float) -> str:
        """The next key, or nothing after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._pressed.get()
        except TimeoutError:
            return ""

    def _read(self, file: int) -> None:
        for letter in os.read(file, 32).decode(errors="ignore"):
            self._pressed.put_nowait(letter)


@contextmanager
def pressed_keys() -> Iterator[Keys]:
    """Keys without a wait for the end of a line; the terminal is as before at the end."""
    keys = Keys()
    if not sys.stdin.isatty():
        yield keys
        return
    file, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    loop.add_reader(file, keys._read, file)
    try:
        yield keys
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
