"""Consoles of commands and of the services that they start: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from octavo.terms.logs import printable

_PIPE_WIDTH = 200  # a pipe has no width of its own: nothing is cut off there


class QuotingConsole(Console):
    """On a terminal, a text cannot do what the terminal would obey: names, prompts and errors come from elsewhere."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if self.is_terminal and not segment.control:
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


out = QuotingConsole(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
err = QuotingConsole(stderr=True, highlight=False, soft_wrap=True)
