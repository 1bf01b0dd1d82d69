"""Spans of one process on their way to a collector, by the SDK of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo.terms.tracing.context import HEADER, TraceContext
from octavo.terms.tracing.conventions import SCHEMA_URL
from octavo.terms.tracing.spans import Kind, SpanFacts

_KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_FLUSH_MS = 2000


class Tracing:
    """One a process. The SDK's own thread sends what is put here, in batches; what it cannot send is dropped. Nothing
    here blocks, `close` apart. `tracer` makes spans that begin now, of which the sampler of the usual variables
    decides where no caller has."""

    def __init__(self, service: str, instance: str) -> None:
        resource = Resource({SERVICE_NAME: service, "service.instance.id": instance}).merge(_of_environment())
        self._resource = resource
        self._scope = InstrumentationScope("octavo", version("octavo"), SCHEMA_URL)
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._propagator = TraceContextTextMapPropagator()
        self.tracer: Tracer = self._provider.get_tracer("octavo", version("octavo"), schema_url=SCHEMA_URL)

    def tell(self, span: SpanFacts) -> None:
        """Export a span that is over."""
        if not span.context.is_sampled:
            return
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_context(span.context),
                parent=_context(span.parent),
                resource=self._resource,
                attributes=span.attributes,
                links=[Link(_context(link)) for link in span.links],
                kind=_KINDS[span.kind],
                status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
                start_time=round(span.start * 1e9),
                end_time=round(max(span.start, span.end) * 1e9),
                instrumentation_scope=self._scope,
            )
        )

    @contextmanager
    def serving(self, name: str, traceparent: str) -> Iterator[trace.Span]:
        """The span of a request that is being served, the current one meanwhile; a child of `traceparent`, if that is a
        context."""
        parent = self._propagator.extract({HEADER: traceparent}, contexts.Context())
        span = self.tracer.start_span(name, parent, kind=SpanKind.SERVER)
        with trace.use_span(span, end_on_exit=True, record_exception=False):
            yield span

    @property
    def context(self) -> TraceContext | None:
        """Context of the current span."""
        context = trace.get_current_span().get_span_context()
        return TraceContext.of(context) if context.is_valid else None

    def current(self) -> str:
        """The context of the current span, empty for none."""
        return str(self.context or "")

    def flush(self) -> None:
        """Send what waits, for some seconds at most."""
        self._processor.force_flush(_FLUSH_MS)

    def close(self) -> None:
        """Send what waits, and nothing from then on."""
        self.flush()
        self._provider.shutdown()


def _of_environment() -> Resource:
    """The attributes that the usual variables give, which go before ours."""
    given = Resource.create()
    named = dict(given.attributes)
    if str(named.get(SERVICE_NAME, "")).startswith("unknown_service"):
        del named[SERVICE_NAME]
    return Resource(named, given.schema_url)


def _context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=flags)
