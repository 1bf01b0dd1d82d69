"""Logs: one JSON object a line, or plain lines on a terminal. Never prompts, never outputs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

FIELDS = ("request_id", "method", "path", "status", "dur_ms", "tenant")
"""What a log call may pass in `extra`."""


class JsonFormatter(logging.Formatter):
    """`ts`, `level`, `logger`, `event`, and the fields above where given."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_config(level: str) -> dict[str, Any]:
    """For `logging.config.dictConfig` (and uvicorn): everything to stderr, plain on a terminal, JSON elsewhere."""
    plain = sys.stderr.isatty()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {"format": "%(asctime)s %(levelname)-7s %(message)s", "datefmt": "%H:%M:%S"},
            "json": {"()": "octavo_gateway.logs.JsonFormatter"},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain" if plain else "json"}},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
        "loggers": {"uvicorn.access": {"level": "WARNING"}},  # octavo_gateway.requests says it, with the request's id
    }
