"""The trace of what a client submits: that of its caller's current span, in the application's own OpenTelemetry. An
application without it has no span, so nothing is imported for the question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.terms.tracing import conventions as names
from octavo.terms.tracing.context import TraceContext, checked


@contextmanager
def sending(tracer: Any, trace: str, *, model: str, tenant: str, jobs: int) -> Iterator[str]:
    """The context for jobs that are submitted now: of a span `send` below the current one, by `tracer` or that of the
    application; `trace` where there is no current span. Empty for none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not api.get_current_span().get_span_context().is_valid:
        yield checked(trace)
        return
    attributes: dict[str, Any] = {
        names.MESSAGING_SYSTEM: names.PROVIDER,
        names.MESSAGING_OPERATION: names.SEND,
        names.MESSAGING_OPERATION_TYPE: names.SEND,
        names.MESSAGING_DESTINATION: model,
        names.TENANT: tenant,
    }
    if jobs > 1:
        attributes[names.MESSAGING_BATCH] = jobs
    tracer = tracer or api.get_tracer("octavo")
    kind = api.SpanKind.PRODUCER
    with tracer.start_as_current_span(f"{names.SEND} {model}", kind=kind, attributes=attributes) as span:
        yield str(TraceContext.of(span.get_span_context()))
