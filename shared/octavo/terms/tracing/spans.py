"""A span as a plain value, before any library sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.terms.tracing.context import TraceContext

Value = str | int | float | bool | Sequence[str]
Kind = Literal["internal", "client", "server", "producer", "consumer"]


@dataclass(frozen=True)
class SpanFacts:
    """A span that is over. Times are seconds since the epoch, `error` is why it failed, if it did."""

    name: str
    context: TraceContext
    parent: TraceContext
    start: float
    end: float
    kind: Kind = "internal"
    attributes: Mapping[str, Value] = field(default_factory=dict)
    links: Sequence[TraceContext] = ()
    error: str | None = None
