"""Several streams on one terminal, and what their reader can say about them afterwards."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from octavo.client.handles import AsyncJob
from octavo.service.console import out

_LINES, _FEWEST_LINES = 14, 3
_COLUMNS = 36  # that an answer needs at least
_FRAME = 2  # lines of it above and below an answer, and columns with the blanks beside it on each side
_NOTES = 4  # lines below
_REFRESH_S = 0.05


@dataclass
class Answer:
    """One stream as its reader sees it. `gaps` counts events whose offset does not follow on the one before."""

    job: AsyncJob
    prompt: str
    seed: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    gaps: int = 0
    longest_wait_s: float = 0.0
    ended: bool = False
    milestone: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)  # so many tokens are there

    @property
    def speaker(self) -> str:
        return self.prompt.partition(":")[0]

    async def follow(self, changed: asyncio.Event) -> None:
        """Read the stream to its end; `changed` is set at every step."""
        last = None
        async for event in self.job.stream():
            now = time.monotonic()
            self.longest_wait_s = max(self.longest_wait_s, now - (last or now))
            last = now
            self.gaps += event.offset != len(self.token_ids) + len(event.token_ids)
            self.token_ids += event.token_ids
            self.text += event.text
            changed.set()
            if len(self.token_ids) >= self.milestone:
                self.reached.set()
        self.ended = True
        changed.set()
        self.reached.set()


class Screen:
    """Answers side by side on a terminal; line by line, each with its speaker in front, elsewhere."""

    def __init__(self, answers: list[Answer]) -> None:
        self.changed = asyncio.Event()
        self._answers = answers
        self._notes: list[str] = []
        self._printed = [0] * len(answers)

    def say(self, note: str) -> None:
        """Show a line between the answers."""
        self._notes.append(note)
        self.changed.set()

    async def draw(self) -> None:
        """Until all answers have ended."""
        if not out.is_terminal:
            await self._until_ended(self._print_lines)
            return
        with Live(self._panels(), console=out, auto_refresh=False) as live:
            await self._until_ended(lambda: live.update(self._panels(), refresh=True))

    async def _until_ended(self, show: Callable[[], None]) -> None:
        while not all(answer.ended for answer in self._answers):
            await self.changed.wait()
            self.changed.clear()
            show()
            await asyncio.sleep(_REFRESH_S)
        show()

    def _panels(self) -> RenderableType:
        """As many side by side as lines of a play have room in, over the whole width; as many lines as fit."""
        count = min(len(self._answers), max(1, out.width // _COLUMNS))
        rows = -(-len(self._answers) // count)
        lines = max(_FEWEST_LINES, min(_LINES, (out.height - _NOTES) // rows - _FRAME))
        grid = Table.grid(expand=True)
        for _ in range(count):
            grid.add_column(ratio=1)
        panels = [self._panel(answer, out.width // count - _FRAME * 2, lines) for answer in self._answers]
        for first in range(0, len(panels), count):
            grid.add_row(*panels[first : first + count])
        return Group(grid, *(Text(note, style="bold red") for note in self._notes))

    def _panel(self, answer: Answer, width: int, height: int) -> Panel:
        lines = (answer.prompt + answer.text).split("\n")
        shown = [part for line in lines for part in textwrap.wrap(line, width) or [""]]
        title = f"{answer.speaker}  {len(answer.token_ids)} tokens"
        return Panel(Text("\n".join(shown[-height:])), title=title, height=height + _FRAME)

    def _print_lines(self) -> None:
        for number, answer in enumerate(self._answers):
            text = answer.prompt + answer.text
            end = len(text) if answer.ended else text.rfind("\n") + 1
            for line in text[self._printed[number] : end].splitlines():
                if line.strip():
                    out.print(Text(f"{answer.speaker:>17} | {line}"))
            self._printed[number] = max(end, self._printed[number])
        for note in self._notes:
            out.print(Text(f"{'':>17} * {note}"))
        self._notes.clear()
