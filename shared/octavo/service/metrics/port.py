"""A port for Prometheus and for probes, answered from threads so that no event loop is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from octavo.service.metrics.registry import accepted

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

WhyNotReady = Callable[[], str | None]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Probes are no news."""


class MetricsPort:
    """`/metrics`, `/livez` and `/readyz` on one address. `why_not_ready` says what is missing, None for nothing; it is
    called in a thread. Raises OSError for an address that cannot be had."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, why_not_ready: WhyNotReady) -> None:
        self._metrics = make_wsgi_app(registry)
        self._why_not_ready = why_not_ready
        self._server = make_server(host, port, self._answer, ThreadingWSGIServer, handler_class=_Quiet)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                accept = accepted(environ.get("HTTP_ACCEPT", ""))
                answer: Iterable[bytes] = self._metrics({**environ, "HTTP_ACCEPT": accept}, start_response)
                return answer
            case "/livez":
                return _json(start_response, "200 OK", {"status": "ok"})
            case "/readyz":
                reason = self._why_not_ready()
                if reason is None:
                    return _json(start_response, "200 OK", {"status": "ready"})
                return _json(start_response, "503 Service Unavailable", {"status": "unready", "reason": reason})
            case _:
                return _json(start_response, "404 Not Found", {"status": "there are /metrics, /livez and /readyz"})


def _json(start_response: StartResponse, status: str, body: dict[str, str]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]
