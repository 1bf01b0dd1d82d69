"""The two directions of a connection: requests that are read, and bytes that a client takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

_HEAD_END = re.compile(rb"\n\r?\n")
_LOOKS = 4  # at a client that takes nothing, before it is let go


class Flow(FlowControl):
    """Reading goes on when its users ask for it, unless it is `held`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()

    def hold(self, held: bool) -> None:
        """Stop reading whatever else is asked, or let it go on."""
        self.held = held
        if held:
            self.pause_reading()


class Taking:
    """A watch on what a client takes. `gone` is called once it has taken no byte for `seconds`."""

    def __init__(self, transport: asyncio.Transport, seconds: float, gone: Callable[[], None]) -> None:
        transport.set_write_buffer_limits(high=0)  # so that the transport tells of every byte that waits
        self._transport = transport
        self._pause_s = seconds / _LOOKS
        self._gone = gone
        self._left = self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Bytes wait from now on."""
        self._left, self._looks = self._transport.get_write_buffer_size(), 0
        self._wait()

    def end(self) -> None:
        """None wait any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self.end()
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _look(self) -> None:
        left = self._transport.get_write_buffer_size()
        self._looks = self._looks + 1 if left >= self._left else 0
        self._left = left
        if self._looks < _LOOKS:
            self._wait()
        else:
            self._gone()


def after_heads(data: bytes | bytearray, most: int) -> int:
    """Where the head number `most` in `data` ends at the earliest; all of it if there are fewer. A blank line in a body
    counts as well, which only makes the pieces smaller."""
    for number, found in enumerate(_HEAD_END.finditer(data), 1):
        if number == most:
            return found.end()
    return len(data)
