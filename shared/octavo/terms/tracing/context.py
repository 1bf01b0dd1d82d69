"""A trace's context, as W3C's header `traceparent` has it, and ids of spans that several processes agree on."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple, Self

HEADER = "traceparent"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01


class TraceContext(NamedTuple):
    """A span of a trace, to which others belong. Ids are in hexadecimal. `is_sampled` is the decision of the trace's
    first caller, which holds for all that follows."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def read(cls, text: str) -> Self | None:
        """None for what is no context. What a version after 00 adds is left out, as W3C has it."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    @classmethod
    def of(cls, context: Any) -> Self:
        """The context of a span of OpenTelemetry's library."""
        return cls(f"{context.trace_id:032x}", f"{context.span_id:016x}", bool(context.trace_flags.sampled))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"

    def derived(self, *of: str | int) -> Self:
        """A span of the same trace whose id is a hash: all that know what it is `of` name the same one."""
        digest = hashlib.blake2b("\n".join([self.trace_id, *map(str, of)]).encode(), digest_size=8).digest()
        return type(self)(self.trace_id, digest.hex() if any(digest) else "1".zfill(16), self.is_sampled)


def exemplar_of(context: TraceContext | None) -> dict[str, str] | None:
    """Labels by which a figure names the trace that it is an example of; None for a trace that is not recorded."""
    return {"trace_id": context.trace_id} if context is not None and context.is_sampled else None


def checked(text: str | None) -> str:
    """A context in its canonical form; empty for what is none."""
    context = TraceContext.read(text) if text else None
    return str(context) if context is not None else ""
