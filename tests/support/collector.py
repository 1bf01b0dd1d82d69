"""A collector of spans: OTLP over HTTP, as any backend takes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True)
class Seen:
    """A span as the collector got it. Ids are in hexadecimal, times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start: float
    end: float
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    is_error: bool
    service: str


@dataclass
class Collector:
    """Everything that came."""

    url: str
    spans: list[Seen] = field(default_factory=list)

    def named(self, name: str) -> list[Seen]:
        """Spans with this name, in order of time."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start)

    def asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Processes that start from now on export here."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", self.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")

    def take(self, data: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            service = _values(of_resource.resource.attributes)["service.name"]
            for of_scope in of_resource.scope_spans:
                self.spans += [_seen(span, service) for span in of_scope.spans]


def _seen(span: Any, service: str) -> Seen:
    return Seen(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=KINDS[span.kind],
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        attributes=_values(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        is_error=span.status.code == 2,
        service=service,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                raise AssertionError("nothing asked for gzip")
            collector.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
