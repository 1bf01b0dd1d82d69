"""The question whether spans are to be exported, which the variables of OpenTelemetry answer."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.service.tracing.tracing import Tracing

log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def open_tracing(service: str, instance: str | None = None) -> Tracing | None:
    """Exporter of a process; None where no endpoint is named, spans are switched off, or the extra is missing, which
    is said. `service` is the service's name unless `OTEL_SERVICE_NAME` gives one, `instance` its id, by default of host
    and process."""
    if not _is_wanted():
        return None
    try:
        from octavo.service.tracing.tracing import Tracing
    except ImportError:
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, whose packages are missing: install octavo[otel]")
        return None
    return Tracing(service, instance or f"{socket.gethostname()}-{os.getpid()}")


def _is_wanted() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("", "otlp"):
        return False
    return any(os.environ.get(name) for name in _ENDPOINTS)
